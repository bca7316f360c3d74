"""DeepSeek V4: a sliding window in every layer, compressed latents and indexers in most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan import specs
from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.mla import indexer_head_size, key_layer
from kvplan.offline.models.layers import CustomLayer, Layer, ModelLayers
from kvplan.offline.packing import (
    DEEPSEEK_V4_PAGE_ALIGNMENT,
    DEEPSEEK_V4_RECORD_BYTES,
    get_kv_quant_mode,
)

_WINDOW_BLOCK = 64
#: Tokens of a compressor-state block, by compression ratio: the states share the KV pages.
_COMPRESSOR_BLOCK = {4: 4, 128: 8}
_LAYER_TYPE_RATIO = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def compression_ratios(text: ConfigView, num_layers: int) -> list[int]:
    """Tokens per stored state of every layer; 0 for layers with the window only.

    Reads ``compress_ratios``, or ``layer_types`` with ``compress_rates``.

    Raises:
        ModelError: If the list contradicts the number of layers.
    """
    if isinstance(text.own("compress_ratios"), list):
        return text.sizes("compress_ratios", num_layers)
    kinds = text.layer_types(num_layers)
    if kinds is None:
        head = ["heavily_compressed_attention"] * min(num_layers, 2)
        rest = range(max(num_layers - 2, 0))
        kinds = head + [
            "compressed_sparse_attention" if i % 2 else "heavily_compressed_attention" for i in rest
        ]
    rates = text.own("compress_rates")
    rates = rates if isinstance(rates, dict) else _LAYER_TYPE_RATIO
    return [int(rates.get(kind, 0)) for kind in kinds]


def packed_cache_dtype(wanted: str) -> str:
    """The record format for a ``--kv-cache-dtype`` on the FlashMLA backend.

    Raises:
        ModelError: If the backend has no such record.
    """
    if wanted in ("auto", "fp8"):
        return "fp8_ds_mla"
    if wanted.endswith("_ds_mla"):
        return wanted
    raise ModelError(
        f"DeepSeek-V4's packed KV records are fp8; kv_cache_dtype {wanted!r} is not supported "
        "(use auto or fp8)"
    )


def window_layer(
    name: str,
    index: int | None,
    text: ConfigView,
    *,
    block_size: int = _WINDOW_BLOCK,
    record_bytes: int = DEEPSEEK_V4_RECORD_BYTES,
    alignment: int = DEEPSEEK_V4_PAGE_ALIGNMENT,
    block_stride_alignment: int | None = None,
    bounded_replay: bool = False,
    extra_window: int = 0,
    is_draft: bool = False,
) -> CustomLayer:
    """The sliding-window records of one layer.

    Mirrors vllm/v1/attention/backends/mla/sparse_swa.py::DeepseekV4SWACache (0.33).
    """
    head_size, window = text.size("head_dim"), text.size("sliding_window")

    def build(resolution: Any) -> Any:
        cache_dtype = packed_cache_dtype(resolution.options.kv_cache_dtype)
        return specs.SlidingWindowMLASpec(
            block_size=block_size,
            num_kv_heads=1,
            max_tp_shards=1,
            head_size=head_size,
            dtype="uint8",
            sliding_window=window + extra_window,
            cache_dtype_str=cache_dtype,
            state_content_bytes=record_bytes,
            alignment=alignment,
            block_stride_alignment=block_stride_alignment,
            model_version="deepseek_v4",
            kv_quant_mode=get_kv_quant_mode(cache_dtype),
            bounded_replay=bounded_replay,
        )

    return CustomLayer(
        name=name, index=index, is_draft=is_draft, backend="DEEPSEEK_SPARSE_SWA", build=build
    )


def _compressed_layer(name: str, index: int, text: ConfigView, ratio: int) -> CustomLayer:
    head_size = text.size("head_dim")

    def build(resolution: Any) -> Any:
        cache_dtype = packed_cache_dtype(resolution.options.kv_cache_dtype)
        return specs.MLAAttentionSpec(
            block_size=resolution.block_size,
            num_kv_heads=1,
            max_tp_shards=1,
            head_size=head_size,
            dtype="uint8",
            tokens_per_state=ratio,
            cache_dtype_str=cache_dtype,
            alignment=DEEPSEEK_V4_PAGE_ALIGNMENT,
            model_version="deepseek_v4",
            kv_quant_mode=get_kv_quant_mode(cache_dtype),
            state_content_bytes=DEEPSEEK_V4_RECORD_BYTES,
        )

    return CustomLayer(name=name, index=index, backend="FLASHMLA_SPARSE_DSV4", build=build)


def _indexer_layer(name: str, index: int, text: ConfigView, ratio: int) -> CustomLayer:
    head_size, backend = indexer_head_size(text), "DEEPSEEK_V4_INDEXER"
    alignment = DEEPSEEK_V4_PAGE_ALIGNMENT
    return key_layer(name, index, backend, head_size, tokens_per_state=ratio, alignment=alignment)


def _compressor_layer(name: str, index: int, head_size: int, ratio: int) -> CustomLayer:
    """Partial sums of the group of tokens that is being compressed; ratio 4 keeps two groups.

    Mirrors vllm/models/deepseek_v4/compressor.py::CompressorStateCache (0.33).
    """
    groups = 2 if ratio == 4 else 1
    state_size = 2 * groups * head_size

    def build(resolution: Any) -> Any:
        return specs.SlidingWindowMLASpec(
            block_size=_COMPRESSOR_BLOCK[ratio],
            num_kv_heads=1,
            max_tp_shards=1,
            head_size=state_size,
            dtype="float32",
            sliding_window=groups * ratio,
            alignment=DEEPSEEK_V4_PAGE_ALIGNMENT,
        )

    return CustomLayer(name=name, index=index, backend="CompressorBackend", build=build)


def deepseek_v4(context: FamilyContext) -> ModelLayers:
    """Every cache of every layer, in vLLM's order."""
    text = context.text
    num_layers = text.num_layers
    ratios = compression_ratios(text, num_layers)
    return ModelLayers(
        layers=tuple(_layers(context, ratios[:num_layers])),
        num_hidden_layers=num_layers,
        uses_mla=True,
        page_kv_heads=1,
        page_head_size=text.size("head_dim"),
        model_type=text.model_type,
    )


def _layers(context: FamilyContext, ratios: list[int]) -> Iterator[Layer]:
    text = context.text
    for i, ratio in enumerate(ratios):
        name = context.name(i)
        if ratio <= 1:
            yield window_layer(f"{name}.swa_cache", i, text)
            continue
        if ratio not in _COMPRESSOR_BLOCK:
            raise ModelError(
                f"{text.where}.compress_ratios[{i}] is {ratio}; DeepSeek-V4 compresses by "
                f"{' or '.join(map(str, _COMPRESSOR_BLOCK))}"
            )
        if ratio == 4:
            yield _indexer_layer(f"{name}.indexer.k_cache", i, text, ratio)
            yield _compressor_layer(
                f"{name}.indexer.compressor.state_cache", i, text.size("index_head_dim"), ratio
            )
        yield window_layer(f"{name}.swa_cache", i, text)
        yield _compressed_layer(name, i, text, ratio)
        yield _compressor_layer(f"{name}.compressor.state_cache", i, text.size("head_dim"), ratio)
