"""vLLM's KV cache manager with kvplan's beside it: every call is made on both and compared."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from vllm.v1.core import block_pool as vllm_block_pool
from vllm.v1.core import kv_cache_coordinator, kv_cache_manager, kv_cache_utils

from kvplan.vllm import report
from kvplan.vllm.patch import stock

__all__ = ["VerifiedKVCacheManager", "difference"]

_vllm_manager = kv_cache_manager.KVCacheManager

# Calls that are made on both managers. All others only read what vLLM's has.
_CALLS = (
    "allocate_slots",
    "cache_blocks",
    "estimate_cached_tokens",
    "evict_blocks",
    "finalize_partial_tail_offloads",
    "free",
    "get_block_ids",
    "get_blocks",
    "get_computed_blocks",
    "get_computed_blocks_for_connector",
    "new_step_starts",
    "pop_blocks_for_free",
    "record_blocks_for_zeroing",
    "remove_skipped_blocks",
    "reset_prefix_cache",
    "take_boundary_state_offloads",
    "take_kv_cache_block_copies",
    "take_new_block_ids",
    "truncate_computed_blocks",
)
_POOL_CALLS = ("free_blocks", "get_new_blocks", "touch")


class VerifiedKVCacheManager(kv_cache_manager.KVCacheManager):
    """vLLM's manager over vLLM's pool, whose results are used; kvplan's has to give the same.

    After the first difference, kvplan's is not asked any more. `ours` is made with the same
    arguments.
    """

    def __init__(self, ours: Any, *args: Any, **kwargs: Any) -> None:
        held = kv_cache_coordinator.BlockPool
        kv_cache_coordinator.BlockPool = stock(vllm_block_pool, "BlockPool")
        try:
            _vllm_manager.__init__(self, *args, **kwargs)
        finally:
            kv_cache_coordinator.BlockPool = held
        self._ours = ours
        self._inside = False
        for name in _CALLS:
            setattr(self, name, self._on_both(self, ours, name, getattr(self, name)))
        for name in _POOL_CALLS:
            pool: Any = self.block_pool
            setattr(pool, name, self._on_both(pool, ours.block_pool, name, getattr(pool, name)))

    def _on_both(
        self, owner: Any, ours: Any, name: str, vllms: Callable[..., Any]
    ) -> Callable[..., Any]:
        where = f"{type(owner).__name__}.{name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            # What a manager calls of itself and of its pool is part of the call that is compared.
            if self._inside or self._ours is None:
                return vllms(*args, **kwargs)
            self._inside = True
            try:
                # Iterators are read twice.
                args = tuple(list(a) if hasattr(a, "__next__") else a for a in args)
                try:
                    expected = vllms(*args, **kwargs)
                except Exception:
                    self._stop()
                    raise
                self._compare(where, expected, getattr(ours, name), args, kwargs)
                return expected
            finally:
                self._inside = False

        return call

    def _compare(
        self, where: str, expected: Any, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        try:
            actual = call(
                *(self._translate(a) for a in args),
                **{name: self._translate(a) for name, a in kwargs.items()},
            )
            wrong = difference(expected, actual)
            if not wrong and (free := self._free_blocks())[0] != free[1]:
                wrong = f"{free[1]} blocks are free, not {free[0]}"
        except Exception as error:
            wrong = f"kvplan raised {error!r}"
        report.cache_manager("verified")
        if wrong:
            report.cache_manager("mismatches")
            self._stop()
            report.once(
                logging.ERROR,
                f"kvplan's KV cache manager differs from vLLM's, which is used: {where}: {wrong}",
            )

    def _free_blocks(self) -> tuple[int, int]:
        pools = (self.block_pool, self._ours.block_pool)
        first, second = (pool.get_num_free_blocks() for pool in pools)
        return first, second

    def _stop(self) -> None:
        self._ours = None

    def _translate(self, value: Any) -> Any:
        """An argument with the blocks of kvplan's pool in the place of vLLM's."""
        if isinstance(value, kv_cache_manager.KVCacheBlocks):
            if value is self.empty_kv_cache_blocks:
                return self._ours.empty_kv_cache_blocks
            return kv_cache_manager.KVCacheBlocks(self._translate(value.blocks))
        if isinstance(value, (list, tuple)):
            return type(value)(self._translate(item) for item in value)
        if isinstance(value, kv_cache_utils.KVCacheBlock):
            return self._ours.block_pool.blocks[value.block_id]
        return value


def difference(expected: Any, actual: Any) -> str:
    """How two results differ as ids and numbers, from the first difference on; "" if they agree."""
    expected, actual = _plain(expected), _plain(actual)
    if expected == actual:
        return ""
    where = ""
    if isinstance(expected, list) and isinstance(actual, list):
        pairs = enumerate(zip(expected, actual, strict=False))
        first = next((i for i, (e, a) in pairs if e != a), min(len(expected), len(actual)))
        expected, actual = expected[first : first + 3], actual[first : first + 3]
        where = f" at {first}"
    return f"{actual!r}, not {expected!r}{where}"


def _plain(value: Any) -> Any:
    if isinstance(value, kv_cache_manager.KVCacheBlocks):
        return _plain(value.get_block_ids())
    if hasattr(value, "block_id"):
        return value.block_id
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        # Only 0.33 leaves null blocks out of what is to be freed.
        return [_plain(item) for item in value if not getattr(item, "is_null", False)]
    return value
