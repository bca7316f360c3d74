"""Inkling: each layer's keys and values, and the states of its four short convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan import specs
from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import CustomLayer, ModelLayers
from kvplan.offline.packing import storage_dtype

_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3")


def inkling(context: FamilyContext) -> ModelLayers:
    """Full and local attention with a sliding window of convolution states beside each.

    Mirrors vllm/models/inkling/nvidia/attention.py::InklingAttention and sconv_swa_attn.py::
    InklingConvState (0.33).
    """
    text = context.text
    if context.options.decode_context_parallel_size > 1:
        raise ModelError(f"{context.architecture} is not planned with decode context parallelism")
    if context.dtype != "bfloat16":
        raise ModelError(
            f"{context.architecture} keeps its convolution states in bfloat16 only; got dtype "
            f"{context.dtype}"
        )
    if context.options.kv_cache_dtype not in _CACHE_DTYPES:
        raise ModelError(
            f"{context.architecture} is planned with kv_cache_dtype {', '.join(_CACHE_DTYPES)}; "
            f"got {context.options.kv_cache_dtype!r}"
        )
    return context.model(_layers(context, text))


def _layers(context: FamilyContext, text: ConfigView) -> Iterator[CustomLayer]:
    local = text.own("local_layer_ids") or []
    if not isinstance(local, list):
        raise ModelError(f"{text.where}.local_layer_ids must be a list of layer numbers")
    for i in range(text.num_layers):
        is_local = i in local
        heads, head_size = text.num_kv_heads, text.head_size
        if is_local:
            heads = text.optional_size("swa_num_key_value_heads", heads)
            head_size = text.optional_size("swa_head_dim", head_size)
        if heads % context.tp:
            raise ModelError(
                f"layer {i} of {context.architecture} has {heads} KV heads, which vLLM divides "
                f"over TP ranks without replication; --tp {context.tp} does not divide them"
            )
        name = context.name(i)
        yield _conv_state(name, i, text, heads, head_size, context.tp)
        yield _attention(name, i, text, heads // context.tp, head_size, is_local=is_local)


def _conv_state(
    name: str, index: int, text: ConfigView, heads: int, head_size: int, tp: int
) -> CustomLayer:
    """Four streams packed head by head: keys, values, and the outputs of attention and MLP."""
    packed = 2 * head_size + 2 * (text.size("hidden_size") // heads)
    kernel = text.optional_size("sconv_kernel_size") or text.optional_size("conv_kernel_size", 4)
    return CustomLayer.of(
        f"{name.removesuffix('.attn')}.conv_state",
        index,
        "INKLING_SCONV_SWA",
        specs.SlidingWindowSpec,
        block_size=kernel,
        num_kv_heads=heads // tp,
        head_size=1 << (packed - 1).bit_length(),
        head_size_v=0,
        dtype="bfloat16",
        sliding_window=kernel,
        is_final=True,
    )


def _attention(
    name: str, index: int, text: ConfigView, heads: int, head_size: int, *, is_local: bool
) -> CustomLayer:
    window = text.optional_size("sliding_window_size", 512)

    def build(resolution: Any) -> specs.KVCacheSpec:
        common = {
            "block_size": resolution.block_size,
            "num_kv_heads": heads,
            "head_size": head_size,
            "dtype": storage_dtype(resolution.cache_dtype, resolution.dtype),
        }
        if is_local:
            return specs.SlidingWindowSpec(sliding_window=window, **common)
        return specs.FullAttentionSpec(**common)

    return CustomLayer(name=name, index=index, backend="FLASH_ATTN", build=build, is_final=True)
