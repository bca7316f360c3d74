"""DeepSeek V4: a sliding window in every layer, compressed latents and indexers in most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    return record_layer(
        name,
        index,
        "DEEPSEEK_SPARSE_SWA",
        text,
        specs.SlidingWindowMLASpec,
        is_draft=is_draft,
        block_size=block_size,
        max_tp_shards=1,
        sliding_window=text.size("sliding_window") + extra_window,
        state_content_bytes=record_bytes,
        alignment=alignment,
        block_stride_alignment=block_stride_alignment,
        bounded_replay=bounded_replay,
    )


def record_layer(
    name: str,
    index: int | None,
    backend: str,
    text: ConfigView,
    spec: Callable[..., Any],
    *,
    is_draft: bool = False,
    is_final: bool = False,
    block_size: int | None = None,
    **fields: Any,
) -> CustomLayer:
    """Packed records of a layer's heads; without a block size, that of the model's blocks."""
    head_size = text.size("head_dim")

    def build(resolution: Any) -> Any:
        cache_dtype = packed_cache_dtype(resolution.options.kv_cache_dtype)
        return spec(
            block_size=block_size or resolution.block_size,
            num_kv_heads=1,
            head_size=head_size,
            dtype="uint8",
            cache_dtype_str=cache_dtype,
            kv_quant_mode=get_kv_quant_mode(cache_dtype),
            model_version="deepseek_v4",
            **fields,
        )

    return CustomLayer(
        name=name, index=index, is_draft=is_draft, backend=backend, build=build, is_final=is_final
    )


def _compressor_layer(name: str, index: int, head_size: int, ratio: int) -> CustomLayer:
    """Partial sums of the group of tokens that is being compressed; ratio 4 keeps two groups.

    Mirrors vllm/models/deepseek_v4/compressor.py::CompressorStateCache (0.33).
    """
    groups = 2 if ratio == 4 else 1
    return CustomLayer.of(
        name,
        index,
        "CompressorBackend",
        specs.SlidingWindowMLASpec,
        block_size=_COMPRESSOR_BLOCK[ratio],
        max_tp_shards=1,
        head_size=2 * groups * head_size,
        dtype="float32",
        sliding_window=groups * ratio,
        alignment=DEEPSEEK_V4_PAGE_ALIGNMENT,
    )


def deepseek_v4(context: FamilyContext) -> ModelLayers:
    """Every cache of every layer, in vLLM's order."""
    text = context.text
    num_layers = text.num_layers
    ratios = compression_ratios(text, num_layers)
    layers = _layers(context, ratios[:num_layers])
    return context.model(layers, uses_mla=True, page_head_size=text.size("head_dim"))


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
            yield key_layer(
                f"{name}.indexer.k_cache",
                i,
                "DEEPSEEK_V4_INDEXER",
                indexer_head_size(text),
                tokens_per_state=ratio,
                alignment=DEEPSEEK_V4_PAGE_ALIGNMENT,
            )
            yield _compressor_layer(
                f"{name}.indexer.compressor.state_cache", i, text.size("index_head_dim"), ratio
            )
        yield window_layer(f"{name}.swa_cache", i, text)
        yield record_layer(
            name,
            i,
            "FLASHMLA_SPARSE_DSV4",
            text,
            specs.MLAAttentionSpec,
            max_tp_shards=1,
            tokens_per_state=ratio,
            alignment=DEEPSEEK_V4_PAGE_ALIGNMENT,
            state_content_bytes=DEEPSEEK_V4_RECORD_BYTES,
        )
        yield _compressor_layer(f"{name}.compressor.state_cache", i, text.size("head_dim"), ratio)
