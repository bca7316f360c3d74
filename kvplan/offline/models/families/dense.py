"""Grouped-query attention in every layer, all of it full or all of it in a sliding window."""

from __future__ import annotations

from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext, window_of_layers
from kvplan.offline.models.layers import ModelLayers


def dense(context: FamilyContext) -> ModelLayers:
    """Layers that differ at most in their window."""
    text, traits = context.text, context.traits
    kv_heads, head_size = traits.kv_heads(text), traits.head_size(text)
    if not traits.replicates_kv_heads and kv_heads % context.tp:
        raise ModelError(
            f"{context.architecture}: vLLM does not replicate its {kv_heads} KV heads, so "
            f"tensor_parallel_size must divide them; got {context.tp}"
        )
    windows = window_of_layers(context)
    layers = (
        context.attention(
            i,
            name=context.name(i * traits.name_step),
            num_kv_heads=kv_heads,
            head_size=head_size,
            sliding_window=windows[i],
            has_sinks=traits.has_sinks,
        )
        for i in range(text.num_layers)
    )
    return context.model(
        layers, page_kv_heads=kv_heads, page_head_size=head_size, mm_prefix=traits.mm_prefix
    )
