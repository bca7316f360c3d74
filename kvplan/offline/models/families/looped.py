"""Decoder layers that run several times, with keys and values of their own in each pass."""

from __future__ import annotations

from dataclasses import replace

from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.dense import dense
from kvplan.offline.models.layers import AttentionLayer, Layer, ModelLayers


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


def dory(context: FamilyContext) -> ModelLayers:
    """Attention and MLP layers in turn, the middle of which may run in several loops.

    Mirrors vllm/model_executor/models/dory.py::DoryAttention (0.33).
    """
    text = context.text
    if context.tp > 1:
        raise ModelError(f"vLLM runs Dory on one tensor parallel rank only; got {context.tp}")
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers) or [_dory_kind(i) for i in range(num_layers)]
    first = text.optional_size("n_input_layers", 0, minimum=0)
    last = num_layers - text.optional_size("n_output_layers", 0, minimum=0)
    mode = text.get("recurrent_kv_cache_mode", "per_loop")
    if mode not in ("per_loop", "last_loop"):
        raise ModelError(
            f"{text.where}.recurrent_kv_cache_mode is {mode!r}; known: per_loop, last_loop"
        )
    loops = text.optional_size("n_recurrent_loops", 1) if mode == "per_loop" else 1
    layers: list[Layer] = []
    for i, kind in enumerate(kinds):
        if kind == "mlp":
            continue
        layers.extend(
            context.attention(
                i,
                name=context.name(i + loop * num_layers),
                sliding_window=(
                    text.size("sliding_window") if kind == "sliding_attention" else None
                ),
            )
            for loop in range(loops if first <= i < last else 1)
        )
    return context.model(layers)


def _dory_kind(layer: int) -> str:
    """The kind of a layer where the config lists none."""
    if layer % 2:
        return "mlp"
    return "full_attention" if layer % 8 == 6 else "sliding_attention"


def hrm_text(context: FamilyContext) -> ModelLayers:
    """Two stacks that run in turn, with a cache for each layer and recurrence step.

    Mirrors vllm/model_executor/models/hrm_text.py::HrmTextAttention (0.33).
    """
    text = context.text
    per_stack = text.size("num_layers_per_stack")
    high, low = text.size("H_cycles"), text.size("L_cycles")
    steps = {
        "L": [h * (low + 1) + step for h in range(high) for step in range(low)],
        "H": [h * (low + 1) + low for h in range(high)],
    }
    layers = (
        context.attention(
            0,
            name=context.pattern.format(stack=stack, i=step * per_stack + i),
            num_kv_heads=text.num_heads,
            non_causal=True,
        )
        for stack, numbers in steps.items()
        for i in range(per_stack)
        for step in numbers
    )
    return context.model(layers, num_hidden_layers=per_stack, page_kv_heads=text.num_heads)
