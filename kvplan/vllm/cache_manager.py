"""vLLM's KV cache manager on kvplan's.

`KVCacheManager` mirrors vllm/v1/core/kv_cache_manager.py::KVCacheManager (0.33 and 0.32): the same
arguments and results. What is called for each request and step is native; the rest is vLLM's own,
over blocks that the native manager keeps. vLLM's coordinator and its managers stay as the place
where connectors read a group's settings and look up prefixes; their own tables are empty.

Where kvplan is not sure to decide as vLLM does, vLLM's own manager runs for the whole engine. That
is decided when the scheduler makes it.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vllm.v1 import request
from vllm.v1.core import (
    kv_cache_coordinator,
    kv_cache_manager,
    kv_cache_utils,
    single_type_kv_cache_manager,
)
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.request import Request, RequestStatus

from kvplan import _core
from kvplan.vllm import block_pool, report
from kvplan.vllm.conversion import spec_classes
from kvplan.vllm.detect import Vllm
from kvplan.vllm.patch import Patch, stock
from kvplan.vllm.sliced.pool import SlicedPool
from kvplan.vllm.verified_cache_manager import VerifiedKVCacheManager

if TYPE_CHECKING:
    from kvplan.vllm.flow import Flow

__all__ = ["KVCacheBlocks", "KVCacheManager", "make_kv_cache_manager", "patches"]

# SHA-256 of the source files whose decisions kvplan makes itself, by version.
_KNOWN_SOURCES = {
    "0.33.0": {
        "kv_cache_manager": "39ae1c1564a034fd59736a92d962bfab5a0af03529e01349b765422dbd5a355d",
        "kv_cache_coordinator": "6bf7583c5fd3fb85a99437eb3d7f3eddd319314ff93737e847d071fda59383e3",
        "single_type_kv_cache_manager": (
            "4b8c34ff759855b94a5a3a4a3a1b4784077f27077539e01509c1b3f72e75455f"
        ),
        "request": "dd7c30bf8b0894dc123a739c299c0133566f8cc075b081e45905f1c29506e69d",
    },
    "0.32.0": {
        "kv_cache_manager": "d08315437c6b07040d1b7e12d7bd7d6e966c976a286f05a9788098cfdd9754c7",
        "kv_cache_coordinator": "efd7193391197c555ebc0c8f2b593a6c4cb5b7da2978cd57414c0b71170f5971",
        "single_type_kv_cache_manager": (
            "fe38816a388bb5b615231f621adc208e3893d20349865d041cc4f646d4d89b0a"
        ),
        "request": "dd7c30bf8b0894dc123a739c299c0133566f8cc075b081e45905f1c29506e69d",
    },
}
_MODULES = (kv_cache_manager, kv_cache_coordinator, single_type_kv_cache_manager, request)

# The manager that vLLM makes for a spec; another one is a plugin's.
_MANAGERS = {
    "FullAttentionSpec": "FullAttentionManager",
    "MLAAttentionSpec": "FullAttentionManager",
    "HiddenStateCacheSpec": "FullAttentionManager",
    "RSWASpec": "RSWAManager",
    "SinkFullAttentionSpec": "SinkFullAttentionManager",
    "SlidingWindowSpec": "SlidingWindowManager",
    "SlidingWindowMLASpec": "SlidingWindowManager",
    "ChunkedLocalAttentionSpec": "ChunkedLocalAttentionManager",
    "MambaSpec": "MambaManager",
    "CrossAttentionSpec": "CrossAttentionManager",
    "CircularBufferSpec": "CircularBufferManager",
}

_vllm_manager = kv_cache_manager.KVCacheManager


class Unsuitable(Exception):
    """Why vLLM's own manager must run."""


class KVCacheBlocks(_core.CacheBlocks, kv_cache_manager.KVCacheBlocks):
    """Blocks by group, as vLLM's KVCacheBlocks; block objects are made when they are asked for."""


