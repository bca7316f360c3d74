"""KV cache planner and block pool for large language model servers."""

try:
    from kvplan import _core
except ImportError as error:
    from pathlib import Path

    from kvplan._source_tree import installed_core

    _installed = installed_core(Path(__file__).parent)
    if _installed is None:
        raise ImportError(
            "kvplan's compiled module kvplan._core is missing or was built for another Python; "
            f"reinstall kvplan (in the source tree: pip install .) ({error})"
        ) from error
    __path__.append(str(_installed))
    from kvplan import _core  # noqa: F401

from kvplan import _moved, builder, config, planning, specs
from kvplan._core import (
    BlockPool,
    BlockPoolError,
    BlockPoolEvent,
    CacheGroup,
    CacheManager,
    DeviceError,
    Frontier,
    GroupingPoint,
    GroupReport,
    InconsistentSpec,
    InvalidArgument,
    LayoutError,
    MergeError,
    NotEnoughMemory,
    Overflow,
    PageSizeError,
    Plan,
    PlanningConfig,
    PlanningError,
    PrefixHit,
    SlicedBlockPool,
    SlicedPoint,
    Unsupported,
    WorkerReport,
    __version__,
    plan,
)
from kvplan.frontier import frontier, sliced_point
from kvplan.planning import *  # noqa: F403
from kvplan.planning import __all__ as _planning_all

__all__ = [
    "BlockPool",
    "BlockPoolError",
    "BlockPoolEvent",
    "CacheGroup",
    "CacheManager",
    "DeviceError",
    "Frontier",
    "GroupReport",
    "GroupingPoint",
    "InconsistentSpec",
    "InvalidArgument",
    "LayoutError",
    "MergeError",
    "NotEnoughMemory",
    "Overflow",
    "PageSizeError",
    "Plan",
    "PlanningConfig",
    "PlanningError",
    "PrefixHit",
    "SlicedBlockPool",
    "SlicedPoint",
    "Unsupported",
    "WorkerReport",
    "__version__",
    "builder",
    "config",
    "frontier",
    "plan",
    "planning",
    "sliced_point",
    "specs",
]
__all__ += _planning_all

_moved.install()
