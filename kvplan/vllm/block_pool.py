"""vLLM's block pool on kvplan's: same names, same order, same events.

`BlockPool` mirrors vllm/v1/core/block_pool.py::BlockPool (0.33, and 0.32's call forms). The state
lives in the native pool; this class adds what only Python has: the request's tokens in events,
metrics and reuse callbacks. Unlike vLLM's, an operation that would break the pool (a block freed
more often than it is held, a block of no pool) raises a ValueError and changes nothing.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import vllm.v1.core.block_pool as _vllm_block_pool
from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.logger import init_logger
from vllm.v1.core import kv_cache_utils as _utils
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from kvplan._core import KVCacheBlock, VllmBlockPool
from kvplan.vllm import report
from kvplan.vllm.decide import TESTED_VERSIONS, origin
from kvplan.vllm.detect import Vllm
from kvplan.vllm.patch import Patch, stock

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
    from vllm.v1.request import Request

__all__ = [
    "BlockPool",
    "KVCacheBlock",
    "patches",
    "unsupported_reason",
]

# Lines that users look for keep the name of the module they came from.
_vllm_logger = init_logger("vllm.v1.core.block_pool")


class _Blocks(Sequence[KVCacheBlock]):
    """All blocks of a pool, by block id."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.num_gpu_blocks

    def __getitem__(self, index: Any) -> Any:
        ids = range(len(self))[index]
        block = self._pool._block
        return block(ids) if isinstance(ids, int) else [block(i) for i in ids]


class _FreeListEnd:
    """What stands before the first free block, or behind the last; white-box users start there."""

    block_id = -1

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    @property
    def next_free_block(self) -> Any:
        return self._pool._first_free() or self._pool._free_list_ends[1]

    @property
    def prev_free_block(self) -> Any:
        free = self._pool.free_block_queue.get_all_free_blocks()
        return free[-1] if free else self._pool._free_list_ends[0]


