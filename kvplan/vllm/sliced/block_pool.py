"""vLLM's block pool interface over one sliced pool: a face for each group, and one for totals.

vLLM's managers keep the pool of their group; what adds up over groups - admission, usage, reset -
asks :class:`SlicedReserve`, whose unit is the large block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id, resolve_block_hashes

import kvplan

# Lines that users look for keep the name of the module they came from.
_vllm_logger = init_logger("vllm.v1.core.block_pool")


class SlicedKVCacheBlock:
    """One block of one group: what vLLM's managers and scheduler read of a block."""

    __slots__ = ("_num_hashed_tokens", "block_id", "is_null", "pool", "ref_cnt")

    def __init__(self, block_id: int, pool: GroupBlockPool) -> None:
        self.block_id = block_id
        self.pool = pool
        self.is_null = block_id == 0
        self.ref_cnt = 0
        self._num_hashed_tokens: int | None = None

    @property
    def block_hash(self) -> bytes | None:
        """The key (hash and group id) under which the pool finds the block."""
        return self.pool._key_of(self.block_id)

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens of the prefix that the key stands for."""
        return None if self.block_hash is None else self._num_hashed_tokens

    def __repr__(self) -> str:
        group = self.pool.group_id
        return f"SlicedKVCacheBlock(block_id={self.block_id}, group={group}, ref={self.ref_cnt})"


class _Blocks(dict[int, SlicedKVCacheBlock]):
    """Block objects by id, made when a block is first handed out."""

    def __init__(self, pool: GroupBlockPool) -> None:
        self._pool = pool

    def __missing__(self, block_id: int) -> SlicedKVCacheBlock:
        block = self[block_id] = SlicedKVCacheBlock(block_id, self._pool)
        return block


class GroupBlockPool:
    """The blocks of one group, as vllm/v1/core/block_pool.py::BlockPool (0.32) offers them.

    Free blocks are shared with the other groups, so how many there are is asked of the reserve.
    """

    enable_kv_cache_events = False
    metrics_collector = None

    def __init__(self, reserve: SlicedReserve, group_id: int) -> None:
        self._pool = reserve.pool
        self.group_id = group_id
        self.num_gpu_blocks = reserve.pool.num_blocks(group_id)
        self.enable_caching = reserve.pool.enable_caching
        self.hash_block_size = reserve.hash_block_size
        self.blocks = _Blocks(self)
        self.null_block = self.blocks[0]
        self._set_aside: list[SlicedKVCacheBlock] = []

    # Allocation.

    def get_new_blocks(self, num_blocks: int) -> list[SlicedKVCacheBlock]:
        """New blocks, those first that were set aside for the request.

        Raises ValueError if there are not enough, and takes none.
        """
        aside = self._set_aside
        if len(aside) == num_blocks:
            self._set_aside = []
            return aside
        taken = aside[:num_blocks]
        if len(taken) < num_blocks:
            ids = self._pool.get_new_blocks(num_blocks - len(taken), self.group_id)
            taken += self._held(ids)
        del aside[:num_blocks]
        return taken

    def set_aside(self, ids: Any) -> None:
        """Keeps new blocks for the calls of get_new_blocks() to come."""
        self._set_aside = self._held(ids)

    def return_unused(self) -> None:
        """Frees what was set aside and not asked for."""
        if self._set_aside:
            unused, self._set_aside = self._set_aside, []
            self.free_blocks(unused)

    def _held(self, ids: Any) -> list[SlicedKVCacheBlock]:
        blocks = self.blocks
        held = [blocks[block_id] for block_id in ids.tolist()]
        for block in held:
            block.ref_cnt = 1
        return held

    def touch(self, blocks: Sequence[SlicedKVCacheBlock]) -> None:
        """One holder more for each block but null."""
        real = [block for block in blocks if not block.is_null]
        if not real:
            return
        self._pool.touch([block.block_id for block in real], self.group_id)
        for block in real:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[SlicedKVCacheBlock]) -> None:
        """One holder less for each block but null, in order of eviction; of any group."""
        by_pool: dict[GroupBlockPool, list[SlicedKVCacheBlock]] = {}
        for block in ordered_blocks:
            if not block.is_null:
                by_pool.setdefault(block.pool, []).append(block)
        for pool, blocks in by_pool.items():
            pool._pool.free_blocks([block.block_id for block in blocks], pool.group_id)
            for block in blocks:
                block.ref_cnt -= 1

    def is_block_writable(self, block: SlicedKVCacheBlock) -> bool:
        """Whether the block has one holder and no hash."""
        return not block.is_null and block.ref_cnt == 1 and block.block_hash is None

    def get_num_free_blocks(self) -> int:
        """Blocks that this group could get if no other group took any."""
        return self._pool.num_free_blocks(self.group_id)

    # Prefix cache.

    def get_cached_block(
        self, block_hash: bytes, kv_cache_group_ids: list[int]
    ) -> list[SlicedKVCacheBlock] | None:
        """The block with this hash, as a list of one; None if there is none."""
        found = self._pool.get_cached_block(block_hash, kv_cache_group_ids)
        return None if found is None else [self.blocks[int(found[0])]]

    def cache_full_blocks(
        self,
        request: Any,
        blocks: list[SlicedKVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        """Makes full blocks reachable by the request's hashes."""
        if num_cached_blocks >= num_full_blocks:
            return
        new = blocks[num_cached_blocks:num_full_blocks]
        hashes = resolve_block_hashes(request.block_hashes, self.hash_block_size, block_size)
        self._pool.cache_full_blocks(
            [block.block_id for block in new],
            [hashes[i] for i in range(num_cached_blocks, num_full_blocks)],
            block_size,
            kv_cache_group_id,
            first_block=num_cached_blocks,
            mask=block_mask,
        )
        for i, block in enumerate(new, num_cached_blocks + 1):
            block._num_hashed_tokens = i * block_size

    def cache_partial_block(self, *_: Any, **__: Any) -> None:
        """Nothing: a boundary inside a block is looked up only where Mamba states are cached."""

    def _key_of(self, block_id: int) -> bytes | None:
        found = self._pool.block_hash(block_id, self.group_id)
        return None if found is None else make_block_hash_with_group_id(found, self.group_id)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"kvplan's sliced block pool has no {name!r}: what uses it in vLLM is not among what "
            "KVPLAN_GROUPING=sliced takes; unset it, and please report this"
        )


