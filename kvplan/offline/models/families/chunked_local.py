"""Llama 4: attention within chunks, with a full layer every few layers."""

from __future__ import annotations

from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import ModelLayers

#: Every fourth layer has no rotary embedding and attends to everything.
_NO_ROPE_INTERVAL = 4


def chunked_local(context: FamilyContext) -> ModelLayers:
    """Layers without rotary embedding are full, the others chunked.

    Mirrors vllm/model_executor/models/llama4.py::Llama4Attention (0.33).
    """
    text = context.text
    num_layers = text.num_layers
    no_rope = text.own("no_rope_layers")
    if isinstance(no_rope, list) and no_rope:
        uses_rope = [bool(v) for v in text.sizes("no_rope_layers", num_layers)]
    else:
        interval = text.optional_size("no_rope_layer_interval", _NO_ROPE_INTERVAL)
        uses_rope = [(i + 1) % interval != 0 for i in range(num_layers)]
    chunk = text.optional_size("attention_chunk_size")
    return context.model(
        context.attention(i, attention_chunk_size=chunk if uses_rope[i] else None)
        for i in range(num_layers)
    )
