"""Multi-head latent attention: DeepSeek V2 and V3, Kimi K2, and their sparse form with indexers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan import specs
from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import CustomLayer, Layer, MLALayer, ModelLayers

#: The indexer stores fp8 keys with one fp32 scale per this many elements.
_INDEXER_SCALE_GROUP = 128
_FP32_BYTES = 4


def latent_size(text: ConfigView) -> int:
    """Elements of a token's latent and rotary key."""
    return text.size("kv_lora_rank") + text.size("qk_rope_head_dim", minimum=0)


def indexer_head_size(text: ConfigView) -> int:
    """Bytes of one indexer key with its scales."""
    size = text.size("index_head_dim")
    return size + size // _INDEXER_SCALE_GROUP * _FP32_BYTES


def key_layer(
    name: str,
    index: int | None,
    backend: str,
    head_size: int,
    *,
    is_draft: bool = False,
    **fields: Any,
) -> CustomLayer:
    """Keys of `head_size` bytes, whole on every GPU, with these other fields of their spec."""
    fields |= {"max_tp_shards": 1, "head_size": head_size, "dtype": "uint8", "is_draft": is_draft}
    return CustomLayer.of(name, index, backend, specs.MLAAttentionSpec, **fields)


def indexer_layer(
    name: str, index: int | None, text: ConfigView, *, is_draft: bool = False
) -> CustomLayer:
    """The key cache of a layer's indexer.

    Mirrors vllm/model_executor/models/deepseek_v2.py::DeepseekV32IndexerCache (0.33).
    """
    role = specs.SparseCacheRole.INDEXER
    head_size = indexer_head_size(text)
    backend = "DEEPSEEK_V32_INDEXER"
    return key_layer(name, index, backend, head_size, is_draft=is_draft, cache_role=role)


def mla(context: FamilyContext) -> ModelLayers:
    """One latent per layer, and an indexer's keys where the model is sparse."""
    text = context.text
    num_layers = text.num_layers
    if text.get("kv_lora_rank") is None:
        return _without_latent(context)
    head_size = latent_size(text)
    return context.model(
        _layers(context, num_layers, head_size),
        uses_mla=True,
        page_head_size=head_size,
        cache_dtype=_default_cache_dtype(context),
    )


def _default_cache_dtype(context: FamilyContext) -> str:
    """GLM's sparse models keep fp8 latents on Blackwell unless told otherwise.

    Mirrors vllm/model_executor/models/config.py::GlmMoeDsaForCausalLM (0.33).
    """
    is_glm = context.architecture == "GlmMoeDsaForCausalLM"
    return "fp8_e4m3" if is_glm and context.options.device_capability[0] == 10 else "auto"


def _layers(context: FamilyContext, num_layers: int, head_size: int) -> Iterator[Layer]:
    text = context.text
    topk = text.optional_size("index_topk")
    sinks = backend_with_sinks(context)
    per_layer = context.traits.attentions_per_layer
    for i in range(num_layers):
        if topk is None:
            for j in range(per_layer):
                yield MLALayer(name=context.pattern.format(i=i, j=j), index=i, head_size=head_size)
            continue
        name = context.name(i)
        runs_indexer = not _skips_indexer(text, i)
        if runs_indexer:
            yield indexer_layer(f"{name.removesuffix('.attn')}.indexer.k_cache", i, text)
        yield MLALayer(
            name=name,
            index=i,
            head_size=head_size,
            is_sparse=True,
            topk_buffer_width=topk,
            is_index_group_leader=runs_indexer,
            backend_with_sinks=sinks,
        )


def backend_with_sinks(context: FamilyContext) -> str | None:
    """The backend that applies the model's learned sinks where it can run; None without sinks."""
    has_sinks = context.text.own("learnable_sink", True)
    return context.traits.backend_with_sinks if has_sinks else None


def _skips_indexer(text: ConfigView, layer: int) -> bool:
    """Whether a layer reuses the tokens that an earlier layer's indexer selected.

    Mirrors the index-cache rules of vllm/model_executor/models/deepseek_v2.py (0.33).
    """
    kinds = text.own("indexer_types")
    if isinstance(kinds, list) and layer < len(kinds):
        return kinds[layer] == "shared"
    pattern = text.own("index_topk_pattern")
    if isinstance(pattern, str) and layer < len(pattern):
        return pattern[layer] == "S"
    if not text.own("use_index_cache", False):
        return False
    frequency = text.optional_size("index_topk_freq", 1)
    offset = text.optional_size("index_skip_topk_offset", 0, minimum=0)
    return layer > offset and (layer - offset) % frequency != 0


def _without_latent(context: FamilyContext) -> ModelLayers:
    """DeepSeek configs without a latent use plain heads."""
    window = (
        context.root.optional_size("rswa_window") if context.traits.has_reference_window else None
    )
    # Of the backends that are taken as installed, only Triton attends that way.
    backend = None if window is None else "TRITON_ATTN"
    return context.model(
        context.attention(i, rswa_window=window, backend=backend)
        for i in range(context.text.num_layers)
    )