class SlicedReserve:
    """All groups together, in large blocks: the pool of vLLM's coordinator.

    num_large_blocks: blocks of the pool, the null block included. slices: blocks that each group
    cuts from one.
    """

    def __init__(
        self,
        num_large_blocks: int,
        slices: Sequence[int],
        enable_caching: bool,
        hash_block_size: int,
    ) -> None:
        self.pool = kvplan.SlicedBlockPool(num_large_blocks, slices, enable_caching=enable_caching)
        self.num_gpu_blocks = num_large_blocks
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.groups = tuple(GroupBlockPool(self, g) for g in range(len(slices)))

    def get_num_free_blocks(self) -> int:
        """Large blocks that nobody uses, cached ones among them."""
        return self.pool.num_free_large_blocks

    def get_usage(self) -> float:
        """Share of the large blocks that are in use, wholly or in part."""
        return self.pool.usage

    def is_unused(self) -> bool:
        """Whether no block of any group is in use."""
        return self.get_num_free_blocks() == self.num_gpu_blocks - 1

    def set_aside(self, num_new: list[int], *, frugal: bool) -> None:
        """Takes new blocks of all groups, or of none, for the managers to come and get."""
        for group, ids in zip(self.groups, self.pool.allocate(num_new, frugal=frugal), strict=True):
            group.set_aside(ids)

    def return_unused(self) -> None:
        """Frees what no manager came for."""
        for group in self.groups:
            group.return_unused()

    def free_blocks(self, ordered_blocks: Iterable[SlicedKVCacheBlock]) -> None:
        """One holder less for each block of any group."""
        self.groups[0].free_blocks(ordered_blocks)

    def reset_prefix_cache(self) -> bool:
        """Forgets everything cached; False, and nothing happens, while a block is in use."""
        if not self.pool.reset_prefix_cache():
            used = self.num_gpu_blocks - 1 - self.get_num_free_blocks()
            _vllm_logger.warning(
                "Failed to reset prefix cache because some blocks (%d) are not freed yet", used
            )
            return False
        _vllm_logger.info("Successfully reset prefix cache")
        return True

    def take_events(self) -> list[Any]:
        """None: a server with KV cache events gets vLLM's plan."""
        return []

    def evict_blocks(self, block_ids: set[int]) -> NoReturn:
        """Not possible: an id means another block in each group."""
        raise NotImplementedError(
            f"cannot evict blocks {sorted(block_ids)[:8]}: with KVPLAN_GROUPING=sliced an id means "
            "another block in each group, and vLLM does not say the group"
        )
