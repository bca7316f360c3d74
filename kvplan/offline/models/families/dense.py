"""Grouped-query attention in every layer, all of it full or all of it in a sliding window."""

from __future__ import annotations

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.windows import model_window, window_of_layers
from kvplan.offline.models.layers import AttentionLayer, ModelLayers


def dense(context: FamilyContext) -> ModelLayers:
    """Layers that differ at most in their window."""
    text = context.text
    num_layers = context.text.num_layers
    kv_heads = _kv_heads(context)
    if context.setting("no_replication") and kv_heads % context.tp:
        raise ModelError(
            f"{context.architecture}: vLLM does not replicate its {kv_heads} KV heads, so "
            f"tensor_parallel_size must divide them; got {context.tp}"
        )
    head_size = _head_size(context)
    windows = window_of_layers(context)
    layers = tuple(
        AttentionLayer(
            name=context.name(i * context.setting("name_step", 1)),
            index=i,
            num_kv_heads=kv_heads,
            head_size=head_size,
            sliding_window=windows[i],
            has_sinks=bool(context.setting("sinks", False)),
            non_causal=bool(context.setting("non_causal", False)),
        )
        for i in range(num_layers)
    )
    return ModelLayers(
        layers=layers,
        num_hidden_layers=num_layers,
        page_kv_heads=kv_heads,
        page_head_size=head_size,
        mm_prefix=bool(context.setting("mm_prefix", False)),
        model_type=text.model_type,
    )


def _kv_heads(context: FamilyContext) -> int:
    text = context.text
    if context.setting("kv_heads_key"):
        return text.size(context.setting("kv_heads_key"))
    if context.setting("all_heads"):
        return text.num_heads
    if context.setting("falcon"):
        return _falcon_kv_heads(text)
    if context.setting("gpt_bigcode"):
        return 1 if text.get("multi_query", True) else text.num_heads
    if context.setting("dbrx"):
        return text.section("attn_config").optional_size("kv_n_heads") or text.num_heads
    return text.num_kv_heads


def _falcon_kv_heads(text: ConfigView) -> int:
    """Falcon's multi-query models keep one KV head unless they have the new decoder."""
    if text.get("new_decoder_architecture", False):
        return text.optional_size("num_kv_heads") or text.num_heads
    return 1 if text.get("multi_query", True) else text.num_heads


def _head_size(context: FamilyContext) -> int:
    """A head's elements; some model code ignores ``head_dim``."""
    text = context.text
    if context.setting("split_hidden"):
        return text.split_head_size
    if context.setting("mla_as_heads"):
        return text.size("qk_nope_head_dim") + text.size("qk_rope_head_dim")
    return text.head_size


__all__ = ["dense", "model_window"]
