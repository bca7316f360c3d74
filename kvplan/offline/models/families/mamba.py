"""Mamba, alone or between attention layers: Jamba, Granite 4, Falcon-H1, Nemotron-H, Zamba2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.states import Shapes, mamba1_shapes, mamba2_shapes, state_dtypes
from kvplan.offline.models.layers import AttentionLayer, Layer, ModelLayers, StateLayer

_ATTENTION = frozenset({"attention", "full_attention", "*"})
_STATE = frozenset({"mamba", "mamba2", "linear_attention", "M"})
_NO_CACHE = frozenset({"moe", "mlp", "-", "E", "moe_mlp"})


def _state(version: int, shapes: Shapes, dtypes: tuple[str, str]) -> StateLayer:
    """The state of any layer; Mamba 2's spec carries a checkpoint block."""
    return StateLayer(
        name="",
        index=0,
        shapes=shapes,
        dtypes=dtypes,
        mamba_type=f"mamba{version}",
        declared_alignment=1 if version == 2 else None,
    )


def _mamba2(
    context: FamilyContext,
    inner: int,
    head_dim: int,
    *,
    groups: str,
    heads: str,
    state: str,
    conv: str,
    ssm_dtype: str | None = None,
) -> StateLayer:
    """Mamba 2's state, with the config's keys of its sizes."""
    text = context.text
    shapes = mamba2_shapes(
        context.tp,
        inner,
        text.size(groups),
        text.size(heads),
        head_dim,
        text.size(state),
        text.size(conv),
        context.options.num_speculative_tokens,
    )
    return _state(2, shapes, state_dtypes(context.options, context.dtype, ssm_dtype=ssm_dtype))


def _expanded(text: ConfigView) -> int:
    return text.size("mamba_expand") * text.size("hidden_size")


def _hybrid(
    context: FamilyContext,
    kinds: Sequence[str],
    attention: AttentionLayer,
    state: StateLayer,
) -> ModelLayers:
    """Attention, states and what keeps no cache, as the layers' kinds say."""
    kept = [i for i, kind in enumerate(kinds) if kind not in _NO_CACHE]
    every = context.interleaved([kind in _ATTENTION for kind in kinds], attention, state)
    return _model(context, [every[i] for i in kept], num_hidden_layers=len(kinds))


def _model(context: FamilyContext, layers: Iterable[Layer], **fields: Any) -> ModelLayers:
    return context.model(layers, is_hybrid=not _only_attention(context.root), **fields)


def _only_attention(root: ConfigView) -> bool:
    """A hybrid architecture whose layer list names attention only is planned like any other.

    Mirrors vllm/config/model.py::ModelConfig.is_hybrid (0.33).
    """
    kinds = root.values.get("layer_types")
    return isinstance(kinds, list) and all(k in ("attention", "full_attention") for k in kinds)


def pure_mamba(context: FamilyContext) -> ModelLayers:
    """Mamba 1 or 2 in every layer, no attention."""
    text = context.text
    if context.traits.mamba_version == 2:
        state = _mamba2(
            context,
            text.size("expand") * text.size("hidden_size"),
            text.size("head_dim"),
            groups="n_groups",
            heads="num_heads",
            state="state_size",
            conv="conv_kernel",
        )
    else:
        inner = text.optional_size("intermediate_size") or (
            text.size("expand") * text.size("hidden_size")
        )
        sizes = (text.size("state_size"), text.size("conv_kernel"))
        shapes = mamba1_shapes(context.tp, inner, *sizes)
        state = _state(1, shapes, state_dtypes(context.options, context.dtype))
    layers = [replace(state, name=context.name(i), index=i) for i in range(text.num_layers)]
    return ModelLayers(
        layers=tuple(layers),
        num_hidden_layers=text.num_layers,
        is_attention_free=True,
        model_type=text.model_type,
    )


def jamba(context: FamilyContext) -> ModelLayers:
    """Mamba 1 with one attention layer every few layers."""
    text = context.text
    kinds = text.layer_types(text.num_layers) or _jamba_kinds(text, text.num_layers)
    sizes = (text.size("mamba_d_state"), text.size("mamba_d_conv"))
    shapes = mamba1_shapes(context.tp, _expanded(text), *sizes)
    return _hybrid(
        context,
        [kind if kind in _ATTENTION else "mamba" for kind in kinds],
        context.attention(0, head_size=text.split_head_size),
        _state(1, shapes, state_dtypes(context.options, context.dtype)),
    )


