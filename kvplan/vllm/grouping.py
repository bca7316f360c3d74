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
from kvplan.vllm.installation import Installation

Sizes = tuple[int | MultipleOf, ...]

_ANY: Sizes = (MultipleOf(1),)


def keywords(
    installed: Installation, vllm_config: Any, kv_cache_specs: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """The keywords of :class:`kvplan.PlanningConfig` for the grouping that was asked for."""
    if not installed.grouping:
        return {}
    return installed.grouping | kernel_block_sizes(vllm_config, kv_cache_specs)


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

    compilation_config = getattr(vllm_config, "compilation_config", None)
    layers = getattr(compilation_config, "static_forward_context", None) or {}
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