class _BlockTables(Mapping[str, list[Any]]):
    """request id -> block objects of one group: what readers of `req_to_blocks` use of it."""

    def __init__(self, manager: KVCacheManager, group: int) -> None:
        self._manager = manager
        self._group = group

    def __getitem__(self, request_id: str) -> list[Any]:
        # vLLM's is a defaultdict.
        return self._manager._block_list(request_id, self._group) or []

    def __contains__(self, request_id: object) -> bool:
        return self._manager._block_list(request_id, self._group) is not None

    def get(self, request_id: str, default: Any = None) -> Any:
        blocks = self._manager._block_list(request_id, self._group)
        return default if blocks is None else blocks

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._manager._request_ids() if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class KVCacheManager(_core.VllmCacheManager, kv_cache_manager.KVCacheManager):
    """See the module's docstring. Made by `make_kv_cache_manager`.

    Raises:
        Unsuitable: vLLM's own manager must run, for the reason it says.
    """

    def __init__(
        self, to_native: Callable[[Any], Any], vllm: Vllm, *args: Any, **kwargs: Any
    ) -> None:
        _vllm_manager.__init__(self, *args, **kwargs)
        given = inspect.signature(_vllm_manager).bind(*args, **kwargs)
        given.apply_defaults()
        options = dict(given.arguments)
        config = options.pop("kv_cache_config")
        _require_known(self, config, vllm)
        slices = _slices_of(config)
        if slices:
            # Nobody has used the one that vLLM's coordinator made.
            self.block_pool = self.coordinator.block_pool = SlicedPool(self, config.num_blocks)
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        groups = _core.vllm_cache_groups(
            [to_native(spec) for spec in specs],
            [group.is_eagle_group for group in config.kv_cache_groups],
            [specs.index(spec) for spec in specs],
            slices,
        )
        options |= {
            "num_blocks": config.num_blocks,
            "retention_interval": config.prefix_cache_retention_interval,
            "needs_zeroing": config.needs_kv_cache_zeroing,
        }
        self._start(
            self.block_pool,
            groups,
            options,
            KVCacheBlocks,
            frozenset((RequestStatus.WAITING, RequestStatus.PREEMPTED)),
            vars(kv_cache_utils),
            Request,
        )
        self._require_same_settings()
        self._put_into_coordinator()

    def _require_same_settings(self) -> None:
        """Raises Unsuitable unless vLLM's coordinator has worked out the same numbers."""
        coordinator = self.coordinator
        vllms = {
            "block_sizes": tuple(m.block_size for m in coordinator.single_type_managers),
            "enable_partial_hits": getattr(coordinator, "enable_partial_hash_hits", False),
            "mamba_shared_prefix_checkpoint": self.mamba_shared_prefix_checkpoint,
            "watermark_blocks": self.watermark_blocks,
        }
        natives = self._settings()
        for name, value in vllms.items():
            if natives[name] != value:
                raise Unsuitable(f"{name} is {natives[name]} to kvplan, {value} to vLLM")

    def _put_into_coordinator(self) -> None:
        coordinator: Any = self.coordinator
        coordinator.get_num_blocks_to_allocate = self._get_num_blocks_to_allocate
        coordinator.new_step_starts = self.new_step_starts
        coordinator.reset_prefix_cache = self._reset_all
        for name in (
            "allocate_new_computed_blocks",
            "allocate_new_blocks",
            "cache_blocks",
            "free",
            "pop_blocks_for_free",
            "remove_skipped_blocks",
        ):
            setattr(coordinator, name, _refusal(name))
        for group, manager in enumerate(coordinator.single_type_managers):
            manager.req_to_blocks = _BlockTables(self, group)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Drops the keys of the blocks. Mirrors KVCacheManager.evict_blocks (0.33)."""
        self.block_pool.evict_blocks(block_ids)
        self._blocks_were_evicted()

    def _reset_all(self) -> bool:
        done = self.block_pool.reset_prefix_cache()
        return done and (isinstance(self.block_pool, SlicedPool) or self._forget_prefix_cache())

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[Any]]:
        """Drain pending copies and the blocks at both their ends, which the caller frees."""
        pairs = self._take_copies()
        copies = [KVCacheBlockCopy(source.block_id, copy.block_id) for source, copy in pairs]
        return copies, [block for pair in pairs for block in pair]

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Drain this step's states for a connector: (group, block id, tokens) by request id."""
        offloads: dict[str, list[tuple[int, int, int]]] = {}
        for request_id, *state in self._take_boundary_states():
            offloads.setdefault(request_id, []).append(tuple(state))
        return offloads

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        """States of a finished request that end at its last token."""
        return self._finalize_partial_tails(
            request.request_id, request.num_computed_tokens, request.num_in_flight_tokens
        )


def _slices_of(config: Any) -> tuple[int, ...]:
    """Blocks that each group cuts from one of the pool; none of them for vLLM's own groups."""
    return getattr(config, "slices", ())


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"coordinator.{name}: the blocks are the native manager's; call KVCacheManager, or set "
            "KVPLAN_CACHE_MANAGER=0"
        )

    return refuse


# Whether kvplan may stand in.