def _jamba_kinds(text: ConfigView, num_layers: int) -> list[str]:
    period = text.size("attn_layer_period")
    offset = text.size("attn_layer_offset", minimum=0)
    return ["attention" if i % period == offset else "mamba" for i in range(num_layers)]


def granite_hybrid(context: FamilyContext) -> ModelLayers:
    """Granite 4: Mamba 2 with a few attention layers named in ``layer_types``."""
    text = context.text
    kinds = text.layer_types(text.num_layers) or ["mamba"] * text.num_layers
    state = _mamba2(
        context,
        _expanded(text),
        _granite_head_dim(text),
        groups="mamba_n_groups",
        heads="mamba_n_heads",
        state="mamba_d_state",
        conv="mamba_d_conv",
    )
    for i, kind in enumerate(kinds):
        if kind not in _ATTENTION | _STATE:
            raise ModelError(f"{text.where}.layer_types[{i}] is {kind!r}, which is unknown")
    return _hybrid(context, kinds, context.attention(0, head_size=text.split_head_size), state)


def _granite_head_dim(text: ConfigView) -> int:
    head_dim = text.get("mamba_d_head")
    if head_dim in (None, "auto"):
        return _expanded(text) // text.size("mamba_n_heads")
    return text.size("mamba_d_head")


def falcon_h1(context: FamilyContext) -> ModelLayers:
    """Attention and Mamba 2 side by side in every layer."""
    text = context.text
    state = _mamba2(
        context,
        text.optional_size("mamba_d_ssm") or _expanded(text),
        text.size("mamba_d_head"),
        groups="mamba_n_groups",
        heads="mamba_n_heads",
        state="mamba_d_state",
        conv="mamba_d_conv",
    )
    layers: list[Layer] = []
    for i in range(text.num_layers):
        name = context.state_name(text.num_layers + i)
        layers += [context.attention(i), replace(state, name=name, index=i)]
    return _model(context, layers)


def _nemotron_kinds(text: ConfigView) -> list[str]:
    pattern = text.own("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return list(pattern)
    kinds = text.own("layers_block_type")
    if isinstance(kinds, list) and kinds:
        return [str(kind) for kind in kinds]
    return list(text.require("hybrid_override_pattern"))


def nemotron_h(context: FamilyContext) -> ModelLayers:
    """Mamba 2, attention and feed-forward layers in any order."""
    text = context.text
    kinds = _nemotron_kinds(text)
    heads, head_dim = text.size("mamba_num_heads"), text.size("mamba_head_dim")
    state = _mamba2(
        context,
        heads * head_dim,
        head_dim,
        groups="n_groups",
        heads="mamba_num_heads",
        state="ssm_state_size",
        conv="conv_kernel",
        ssm_dtype=text.get("mamba_ssm_cache_dtype", "float32"),
    )
    for i, kind in enumerate(kinds):
        if kind not in _ATTENTION | _STATE | _NO_CACHE:
            raise ModelError(f"{text.where}: layer {i} has the unknown kind {kind!r}")
    return _hybrid(context, kinds, context.attention(0), state)


def zamba2(context: FamilyContext) -> ModelLayers:
    """Mamba 2 with shared attention blocks applied at some layers."""
    text = context.text
    kinds = text.layer_types(text.num_layers)
    if kinds is None:
        raise ModelError(f"{text.where} has no layers_block_type, which Zamba2 needs")
    head_size = text.optional_size("attention_head_dim") or (
        2 * text.size("hidden_size") // text.num_heads
    )
    state = _mamba2(
        context,
        _expanded(text),
        text.optional_size("mamba_headdim") or _expanded(text) // text.size("n_mamba_heads"),
        groups="mamba_ngroups",
        heads="n_mamba_heads",
        state="mamba_d_state",
        conv="mamba_d_conv",
    )
    attending = [i for i, kind in enumerate(kinds) if kind == "hybrid"]
    layers: list[Layer] = [
        context.attention(i, name=context.name(j), head_size=head_size)
        for j, i in enumerate(attending)
    ]
    layers += (
        replace(state, name=context.state_name(len(attending) + i), index=i)
        for i in range(text.num_layers)
    )
    return _model(context, layers, page_head_size=head_size)
