"""Groups against tokens: the groupings of a model that no other beats.

``grouping="compact"`` takes one of these points; see docs/compact.md for the problem it solves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan import _core
from kvplan._core import DEFAULT_MAX_GROUPS, Frontier, GroupingPoint
from kvplan.specs import KVCacheSpec

__all__ = [
    "DEFAULT_MAX_GROUPS",
    "STEP_SECONDS_PER_GROUP",
    "Frontier",
    "GroupingPoint",
    "frontier",
    "to_dict",
]

#: CPU seconds that a group adds to a decoding step of 16 requests, an estimate: measured by
#: benchmarks/compact.py in vLLM 0.32's CPU engine. docs/compact.md says with what.
STEP_SECONDS_PER_GROUP = 100e-6

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