def _require_known(manager: Any, config: Any, vllm: Vllm) -> None:
    """Raises Unsuitable unless kvplan knows all that decides what the manager does."""
    if type(manager.block_pool) is not block_pool.BlockPool:
        raise Unsuitable("the block pool is not kvplan's")
    coordinator = manager.coordinator
    if type(coordinator) not in (
        kv_cache_coordinator.KVCacheCoordinatorNoPrefixCache,
        kv_cache_coordinator.UnitaryKVCacheCoordinator,
        kv_cache_coordinator.HybridKVCacheCoordinator,
    ):
        raise Unsuitable(f"the coordinator is a {type(coordinator).__qualname__}")
    classes = {cls: name for name, cls in spec_classes(vllm.interface).items()}
    for group, single in zip(config.kv_cache_groups, coordinator.single_type_managers, strict=True):
        name = classes.get(type(group.kv_cache_spec), "")
        expected = getattr(single_type_kv_cache_manager, _MANAGERS.get(name, ""), None)
        if expected is None:
            kind = type(group.kv_cache_spec).__qualname__
            raise Unsuitable(f"a group of {kind} is managed by vLLM alone")
        if type(single) is not expected or single.block_pool is not manager.block_pool:
            raise Unsuitable(f"a plugin's {type(single).__qualname__} manages {name}")
        if name == "MambaSpec" and manager.enable_caching and vllm.before_033:
            raise Unsuitable("vLLM 0.32 caches Mamba states by rules of its own")


def _source_digest(module: ModuleType) -> str:
    return hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()


def unsupported_reason(vllm: Vllm) -> str | None:
    """Why this vLLM's own manager must stay, or None."""
    version = vllm.version
    known = _KNOWN_SOURCES.get(version)
    if known is None:
        return f"vLLM {version} was not tested with it, but {' and '.join(_KNOWN_SOURCES)} were"
    for module in _MODULES:
        name = module.__name__.rpartition(".")[2]
        if _source_digest(module) != known[name]:
            return f"{name}.py is not that of vLLM {version}"
        for cls in vars(module).values():
            if not isinstance(cls, type) or cls.__module__ != module.__name__:
                continue
            if issubclass(cls, (tuple, enum.Enum)):  # their methods come from elsewhere
                continue
            for attribute, value in vars(cls).items():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                code = getattr(function, "__code__", None)
                # What dataclasses make comes from strings, but for this one.
                if code is None or attribute == "__repr__":
                    continue
                if code.co_filename not in (module.__file__, "<string>"):
                    return f"{cls.__name__}.{attribute} was replaced"
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
    if stock(scheduler, "KVCacheManager") is not _vllm_manager:
        return "another plugin has put its own into the scheduler"
    return None


def _step_aside(reason: str) -> None:
    report.cache_manager(f"vLLM: {reason}")
    report.once(logging.WARNING, f"kvplan leaves vLLM's KV cache manager in place: {reason}")


def make_kv_cache_manager(
    to_native: Callable[[Any], Any], verify: bool, vllm: Vllm, *args: Any, **kwargs: Any
) -> Any:
    """The manager of an engine: kvplan's where it may stand in for vLLM's, else vLLM's.

    to_native: makes kvplan's object for a spec of vLLM's. verify: vLLM's, with kvplan's beside it
    where that could be made. A config with slices has no other manager than kvplan's.
    """
    sliced = _slices_of(kwargs.get("kv_cache_config", args[0] if args else None))
    try:
        manager: Any = KVCacheManager(to_native, vllm, *args, **kwargs)
        if verify and not sliced:
            manager = VerifiedKVCacheManager(manager, *args, **kwargs)
    except Exception as error:
        if sliced:  # the workers' caches are cut already
            raise
        # An error that is vLLM's own comes again here.
        vllms = _vllm_manager(*args, **kwargs)
        reason = str(error) if isinstance(error, Unsuitable) else repr(error)
        _step_aside(reason)
        return vllms
    report.cache_manager("kvplan")
    return manager


def patches(flow: Flow) -> list[Patch]:
    """Puts kvplan's manager where vLLM's scheduler makes its own.

    None, and one warning, if this vLLM is not one that is known.
    """
    reason = unsupported_reason(flow.vllm)
    if reason is not None:
        _step_aside(reason)
        return []

    def make(*args: Any, **kwargs: Any) -> Any:
        return make_kv_cache_manager(
            flow.planner.to_native, bool(flow.verify), flow.vllm, *args, **kwargs
        )

    # What others subclass or make themselves stays vLLM's.
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
    return [Patch(scheduler, "KVCacheManager", make, only_there=True)]
