"""Caches of one MTP layer of each kind of model."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.deepseek_v4 import window_layer
from kvplan.offline.models.families.heterogeneous import mimo_v2_layer
from kvplan.offline.models.families.mla import backend_with_sinks, indexer_layer, latent_size
from kvplan.offline.models.layers import AttentionLayer, Layer, MLALayer, ModelLayers


def like_the_model(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """A latent, with its indexer, where the model has latents; else keys and values."""
    text = context.text
    if not model.uses_mla:
        yield AttentionLayer(
            name=name,
            index=None,
            is_draft=True,
            num_kv_heads=text.num_kv_heads,
            head_size=text.head_size,
        )
        return
    topk = text.optional_size("index_topk")
    if topk is not None:
        indexer = f"{name.removesuffix('.attn')}.indexer.k_cache"
        yield indexer_layer(indexer, None, text, is_draft=True)
    yield MLALayer(
        name=name,
        index=None,
        is_draft=True,
        head_size=latent_size(text),
        backend_with_sinks=backend_with_sinks(context),
        is_sparse=topk is not None,
        topk_buffer_width=topk,
        is_index_group_leader=topk is not None,
    )


def by_layer_types(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """The kind of the model's layer of the same number."""
    text = context.text
    kinds = text.layer_types(text.num_layers)
    slides = kinds is not None and kinds[k] == "sliding_attention"
    yield AttentionLayer(
        name=name,
        index=None,
        is_draft=True,
        num_kv_heads=text.num_kv_heads,
        head_size=text.head_size,
        sliding_window=text.size("sliding_window") if slides else None,
    )


def deepseek_v4_window(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """Records of the sliding window only."""
    yield window_layer(name, None, context.text, is_draft=True)


def mimo_v2_window(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """A sliding layer of MiMo-V2."""
    yield mimo_v2_layer(context.text, name, None, slides=True, is_draft=True)
