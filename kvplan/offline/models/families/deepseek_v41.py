"""DeepSeek V4.1: few layers own compressed latents, which the others read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kvplan import specs
from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.deepseek_v4 import (
    packed_cache_dtype,
    record_layer,
    window_layer,
)
from kvplan.offline.models.families.mla import indexer_head_size
from kvplan.offline.models.layers import CustomLayer, Layer, ModelLayers
from kvplan.offline.models.options import ModelOptions

_WINDOW_BLOCK = 32
_NVFP4_RECORD_BYTES = 288
_REPORTED_STATES = 64
_MIN_RING = 8


class _Records:
    """Sizes of DeepSeek-V4.1's records on one GPU: Blackwell keeps smaller ones.

    Mirrors vllm/models/deepseek_v41/attention.py::DeepseekV4Attention (0.33).
    """

    def __init__(self, options: ModelOptions) -> None:
        self.reported = options.deepseek_v41_reported_blocks
        self.is_blackwell = options.device_capability[0] == 10
        cache_dtype = packed_cache_dtype(options.kv_cache_dtype)
        if cache_dtype == "nvfp4_ds_mla" and not self.is_blackwell:
            raise ModelError(
                "kv_cache_dtype nvfp4_ds_mla needs compute capability 10 (Blackwell); got "
                f"{options.device_capability[0]}.{options.device_capability[1]}"
            )
        self.window_bytes = 528 if self.is_blackwell else 584
        self.latent_bytes = (
            _NVFP4_RECORD_BYTES if cache_dtype == "nvfp4_ds_mla" else self.window_bytes
        )
        self.alignment = 512 if self.is_blackwell else 576
        self.window_stride = (
            math.lcm(self.window_bytes, self.latent_bytes) if self.is_blackwell else None
        )


def _ring_layer(name: str, index: int, text: ConfigView, options: ModelOptions) -> CustomLayer:
    """Rows of the group of tokens that is being compressed, one ring per request.

    Mirrors vllm/models/deepseek_v41/compressor.py::CompressorStateCache (0.33).
    """
    rows = options.num_speculative_tokens + 2
    return CustomLayer.of(
        name,
        index,
        "CompressorBackend",
        specs.CircularBufferSpec,
        block_size=max(_MIN_RING, 1 << (rows - 1).bit_length()),
        head_size=2 * text.size("head_dim"),
        head_size_v=0,
        dtype="float32",
    )


def deepseek_v41_window(
    name: str, index: int | None, text: ConfigView, options: ModelOptions, *, is_draft: bool = False
) -> CustomLayer:
    """The sliding-window records of one layer or draft stage."""
    records = _Records(options)
    reported = options.deepseek_v41_reported_blocks
    return window_layer(
        name,
        index,
        text,
        block_size=_REPORTED_STATES if reported else _WINDOW_BLOCK,
        record_bytes=records.window_bytes,
        alignment=records.alignment,
        block_stride_alignment=records.window_stride,
        bounded_replay=not reported,
        extra_window=_REPORTED_STATES if reported and is_draft else 0,
        is_draft=is_draft,
    )


def deepseek_v41(context: FamilyContext) -> ModelLayers:
    """Every cache of every layer, in vLLM's order.

    Raises:
        ModelError: If the layer lists contradict each other.
    """
    text = context.text
    num_layers = text.num_layers
    ratios = text.sizes("compress_ratios", num_layers)
    sources = text.sizes("kv_source_layer_ids")
    for source in sources:
        if source >= num_layers or ratios[source] < 1:
            raise ModelError(
                f"{text.where}.kv_source_layer_ids names layer {source}, which is not one of the "
                f"{num_layers} layers or does not compress (its ratio is "
                f"{ratios[source] if source < len(ratios) else 'absent'})"
            )
    layers = _layers(context, ratios, set(sources))
    return context.model(layers, uses_mla=True, page_head_size=text.size("head_dim"))


def _layers(context: FamilyContext, ratios: list[int], sources: set[int]) -> Iterator[Layer]:
    text, options = context.text, context.options
    records = _Records(options)
    for i in range(text.num_layers):
        name = context.name(i)
        if i in sources:
            common: dict[str, Any] = {
                "block_size": _REPORTED_STATES * ratios[i] if records.reported else None,
                "is_final": records.reported,
                "tokens_per_state": ratios[i],
                "alignment": records.alignment,
            }
            yield record_layer(
                name,
                i,
                "FLASHMLA_SPARSE_DSV41",
                text,
                specs.MLAAttentionSpec,
                state_content_bytes=records.latent_bytes,
                **common,
            )
            yield CustomLayer.of(
                f"{name}.indexer.k_cache",
                i,
                "DEEPSEEK_V41_INDEXER",
                specs.MLAAttentionSpec,
                head_size=indexer_head_size(text),
                dtype="uint8",
                **common,
            )
        yield deepseek_v41_window(f"{name}.swa_cache", i, text, options)
        if i in sources and ratios[i] > 1 and not options.deepseek_v41_reported_blocks:
            yield _ring_layer(f"{name}.compressor.state_cache", i, text, options)
