"""Whisper: a decoder that attends to itself and to an encoder's states."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import Layer, ModelLayers


def whisper(context: FamilyContext) -> ModelLayers:
    """Self- and cross-attention of every decoder layer."""
    text = context.text
    num_layers, heads = text.size("decoder_layers"), text.size("decoder_attention_heads")
    head_size = text.size("d_model") // heads

    def layers() -> Iterator[Layer]:
        for i in range(num_layers):
            for part, is_cross in (("self_attn", False), ("encoder_attn", True)):
                yield context.attention(
                    i,
                    name=f".decoder.layers.{i}.layers.{part}.attn",
                    num_kv_heads=heads,
                    head_size=head_size,
                    is_cross=is_cross,
                )

    return context.model(
        layers(),
        num_hidden_layers=num_layers,
        is_encoder_decoder=True,
        encoder_tokens=text.optional_size("max_source_positions"),
        page_kv_heads=heads,
        page_head_size=head_size,
    )