class _PoolFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's interface over the free list of a native pool.

    Blocks taken out here have no holder until put back.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    @property
    def fake_free_list_head(self) -> Any:  # type: ignore[override]
        return self._pool._free_list_ends[0]

    @property
    def fake_free_list_tail(self) -> Any:  # type: ignore[override]
        return self._pool._free_list_ends[1]

    @property
    def num_free_blocks(self) -> int:  # type: ignore[override]
        return self._pool.get_num_free_blocks()

    def remove(self, block: KVCacheBlock) -> None:
        self._pool._detach_free(block)

    def popleft(self) -> KVCacheBlock:
        if self.num_free_blocks == 0:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        assert self.num_free_blocks >= n, f"{n} blocks wanted, {self.num_free_blocks} are free"
        blocks = []
        for _ in range(n):
            block = self._pool._first_free()
            self._pool._detach_free(block)
            blocks.append(block)
        return blocks

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        self._pool._attach_free_back(blocks)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        self._pool._attach_free_front(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        block = self._pool._first_free() if cursor is None else cursor.next_free_block
        while block is not None:
            yield block
            block = block.next_free_block


class _BlockHashToBlockMap:
    """Mirrors vllm/v1/core/block_pool.py::BlockHashToBlockMap (0.33) over a native pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def get_one_block(self, key: bytes) -> KVCacheBlock | None:
        return self._pool._get_one_block(key)

    def contain(self, key: bytes, block_id: int) -> bool:
        return self._pool._has_key(key, block_id)

    def insert(self, key: bytes, block: KVCacheBlock) -> None:
        self._pool._insert_block_hash(key, block, None)

    def pop(self, key: bytes, block_id: int) -> KVCacheBlock | None:
        """Unlike vLLM's, this takes the key from the block, too."""
        if not self.contain(key, block_id):
            return None
        block = self._pool.blocks[block_id]
        num_tokens = block.block_hash_num_tokens
        for other in self._pool._remove_cached_block_hashes(block):
            if other != key:
                self._pool._insert_block_hash(other, block, num_tokens)
        return block

    def __len__(self) -> int:
        return self._pool._num_cached_hashes()

    @property
    def _cache(self) -> _KeysOfAllBlocks:
        return _KeysOfAllBlocks(self._pool)


class _KeysOfAllBlocks(MutableMapping[bytes, Any]):
    """What white-box users find in the dict of vLLM's `BlockHashToBlockMap`: the block of each key,
    or its blocks by id. Each access looks at every block; the copy is a dict.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def __copy__(self) -> dict[bytes, Any]:
        found: dict[bytes, dict[int, KVCacheBlock]] = {}
        for block in self._pool.blocks:
            if block.block_hash is None:
                continue
            for key in (block.block_hash, *self._pool._secondary_keys(block.block_id)):
                found.setdefault(key, {})[block.block_id] = block
        return {
            key: next(iter(blocks.values())) if len(blocks) == 1 else blocks
            for key, blocks in found.items()
        }

    def __getitem__(self, key: bytes) -> Any:
        return self.__copy__()[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.__copy__())

    def __len__(self) -> int:
        return self._pool._num_cached_hashes()

    def __delitem__(self, key: bytes) -> None:
        for block in _blocks_of(self[key]):
            self._pool.cached_block_hash_to_block.pop(key, block.block_id)

    def __setitem__(self, key: bytes, value: Any) -> None:
        self.pop(key, None)
        for block in _blocks_of(value):
            self._pool.cached_block_hash_to_block.insert(key, block)


def _blocks_of(value: Any) -> list[KVCacheBlock]:
    return list(value.values()) if isinstance(value, dict) else [value]


class _SecondaryHashes:
    """block id -> keys besides the primary one; what readers of vLLM's dict use of it."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def get(self, block_id: int, default: Any = None) -> Any:
        keys = self._pool._secondary_keys(block_id)
        return set(keys) if keys else default

    def __getitem__(self, block_id: int) -> set[bytes]:
        keys = self._pool._secondary_keys(block_id)
        if not keys:
            raise KeyError(block_id)
        return set(keys)

    def __contains__(self, block_id: int) -> bool:
        return bool(self._pool._secondary_keys(block_id))


class BlockPool(VllmBlockPool):
    """Drop-in for vLLM's BlockPool; see the module's docstring.

    num_gpu_blocks: blocks of the pool, the null block included. hash_block_size: tokens per block
    hash. num_hash_lookahead_tokens: tokens after each block that its hash covers. Raises
    AssertionError if num_gpu_blocks is no positive int.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        metrics_collector: KVCacheMetricsCollector | None = None,
        num_hash_lookahead_tokens: int = 0,
        medium: str = MEDIUM_GPU,
    ) -> None:
        assert isinstance(num_gpu_blocks, int), "num_gpu_blocks must be an int"
        assert num_gpu_blocks > 0, "a block pool has at least the null block"
        super().__init__(
            num_gpu_blocks,
            enable_caching,
            hash_block_size,
            enable_kv_cache_events,
            metrics_collector is not None,
        )
        self.num_gpu_blocks = num_gpu_blocks
        self.hash_block_size = hash_block_size
        self.num_hash_lookahead_tokens = num_hash_lookahead_tokens
        self.medium = medium
        self.metrics_collector = metrics_collector
        self.null_block = self._block(0)
        self.kv_event_queue = []
        self._reuse_watchers: dict[int, Callable[[KVCacheBlock], None]] = {}

    @property
    def blocks(self) -> Sequence[KVCacheBlock]:
        """All blocks, by block id; each object is made when it is first asked for."""
        return _Blocks(self)

    @property
    def free_block_queue(self) -> FreeKVCacheBlockQueue:
        """Free blocks in order of eviction."""
        return _PoolFreeQueue(self)

    @cached_property
    def _free_list_ends(self) -> tuple[_FreeListEnd, _FreeListEnd]:
        return _FreeListEnd(self), _FreeListEnd(self)

    @property
    def cached_block_hash_to_block(self) -> _BlockHashToBlockMap:
        """Lookup by key (hash and group id)."""
        return _BlockHashToBlockMap(self)

    @property
    def cached_block_hashes_by_block(self) -> _SecondaryHashes:
        """Keys of a block besides its primary one."""
        return _SecondaryHashes(self)

    # Prefix cache.

    def cache_partial_block(
        self,
        request: Request,
        block: KVCacheBlock,
        num_tokens: int,
        kv_cache_group_id: int,
        block_size: int,
        replace_existing_hashes: bool = False,
    ) -> bytes | None:
        """Makes the boundary after `num_tokens` tokens, inside `block`, reachable.

        num_tokens: a positive multiple of hash_block_size that the request has hashes for.
        replace_existing_hashes: the content was replaced, so the block's other keys go.

        Returns the key, or None for the null block.
        """
        if block.is_null:
            return None
        size = self.hash_block_size
        assert block_size % size == 0, f"block size {block_size} is no multiple of {size}"
        assert num_tokens % size == 0, f"{num_tokens} tokens are no multiple of {size}"
        last = num_tokens // size - 1
        hashes = request.block_hashes
        assert 0 <= last < len(hashes), f"{num_tokens} tokens, but {len(hashes)} hashes of {size}"
        self._cache_partial(
            request,
            block,
            hashes[last],
            hashes[last - 1] if last else None,
            num_tokens,
            kv_cache_group_id,
            replace_existing_hashes,
        )
        return _utils.make_block_hash_with_group_id(hashes[last], kv_cache_group_id)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Drops the keys of the blocks. An unknown id raises AssertionError and nothing changes."""
        for block_id in block_ids:
            assert 0 <= block_id < self.num_gpu_blocks, (
                f"block id {block_id} is not in the pool, which has {self.num_gpu_blocks} blocks; "
                "a connector may only report blocks that the scheduler allocated"
            )
        for block_id in block_ids:
            self._maybe_evict_cached_block(self._block(block_id))

    def reset_prefix_cache(self) -> bool:
        """Forgets everything cached; False, and nothing happens, while a block is in use."""
        if not self._reset():
            num_used = self.num_gpu_blocks - self.get_num_free_blocks() - 1
            _vllm_logger.warning(
                "Failed to reset prefix cache because some blocks (%d) are not freed yet", num_used
            )
            return False
        if self.metrics_collector:
            self.metrics_collector.reset()
        _vllm_logger.info("Successfully reset prefix cache")
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    # Reuse callbacks.

    def unpin_blocks(
        self, blocks: Iterable[KVCacheBlock], on_reuse: Callable[[KVCacheBlock], None]
    ) -> None:
        """Frees blocks that stay readable until the pool reuses them.

        They go to the end of the free list, hashed or not. `on_reuse(block)` is called when one is
        handed out or the cache is reset.
        """
        blocks = list(blocks)
        self._unpin(blocks)
        for block in blocks:
            self._reuse_watchers[block.block_id] = on_reuse

    def _on_block_reused(self, block: KVCacheBlock) -> None:
        on_reuse = self._reuse_watchers.pop(block.block_id, None)
        if on_reuse is not None:
            on_reuse(block)

    # Events.

    @property
    def kv_event_queue(self) -> list[KVCacheEvent]:
        """What happened since the last `take_events`, oldest first."""
        self._convert_events()
        return self._kv_event_queue

    @kv_event_queue.setter
    def kv_event_queue(self, events: list[KVCacheEvent]) -> None:
        self._kv_event_queue = events

    def take_events(self) -> list[KVCacheEvent]:
        """The queued events, oldest first; the queue is empty afterwards."""
        if not self.enable_kv_cache_events:
            return []
        events = self.kv_event_queue
        self.kv_event_queue = []
        return events

    def emit_cached_block_events(
        self, request: Request, num_cached_blocks: int, block_size: int, kv_cache_group_id: int
    ) -> None:
        """Reports the first `num_cached_blocks` blocks as stored, without changing anything."""
        if not self.enable_kv_cache_events or num_cached_blocks == 0:
            return
        hashes = _utils.resolve_block_hashes(request.block_hashes, self.hash_block_size, block_size)
        positions = list(range(num_cached_blocks))
        self._append_stored_event(
            request,
            kv_cache_group_id,
            block_size,
            0,
            num_cached_blocks,
            None,
            [hashes[i] for i in positions],
            positions,
        )

    def _convert_events(self) -> None:
        """Makes vLLM's events of those that the native pool has."""
        for event in self._take_filed_events():
            if len(event) == 2:
                self._append_removed_event(*event)
            else:
                self._append_stored_event(*event)

    def _emit_block_removed_events(self, block_hashes: list[bytes]) -> None:
        if self.enable_kv_cache_events:
            for key in block_hashes:
                self._append_removed_event(_utils.get_block_hash(key), _utils.get_group_id(key))

    def _append_removed_event(self, block_hash: bytes, group_id: int) -> None:
        self.kv_event_queue.append(
            BlockRemoved(
                block_hashes=[_utils.maybe_convert_block_hash(block_hash)],
                medium=self.medium,
                group_idx=group_id,
            )
        )

    def _append_stored_event(
        self,
        request: Request,
        group_id: int,
        block_size: int,
        first: int,
        end: int,
        parent_hash: bytes | None,
        hashes: list[bytes],
        positions: list[int],
    ) -> None:
        """Queues one event: of blocks [first, end), those at `positions` were stored."""
        convert = _utils.maybe_convert_block_hash
        extra_keys = []
        mm_feature = 0
        spans = [(i * block_size, (i + 1) * block_size) for i in positions]
        for span_start, span_end in spans:
            keys, mm_feature = self._extra_keys(request, span_start, span_end, mm_feature)
            extra_keys.append(keys)
        lora = request.lora_request
        lookahead: dict[str, Any] = {}
        if n := self.num_hash_lookahead_tokens:
            tokens = request.all_token_ids
            lookahead["lookahead_token_ids"] = [tokens[e : e + n] for _, e in spans]
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[convert(block_hash) for block_hash in hashes],
                parent_block_hash=None if parent_hash is None else convert(parent_hash),
                token_ids=request.all_token_ids[first * block_size : end * block_size],
                block_size=block_size,
                lora_id=lora.adapter_id if lora else None,
                medium=self.medium,
                lora_name=lora.name if lora else None,
                extra_keys=_utils.to_event_extra_keys(extra_keys),
                group_idx=group_id,
                session_id=request.session_id,
                **lookahead,
            )
        )

    def _extra_keys(self, request: Request, start: int, end: int, first_mm_feature: int) -> Any:
        """What besides its tokens a block's hash covers, over the same window as the hash."""
        if n := self.num_hash_lookahead_tokens:
            return _utils.generate_lookahead_block_hash_extra_keys(
                request, start, end, end + n, first_mm_feature
            )
        return _utils.generate_block_hash_extra_keys(request, start, end, first_mm_feature)


