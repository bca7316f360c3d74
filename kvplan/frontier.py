"""Groups against tokens: the groupings of a model that no other beats.

``grouping="compact"`` takes one of these points; see docs/compact.md for the problem it solves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan import _core
from kvplan._core import DEFAULT_MAX_GROUPS, Frontier, GroupingPoint, SlicedPoint
from kvplan.specs import KVCacheSpec

__all__ = [
    "DEFAULT_MAX_GROUPS",
    "STEP_REQUESTS",
    "Frontier",
    "GroupingPoint",
    "SlicedPoint",
    "frontier",
    "sliced_point",
    "sliced_to_dict",
    "step_seconds",
    "to_dict",
]

#: Decoding requests for which the price of a step is shown.
STEP_REQUESTS = 64

# CPU seconds a group and step, by benchmarks/compact.py: the worker's block table rows and
# attention metadata; scheduling a request with vLLM's KV cache manager; scheduling with kvplan's.
_WORKER_SECONDS = 40e-6
_VLLM_SECONDS_PER_REQUEST = 1.2e-6
_KVPLAN_SECONDS = 2e-6

_POINT_FIELDS = (
    "num_groups",
    "max_layers_per_group",
    "bytes_per_block",
    "request_blocks",
    "request_bytes",
    "min_request_bytes",
    "bound_bytes",
    "is_vllm",
)
_SLICED_FIELDS = (
    "num_groups",
    "max_layers_per_group",
    "bytes_per_block",
    "request_bytes",
    "request_blocks",
    "min_request_bytes",
    "exact",
)


def frontier(config: Any, kv_cache_specs: Sequence[dict[str, KVCacheSpec]]) -> Frontier:
    """The groupings of a model of which none takes fewer bytes with as few groups.

    Args:
        config: A `PlanningConfig` or anything shaped like a ``VllmConfig``. Of it count the
            layout, the in-flight tokens, `reference_model_len` (tokens; else `max_model_len`), the
            kernel block sizes and `max_groups`, which decides the point called ``chosen``.
        kv_cache_specs: For each worker, its layers' names and specs.

    Returns:
        Points in bytes of one request of the reference length, fewest groups first; vLLM's own
        grouping and the bytes without any padding beside them.

    Raises:
        InvalidArgument: A value is out of range.
        PageSizeError: Neither vLLM nor kvplan can group the model in this layout.
    """
    return _core.frontier(config, kv_cache_specs)


def sliced_point(
    config: Any,
    kv_cache_specs: Sequence[dict[str, KVCacheSpec]],
    available_memory: Sequence[int] | None = None,
) -> SlicedPoint | None:
    """What ``grouping="sliced"`` makes of a model; docs/sliced.md says how.

    Args:
        config: As for :func:`frontier`; the layout is to be block-outermost. `min_large_blocks`
            bounds the block.
        kv_cache_specs: For each worker, its layers' names and specs.
        available_memory: Bytes for the KV cache of each worker. Without it, the smallest pool that
            holds a request of the reference length is assumed.

    Returns:
        The point; None where there is nothing to cut (one kind of cache) or the layout is not
        block-outermost.

    Raises:
        InvalidArgument: A value is out of range.
    """
    return _core.sliced_point(config, kv_cache_specs, available_memory)


def step_seconds(
    num_groups: int, *, manager: str = "kvplan", num_requests: int = STEP_REQUESTS
) -> float:
    """CPU seconds that groups add to a decoding step of vLLM, an estimate: measured in the CPU
    engine of 0.32 (docs/compact.md).

    manager: whose KV cache manager the scheduler has, "kvplan" or "vllm".

    Raises:
        ValueError: Another manager.
    """
    scheduling = {"kvplan": _KVPLAN_SECONDS, "vllm": _VLLM_SECONDS_PER_REQUEST * num_requests}
    if manager not in scheduling:
        raise ValueError(f"manager is {manager!r}; known are {', '.join(scheduling)}")
    return num_groups * (_WORKER_SECONDS + scheduling[manager])


def sliced_to_dict(point: SlicedPoint) -> dict[str, Any]:
    """The sliced point as plain data for JSON."""
    return {name: getattr(point, name) for name in _SLICED_FIELDS} | {"slices": list(point.slices)}


def to_dict(curve: Frontier) -> dict[str, Any]:
    """The curve as plain data for JSON."""

    def point(p: GroupingPoint) -> dict[str, Any]:
        return {name: getattr(p, name) for name in _POINT_FIELDS}

    return {
        "reference_model_len": curve.reference_model_len,
        "points": [point(p) for p in curve.points],
        "vllm": None if curve.vllm is None else point(curve.vllm),
        "chosen": point(curve.chosen),
        "lower_bound_bytes": curve.lower_bound_bytes,
        "exact": curve.exact,
    }
