"""Decoder layers that run several times, with keys and values of their own in each pass."""

from __future__ import annotations

from dataclasses import replace

from kvplan.models.families.context import FamilyContext
from kvplan.models.families.dense import dense
from kvplan.models.layers import AttentionLayer, Layer, ModelLayers


def loop_coder(context: FamilyContext) -> ModelLayers:
    """The first pass attends to everything, later ones within ``loop_window_size``.

    Mirrors vllm/model_executor/models/iquest_loopcoder.py::LoopCoderAttention (0.33).
    """
    base = dense(context)
    passes = context.text.optional_size("loop_num") or 2
    window = context.text.optional_size("loop_window_size") or 64
    layers: list[Layer] = []
    for i, layer in enumerate(base.layers):
        assert isinstance(layer, AttentionLayer)
        layers.append(layer)
        layers.extend(
            replace(layer, name=context.name(i + n * base.num_hidden_layers), sliding_window=window)
            for n in range(1, passes)
        )
    return replace(base, layers=tuple(layers))