# Installation.

# Attributes of vLLM's pool that its managers, its connectors and its own methods use. A name that
# is missing here means a vLLM whose pool does something that this one does not know.
_KNOWN_ATTRIBUTES = frozenset(
    [
        "get_cached_block",
        "cache_full_blocks",
        "emit_cached_block_events",
        "cache_partial_block",
        "move_block_hashes",
        "get_new_blocks",
        "unpin_blocks",
        "touch",
        "is_block_writable",
        "free_blocks",
        "evict_blocks",
        "reset_prefix_cache",
        "get_num_free_blocks",
        "get_usage",
        "take_events",
        "_generate_event_extra_keys",
        "_lookahead_token_ids",
        "_build_block_stored_event",
        "_get_partial_block_hash",
        "_get_partial_block_parent_hash_and_start",
        "_remove_cached_block_hashes",
        "_emit_block_removed_events",
        "_insert_block_hash",
        "_notify_reuse",
        "_maybe_evict_cached_block",
    ]
)
_KNOWN_ARGUMENTS = frozenset(
    [
        "self",
        "num_gpu_blocks",
        "enable_caching",
        "hash_block_size",
        "enable_kv_cache_events",
        "metrics_collector",
        "num_hash_lookahead_tokens",
        "medium",
    ]
)
_KNOWN_FIELDS = frozenset(
    [
        "block_id",
        "ref_cnt",
        "pool",
        "_block_hash",
        "_block_hash_num_tokens",
        "prev_free_block",
        "next_free_block",
        "is_null",
    ]
)


