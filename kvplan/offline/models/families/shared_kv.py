"""Gemma 3n and 4: the last layers read the KV cache of earlier ones, and heads differ by kind."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import AttentionLayer, ModelLayers

_SLIDING = "sliding_attention"
_DEFAULT_PERIOD = 6


def shared_kv(context: FamilyContext) -> ModelLayers:
    """Sliding and full layers that own a cache; layers that share one register nothing.

    Mirrors vllm/model_executor/models/gemma3n.py and gemma4.py (0.33).
    """
    text = context.text
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers) or _period_kinds(context, num_layers)
    owners = num_layers - (text.optional_size("num_kv_shared_layers", 0, minimum=0) or 0)
    if owners < 1:
        raise ModelError(
            f"{text.where}.num_kv_shared_layers leaves no layer with a cache of its own"
        )
    layers = tuple(_layers(context, kinds, owners))
    return context.model(
        layers,
        page_kv_heads=max(layer.num_kv_heads for layer in layers),
        page_head_size=max(layer.head_size for layer in layers),
        mm_prefix=context.traits.mm_prefix and text.get("use_bidirectional_attention") == "vision",
    )


def _period_kinds(context: FamilyContext, num_layers: int) -> list[str]:
    period = context.traits.period or _DEFAULT_PERIOD
    return ["full_attention" if (i + 1) % period == 0 else _SLIDING for i in range(num_layers)]


_GLOBAL_HEAD_DIM = 512


def _geometry(context: FamilyContext, layer: int, kind: str) -> tuple[int, int]:
    """KV heads and head size of a layer; Gemma 4's full layers have their own.

    Newer configs list what differs per layer, older ones name the full layers' heads.
    """
    text = context.text
    heads, size = text.num_kv_heads, text.head_size
    if not context.traits.full_heads_differ:
        return heads, size
    per_layer = text.own("per_layer_config")
    if isinstance(per_layer, dict):
        changes = next((v for k, v in per_layer.items() if str(k).lstrip("0") == str(layer)), None)
        changes = per_layer.get("00", changes) if layer == 0 else changes
        view = ConfigView(changes or {}, f"{text.where}.per_layer_config[{layer}]")
        return (
            view.optional_size("num_key_value_heads") or heads,
            view.optional_size("head_dim") or size,
        )
    if kind == _SLIDING:
        return heads, size
    if text.get("attention_k_eq_v", False):
        heads = text.optional_size("num_global_key_value_heads") or heads
    return heads, text.optional_size("global_head_dim", _GLOBAL_HEAD_DIM)


def _layers(context: FamilyContext, kinds: list[str], owners: int) -> Iterator[AttentionLayer]:
    text = context.text
    geometries = [_geometry(context, i, kind) for i, kind in enumerate(kinds)]
    sizes = {size for _, size in geometries}
    # Layers of different head sizes run on one backend, which FlashAttention 3 cannot be.
    forced = "TRITON_ATTN" if len(sizes) > 1 else None
    for i, kind in enumerate(kinds):
        if i >= owners and kind in kinds[:owners]:
            continue
        heads, size = geometries[i]
        yield context.attention(
            i,
            num_kv_heads=heads,
            head_size=size,
            sliding_window=text.size("sliding_window") if kind == _SLIDING else None,
            backend=context.options.attention_backend or forced,
        )
