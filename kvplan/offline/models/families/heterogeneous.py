"""Models whose layers differ in their heads: MiMo-V2 and Nemotron-NAS."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import AttentionLayer, ModelLayers


def mimo_v2(context: FamilyContext) -> ModelLayers:
    """Full and sliding layers with their own heads, and value heads smaller than key heads.

    Mirrors vllm/model_executor/models/mimo_v2.py::MiMoV2FlashDecoderLayer (0.33).
    """
    text = context.text
    num_layers = text.num_layers
    pattern = text.sizes("hybrid_layer_pattern", num_layers)
    return context.model(
        mimo_v2_layer(text, context.name(i), i, slides=pattern[i] == 1) for i in range(num_layers)
    )


def mimo_v2_layer(
    text: ConfigView, name: str, index: int | None, *, slides: bool, is_draft: bool = False
) -> AttentionLayer:
    """One layer of MiMo-V2, whose sliding layers have heads of their own."""
    prefix = "swa_" if slides else ""
    window = text.optional_size("sliding_window_size") or text.size("sliding_window")
    return AttentionLayer(
        name=name,
        index=index,
        is_draft=is_draft,
        num_kv_heads=text.size(f"{prefix}num_key_value_heads"),
        head_size=text.size(f"{prefix}head_dim"),
        head_size_v=text.optional_size(f"{prefix}v_head_dim"),
        sliding_window=window if slides else None,
        has_sinks=slides and bool(text.get("add_swa_attention_sink_bias", False)),
    )


def nemotron_nas(context: FamilyContext) -> ModelLayers:
    """Layers found by architecture search: some have no attention, the rest their own groups.

    Mirrors vllm/model_executor/models/nemotron_nas.py::DeciLMDecoderLayer (0.33).
    """
    text = context.text
    num_layers, heads = text.num_layers, text.num_heads
    blocks = text.require("block_configs")
    if not isinstance(blocks, list) or len(blocks) < num_layers:
        raise ModelError(
            f"{text.where}.block_configs must list all {num_layers} layers of the model"
        )

    def layers() -> Iterator[AttentionLayer]:
        for i in range(num_layers):
            attention = blocks[i].get("attention", {}) if isinstance(blocks[i], dict) else {}
            if attention.get("no_op") or attention.get("replace_with_linear"):
                continue
            group = attention.get("n_heads_in_group")
            if not isinstance(group, int) or group < 1 or heads % group:
                raise ModelError(
                    f"{text.where}.block_configs[{i}].attention.n_heads_in_group is {group!r}; it "
                    f"must divide num_attention_heads ({heads})"
                )
            yield context.attention(i, num_kv_heads=heads // group)

    found = tuple(layers())
    if not found:
        raise ModelError(f"{text.where}.block_configs has no layer with attention")
    return context.model(found, page_kv_heads=found[0].num_kv_heads)