def unsupported_reason(vllm: Vllm) -> str | None:
    """Why vLLM's own pool must stay, or None."""
    tested = [version.rpartition(".")[0] + "." for version in TESTED_VERSIONS]
    if not vllm.version.startswith(tuple(tested)):
        names = " and ".join(version + "x" for version in tested)
        return f"vLLM {vllm.version} was not tested with it, but {names} were"
    pool = stock(_vllm_block_pool, "BlockPool")
    if pool.__module__ != _vllm_block_pool.__name__:
        return f"vLLM's pool was already replaced by {origin(pool)}"
    unknown = {name for name in vars(pool) if not name.startswith("__")} - _KNOWN_ATTRIBUTES
    code = pool.__init__.__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    unknown |= set(arguments) - _KNOWN_ARGUMENTS
    unknown |= set(_utils.KVCacheBlock.__dataclass_fields__) - _KNOWN_FIELDS
    if unknown:
        return f"vLLM's pool has what this one does not know: {', '.join(sorted(unknown))}"
    return None


def patches(vllm: Vllm) -> list[Patch]:
    """Puts this pool wherever vLLM imported its own; none, and one warning, where it must stay.

    Pools that exist already stay as they are, and so do vLLM's subclasses of its pool.
    """
    reason = unsupported_reason(vllm)
    if reason is not None:
        report.once(logging.WARNING, f"kvplan leaves vLLM's block pool in place: {reason}")
        return []
    importlib.import_module("vllm.v1.core.kv_cache_coordinator")  # makes HiSparse's host pool

    return [Patch(_vllm_block_pool, "BlockPool", BlockPool)]
