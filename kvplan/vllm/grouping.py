"""Another grouping than vLLM's, and what it must know of the model's attention backends.

vLLM cuts a large block into blocks that its kernels take, but not one whose page is padded or that
lies between other layers' pages; such a block must be one that the kernels take as it is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

from kvplan.enums import MultipleOf
from kvplan.vllm import report
from kvplan.vllm.sliced import gate

Sizes = tuple[int | MultipleOf, ...]

_ANY: Sizes = (MultipleOf(1),)


def keywords(
    options: dict[str, Any], vllm_config: Any, kv_cache_specs: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """The keywords of :class:`kvplan.PlanningConfig` for the grouping that ``options`` ask for."""
    if not options:
        return {}
    if is_sliced(options):
        return _sliced_keywords(options, vllm_config, kv_cache_specs)
    return options | kernel_block_sizes(vllm_config, kv_cache_specs)


def is_sliced(chosen: dict[str, Any]) -> bool:
    """Whether these keywords ask for slices."""
    return bool(chosen.get("grouping") == "sliced")


def _sliced_keywords(
    options: dict[str, Any], vllm_config: Any, kv_cache_specs: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """With the layout that slices need; none, and one warning, where they cannot run."""
    try:
        gate.require_config(vllm_config)
        gate.require_specs(kv_cache_specs)
        backends = _backends(vllm_config, kv_cache_specs)
        layout = vllm_config.cache_config.get_resolved_kv_cache_layout().name
        layout = gate.block_outermost_layout(layout, backends)
    except gate.Refused as refused:
        warn_not_sliced(refused)
        return {}
    sizes = _ANY
    for backend in backends:
        sizes = common(sizes, _read(backend.get_supported_kernel_block_sizes()))
    return options | _keywords(sizes, ()) | {"kv_cache_layout": layout}


def warn_not_sliced(reason: Exception) -> None:
    """One line for a server that asked for slices and gets vLLM's grouping."""
    report.once(logging.WARNING, f"KVPLAN_GROUPING='sliced' is ignored: {reason}")


def cut(configs: list[Any], slices: tuple[int, ...], chosen: dict[str, Any]) -> list[Any]:
    """The workers' configs with the slices of their groups.

    Raises:
        gate.Refused: a plan that vLLM could not run, or that has nothing to cut.
    """
    from kvplan.vllm.sliced.config import with_slices

    sizes = chosen["attention_kernel_block_sizes"]
    for one in configs:
        gate.require_groups(one.kv_cache_groups, sizes)
    if all(k == 1 for k in slices):
        raise gate.Refused("this model's caches leave nothing to cut")
    return [with_slices(one, slices) for one in configs]


def kernel_block_sizes(
    vllm_config: Any, kv_cache_specs: Iterable[dict[str, Any]]
) -> dict[str, Sizes]:
    """The sizes that all backends of a kind take, as keywords, asked of the layers themselves.

    Where the layers live in other processes, nothing is known, and no block whose size matters to a
    kernel may be enlarged.
    """
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.kv_cache_interface import (
        AttentionSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
    )

    layers = _layers(vllm_config)
    attention, mla = _ANY, _ANY
    for specs in kv_cache_specs:
        for name, spec in specs.items():
            if not isinstance(spec, AttentionSpec):
                continue
            layer = layers.get(name)
            if not isinstance(layer, AttentionLayerBase):
                _log_unknown(name)
                return _keywords((), ())
            sizes = _read(layer.get_attn_backend().get_supported_kernel_block_sizes(spec))
            if isinstance(spec, (MLAAttentionSpec, SlidingWindowMLASpec)):
                mla = common(mla, sizes)
            else:
                attention = common(attention, sizes)
    return _keywords(attention, mla)


def _layers(vllm_config: Any) -> dict[str, Any]:
    """The layers that live in this process."""
    compilation_config = getattr(vllm_config, "compilation_config", None)
    return getattr(compilation_config, "static_forward_context", None) or {}


def _backends(vllm_config: Any, kv_cache_specs: Iterable[dict[str, Any]]) -> list[Any]:
    """The attention backends of all layers; of kinds, and on the device, that slices take."""
    layers = _layers(vllm_config)
    backends: dict[Any, None] = {}
    for name in (name for specs in kv_cache_specs for name in specs):
        if name in layers:
            backends[layers[name].get_attn_backend()] = None
        else:
            from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

            # In a worker's process, and the CPU platform has no other.
            backends[CPUAttentionBackend] = None
    return list(backends)


def _keywords(attention: Sizes, mla: Sizes) -> dict[str, Sizes]:
    return {"attention_kernel_block_sizes": attention, "mla_kernel_block_sizes": mla}


def _log_unknown(name: str) -> None:
    report.once(
        logging.INFO,
        f"Layer {name} is not in this process, so the block sizes that its attention backend takes "
        "are not known: compact grouping enlarges no block that kernels read whole",
    )


def _read(sizes: Iterable[Any]) -> Sizes:
    """The sizes that vLLM names, with kvplan's ``MultipleOf``."""
    return tuple(s if isinstance(s, int) else MultipleOf(s.base) for s in sizes)


def common(first: Sizes, second: Sizes) -> Sizes:
    """The sizes that both take."""
    both: dict[int | MultipleOf, None] = {}
    for a in first:
        for b in second:
            size = _common_size(a, b)
            if size is not None:
                both[size] = None
    return tuple(both)


def _common_size(a: int | MultipleOf, b: int | MultipleOf) -> int | MultipleOf | None:
    if isinstance(a, MultipleOf):
        if isinstance(b, MultipleOf):
            return MultipleOf(math.lcm(a.base, b.base))
        return b if b % a.base == 0 else None
    if isinstance(b, MultipleOf):
        return a if a % b.base == 0 else None
    return a if a == b else None
