"""An independent check of a finished plan: broken rules instead of exceptions.

The native checker shares no code with the planner. It knows what a KV cache must be: every layer
of a worker in one group and one tensor, no byte that two pages need at the same time, every page
inside the buffer, strides aligned, nothing left unused but alignment, all workers agreed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan import _core

if TYPE_CHECKING:
    from kvplan._core import Plan

__all__ = ["Violation", "check_kv_cache_configs", "check_plan"]


class Violation(NamedTuple):
    """A broken rule of the contract.

    ``rule`` is one of ``numbers``, ``overflow``, ``one_group``, ``one_tensor``, ``one_shape``,
    ``inside_buffer``, ``pages_disjoint`` (within a group), ``blocks_disjoint`` (pages of different
    blocks, whatever their groups), ``aligned_stride``, ``equal_sizes``, ``budget``, ``no_gaps``,
    ``workers_agree``; ``worker`` is the index of the worker where it shows.
    """

    rule: str
    worker: int
    message: str


def check_plan(plan: Plan, *, max_violations: int = 16) -> list[Violation]:
    """Check a plan of :func:`kvplan.plan`.

    One worker of each pipeline stage stands for its tensor-parallel ranks. Stages whose groups a
    builder places are left out.

    Returns the first broken rules, at most ``max_violations``; an empty list for a correct plan.
    """
    return [Violation(*v) for v in plan._violations(max_violations)]


def check_kv_cache_configs(
    configs: Sequence[Any],
    kv_cache_specs: Sequence[Mapping[str, Any]],
    layout: Any,
    *,
    available_memory: Sequence[int] | None = None,
    no_gaps: bool = True,
    allow_foreign_layers: bool = False,
    max_violations: int = 16,
) -> list[Violation]:
    """Check what the workers were told, with kvplan's objects or vLLM's.

    Args:
        configs: a ``KVCacheConfig`` for each worker.
        kv_cache_specs: each worker's layers. Only their names are used: the page of a layer is
            that of its group's spec.
        layout: a layout's name or enumerator, e.g. ``"LBNHC"``.
        available_memory: bytes of each worker; without it, sizes are not compared with memory.
        no_gaps: also report bytes that no group uses.
        allow_foreign_layers: leave out tensors that name layers of other workers, which vLLM 0.33
            makes for a pipeline stage without layers of a group.
        max_violations: where to stop.

    Returns the first broken rules; an empty list for a correct placement. Raises ``ValueError``
    where the arguments do not belong together.
    """
    if len(configs) != len(kv_cache_specs):
        raise ValueError(f"{len(configs)} configs for {len(kv_cache_specs)} workers")
    if available_memory is not None and len(available_memory) != len(configs):
        raise ValueError(f"{len(available_memory)} memory sizes for {len(configs)} workers")
    specs = _SpecNumbers()
    workers = []
    for index, (config, layers) in enumerate(zip(configs, kv_cache_specs, strict=True)):
        memory = None if available_memory is None else available_memory[index]
        workers.append(_worker(config, layers, memory, specs))
    found = _core.check_placement(
        getattr(layout, "name", layout), workers, no_gaps, allow_foreign_layers, max_violations
    )
    return [Violation(*v) for v in found]


class _SpecNumbers:
    """Equal specs get equal numbers, and the page of each spec is asked for once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._pages: dict[int, tuple[Any, tuple[int, ...]]] = {}

    def number(self, spec: Any) -> int | None:
        """None for a group with a spec for each layer: a stage holds only its own layers'."""
        if hasattr(spec, "kv_cache_specs"):
            return None
        return self._numbers.setdefault(spec, len(self._numbers))

    def page(self, spec: Any) -> tuple[int, ...]:
        """Heads, states, content bytes, page bytes and stride alignment."""
        known = self._pages.get(id(spec))
        if known is None:
            known = self._pages[id(spec)] = (spec, _page_shape(spec))
        return known[1]


def _page_shape(spec: Any) -> tuple[int, ...]:
    page = spec.page_size_bytes
    alignment = spec.get_block_stride_alignment()
    if getattr(spec, "has_layer_views", True):
        return spec.num_heads, spec.num_states, spec.state_content_size_bytes, page, alignment
    return 1, 1, page, page, alignment


def _worker(
    config: Any, own_layers: Mapping[str, Any], memory: int | None, specs: _SpecNumbers
) -> tuple[Any, ...]:
    pages: dict[str, tuple[int, ...]] = {}
    groups = []
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        by_layer = getattr(spec, "kv_cache_specs", None)
        for name in group.layer_names:
            pages[name] = specs.page(spec if by_layer is None else by_layer[name])
        groups.append(
            (
                list(group.layer_names),
                specs.number(spec),
                spec.block_size,
                group.is_eagle_group,
                group.host_resident,
                getattr(group, "slices", 1),
            )
        )
    # A layer in no group has no page; the group rule reports it.
    layers = [(name, *pages.get(name, (1, 1, 1, 1, 1))) for name in own_layers]
    tensors = [
        (t.size, list(t.layers), t.layer_stride, t.block_stride, t.offset)
        for t in config.kv_cache_tensors
    ]
    sizes = [t.size for t in config.kv_cache_tensors]
    buffer_bytes = max(set(sizes), key=sizes.count) if sizes else 0
    return config.num_blocks, buffer_bytes, memory, layers, groups, tensors
