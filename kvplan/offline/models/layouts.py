"""The KV cache layout a model's backends and specs lead to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kvplan.offline.models.errors import ModelError

_ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}
_ALL = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
_PREFERENCE = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")
_BLOCK_COMPACT = frozenset({"LBHNC", "LBNHC", "BLHNC", "BLNHC"})
_BLOCK_OUTERMOST = frozenset({"BLHNC", "BLNHC", "BHLNC"})


def supported_layouts(declared: Sequence[tuple[str, ...]]) -> list[str]:
    """Layouts that every backend takes, most preferred first.

    Args:
        declared: Layouts of every backend; an empty tuple takes any.

    Mirrors vllm/v1/attention/backends/utils.py::get_supported_kv_cache_layouts (0.33).
    """
    lists = [layouts for layouts in declared if layouts] or [_PREFERENCE]
    if all(layouts == lists[0] for layouts in lists):
        return list(lists[0])
    votes = Counter(layouts[0] for layouts in lists)
    common = set(lists[0]).intersection(*map(set, lists[1:]))
    candidates = sorted((n for n in _ALL if n in common), key=lambda n: -votes[n])
    if not candidates:
        raise ModelError(f"no KV cache layout is in every backend's set: {lists}")
    return candidates


def resolve_layout(candidates: Sequence[str], specs: Iterable[Any], wanted: str | None) -> str:
    """The layout of the whole model.

    Mirrors vllm/v1/attention/backends/utils.py::resolve_kv_cache_layout (0.33).

    Raises:
        ModelError: If the wanted layout, or every layout, cannot express the model.
    """
    specs = list(specs)
    candidates = list(candidates)
    shapes = {
        (
            getattr(s, "num_head_slots", None) or getattr(s, "num_kv_heads", 1),
            s.num_states,
            s.page_size_bytes,
        )
        for s in specs
    }
    if len(shapes) > 1:
        candidates = [name for name in candidates if name in _BLOCK_COMPACT]
    attention = [s for s in specs if hasattr(s, "num_kv_heads")]
    sharding = {s.dcp_sharded for s in attention if type(s).__name__ != "CircularBufferSpec"}
    if len(sharding) > 1 and len({s.page_size_bytes for s in specs}) > 1:
        candidates = [name for name in candidates if name in _BLOCK_OUTERMOST]
    if not candidates:
        raise ModelError("the model's layers need a layout that its attention backends do not take")
    if wanted is None:
        return candidates[0]
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in _ALL:
        raise ModelError(f"unknown KV cache layout {wanted!r}; known: {', '.join(_ALL)}")
    if wanted not in candidates:
        raise ModelError(
            f"KV cache layout {wanted} cannot express this model; layouts that can: "
            f"{', '.join(candidates)}"
        )
    return wanted
