"""Qwen4-Exp: gated delta networks, sparse attention with indexer caches, n-gram convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan import specs
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.linear_attention import (
    FLASHINFER_CHECKPOINT,
    uses_flashinfer_prefill,
)
from kvplan.offline.models.families.states import (
    gated_delta_shapes,
    short_conv_shapes,
    state_dtypes,
)
from kvplan.offline.models.layers import CustomLayer, Layer, ModelLayers, StateLayer
from kvplan.offline.models.parallel import local_kv_heads
from kvplan.offline.packing import get_kv_quant_mode, storage_dtype

_LINEAR = "linear_attention"
_ATTENTION = ("qwen_sparse_attention", "indexed_attention")
_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3")


def qwen4_exp(context: FamilyContext) -> ModelLayers:
    """Linear layers, some with an n-gram convolution, and an attention layer every few layers.

    Mirrors vllm/models/qwen4_exp/nvidia/model.py::Qwen4ExpDecoderLayer (0.33).
    """
    text, options = context.text, context.options
    kinds = text.layer_types(text.num_layers)
    if kinds is None or any(kind not in (_LINEAR, *_ATTENTION) for kind in kinds):
        raise ModelError(
            f"{text.where}.layer_types must list {_LINEAR} or {' or '.join(_ATTENTION)} for each "
            "layer"
        )
    if text.get("indexer_n_heads") is not None and options.kv_cache_dtype not in _CACHE_DTYPES:
        raise ModelError(
            f"{context.architecture} is planned with kv_cache_dtype {', '.join(_CACHE_DTYPES)}; "
            f"got {options.kv_cache_dtype!r}"
        )
    with_ngrams = _ngram_layers(context)
    layers = (
        layer
        for i, kind in enumerate(kinds)
        for layer in _layers(context, i, kind, has_ngrams=i in with_ngrams)
    )
    return context.model(layers, is_hybrid=True)


def _ngram_layers(context: FamilyContext) -> set[int]:
    numbers = context.text.own("ple_layer_ids") or []
    if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
        raise ModelError(f"{context.text.where}.ple_layer_ids must be a list of layer numbers")
    return {number - 1 for number in numbers}


def _layers(context: FamilyContext, i: int, kind: str, *, has_ngrams: bool) -> Iterator[Layer]:
    text, options = context.text, context.options
    dtypes = state_dtypes(options, context.dtype)
    aligned = options.enable_prefix_caching is not False
    base = context.name(i).removesuffix(".self_attn.attn")
    if has_ngrams:
        kernel = (text.size("ple_conv_kernel_size") - 1) * text.size("ngram_size") + 1
        channels = text.size("hidden_size") * text.size("hc_count")
        yield StateLayer(
            name=f"{base}.ple",
            index=i,
            shapes=short_conv_shapes(1, channels, kernel, options.num_speculative_tokens),
            dtypes=dtypes[:1],
            mamba_type="short_conv",
            backend="PLE_SHORT_CONV_ATTN",
            checkpoint_alignment=1 if aligned else None,
            tp_replicated=True,
        )
    if kind == _LINEAR:
        exports = uses_flashinfer_prefill(context) and aligned
        yield StateLayer(
            name=f"{base}.linear_attn",
            index=i,
            shapes=gated_delta_shapes(context.tp, text, options.num_speculative_tokens),
            dtypes=dtypes,
            mamba_type="gdn_attn",
            checkpoint_alignment=FLASHINFER_CHECKPOINT if exports else None,
        )
    elif text.get("indexer_n_heads") is None:
        yield context.attention(i, name=f"{base}.self_attn.attn")
    else:
        yield from _sparse_attention(context, i, f"{base}.self_attn")


def _sparse_attention(context: FamilyContext, i: int, base: str) -> Iterator[CustomLayer]:
    """A ring of the open group's keys, a compressed key for each group, and the layer's own cache.

    Mirrors vllm/models/qwen4_exp/common/qsa_cache.py and nvidia/qsa.py (0.33).
    """
    text = context.text
    ratio, key_size = text.size("indexer_compress_ratio"), text.size("indexer_head_dim")
    span = ratio + context.options.num_speculative_tokens
    heads, head_size = local_kv_heads(text.num_kv_heads, context.tp), text.head_size
    keys: dict[str, Any] = {"head_size": key_size, "dtype": context.dtype, "is_final": True}
    state, size = "QWEN4_EXP_EXP_QSA_STATE", -(-span // ratio) * ratio
    raw, compressed = f"{base}.indexer.raw_key_cache", f"{base}.indexer.compressed_key_cache"
    yield CustomLayer.of(
        raw, i, state, specs.CircularBufferSpec, block_size=size, head_size_v=0, **keys
    )
    yield CustomLayer.of(
        compressed, i, state, specs.MLAAttentionSpec, tokens_per_state=ratio, **keys
    )

    def own(resolution: Any) -> specs.KVCacheSpec:
        cache_dtype = resolution.named_cache_dtype(f"{base}.attn")
        return specs.FullAttentionSpec(
            block_size=resolution.block_size,
            num_kv_heads=heads,
            head_size=head_size,
            dtype=storage_dtype(cache_dtype, resolution.dtype),
            kv_quant_mode=get_kv_quant_mode(cache_dtype),
        )

    name, backend = f"{base}.attn", "QWEN4_EXP_QSA_TRITON"
    yield CustomLayer(name=name, index=i, backend=backend, build=own, is_final=True)
