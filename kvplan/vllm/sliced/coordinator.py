"""vLLM's KV cache coordinators over a sliced pool: admission in large blocks.

vLLM's ``allocate_slots`` compares one number, what a request needs, with one number of free blocks.
Here both are large blocks: what a request needs is what its groups' new slices fill beyond the free
slices of their own partly used blocks. So the scheduler stays as it is, watermark included.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from vllm.v1.core.kv_cache_coordinator import (
    HybridKVCacheCoordinator,
    KVCacheCoordinator,
    KVCacheCoordinatorNoPrefixCache,
)

from kvplan.vllm import report
from kvplan.vllm.sliced.block_pool import SlicedKVCacheBlock, SlicedReserve


class _Sliced(KVCacheCoordinator):
    """What the coordinators with and without a prefix cache have in common."""

    block_pool: SlicedReserve

    def use_slices(self, enable_caching: bool, hash_block_size: int) -> None:
        """Gives each manager the pool of its group, in the place of the one that vLLM made."""
        config = self.kv_cache_config
        self.block_pool = SlicedReserve(
            config.num_blocks, config.slices, enable_caching, hash_block_size
        )
        for manager, pool in zip(self.single_type_managers, self.block_pool.groups, strict=True):
            manager.block_pool = pool
            manager._null_block = pool.null_block
        self._admitted: tuple[str | None, list[int]] = (None, [])
        # A request that could not go on although it was alone; nobody joins it the next time.
        self._alone: str | None = None
        self._alone_is_preempted = False

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: tuple[Sequence[SlicedKVCacheBlock], ...],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """Large blocks that the request takes off the free ones."""
        pool = self.block_pool
        if self._alone not in (None, request_id):
            return pool.num_gpu_blocks  # more than can be free
        if self.retention_interval != 0:
            prefill_end = 0
        before = (request_id, num_tokens)
        after = (total_computed_tokens, num_local_computed_tokens, num_tokens_main_model)
        options = {"apply_admission_cap": apply_admission_cap, "prefill_end": prefill_end}
        num_new = []
        held: list[list[int]] = []
        for manager, found in zip(self.single_type_managers, new_computed_blocks, strict=True):
            needed = manager.get_num_blocks_to_allocate(*before, found, *after, **options)
            free = [block.block_id for block in found if block.ref_cnt == 0 and not block.is_null]
            if free:
                # The manager adds those of the free blocks that the request will hold, the last
                # ones, to the new ones.
                nulls = [manager._null_block] * len(found)
                new = manager.get_num_blocks_to_allocate(*before, nulls, *after, **options)
                free = free[len(free) - (needed - new) :]
                needed = new
            num_new.append(needed)
            held.append(free)
        self._admitted = (request_id, num_new)
        if not any(num_new) and not any(held):
            return 0
        large = pool.pool.num_large_blocks_needed(num_new, held if any(held) else None)
        if large > pool.get_num_free_blocks():
            self._make_room(request_id)
        return large

    def _make_room(self, request_id: str) -> None:
        """Sees to it that a request that has the pool to itself does not wait for ever.

        A request fits into an empty pool: that is checked at start-up. But what it found in the
        prefix cache, or took while others were running, may lie in more large blocks than its
        slices fill. So the cache is given up where nothing is in use, and a request that cannot go
        on although it is alone starts again in an empty pool, alone and with full large blocks.
        """
        pool = self.block_pool
        if pool.is_unused():
            if pool.pool.num_cached_hashes:
                pool.pool.reset_prefix_cache()
                _tell("the prefix cache was emptied for a request that needs the whole pool")
            return
        for manager in self.single_type_managers:
            if any(blocks and r != request_id for r, blocks in manager.req_to_blocks.items()):
                return
        self._alone = request_id
        self._alone_is_preempted = True
        _tell("a request that needs the whole pool is started again, and runs alone")

    def allocate_new_blocks(
        self,
        request_id: str,
        num_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int = 0,
    ) -> tuple[list[Any], ...]:
        """New blocks of all groups at once, so that no group takes what another was admitted for.

        Raises BlockPoolError, and takes nothing, if the request was not admitted.
        """
        admitted, num_new = self._admitted
        assert admitted == request_id, f"{request_id} allocates, but {admitted} was admitted"
        if any(num_new):
            self.block_pool.set_aside(num_new, frugal=self._alone is not None)
        try:
            return super().allocate_new_blocks(
                request_id, num_tokens, num_tokens_main_model, num_encoder_tokens
            )
        finally:
            self.block_pool.return_unused()

    def free(self, request_id: str) -> None:
        """Frees the request's blocks in all groups."""
        super().free(request_id)
        if request_id != self._alone:
            return
        if self._alone_is_preempted:
            self._alone_is_preempted = False
            self.block_pool.pool.reset_prefix_cache()
        else:
            self._alone = None

    def reset_prefix_cache(self) -> bool:
        """Once for all groups."""
        return self.block_pool.reset_prefix_cache()


def _tell(what: str) -> None:
    report.once(logging.INFO, f"KVPLAN_GROUPING=sliced: {what}")


class SlicedCoordinator(_Sliced, HybridKVCacheCoordinator):
    """With a prefix cache."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.use_slices(True, arguments["hash_block_size"])
        # Groups are looked up together if they have one pool.
        self.verify_and_split_kv_cache_groups()


class SlicedCoordinatorNoPrefixCache(_Sliced, KVCacheCoordinatorNoPrefixCache):
    """Without one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.use_slices(False, arguments["hash_block_size"])
