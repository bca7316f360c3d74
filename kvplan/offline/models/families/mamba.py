"""Mamba, alone or between attention layers: Jamba, Granite 4, Falcon-H1, Nemotron-H, Zamba2."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.states import Shapes, mamba1_shapes, mamba2_shapes, state_dtypes
from kvplan.offline.models.layers import AttentionLayer, Layer, ModelLayers, StateLayer

_ATTENTION = frozenset({"attention", "full_attention", "*"})
_STATE = frozenset({"mamba", "mamba2", "linear_attention", "M"})
_NO_CACHE = frozenset({"moe", "mlp", "-", "E", "moe_mlp"})


def _mamba1_layer(name: str, index: int, shapes: Shapes, dtypes: tuple[str, str]) -> StateLayer:
    return StateLayer(name=name, index=index, shapes=shapes, dtypes=dtypes, mamba_type="mamba1")


def _mamba2_layer(name: str, index: int, shapes: Shapes, dtypes: tuple[str, str]) -> StateLayer:
    return StateLayer(
        name=name,
        index=index,
        shapes=shapes,
        dtypes=dtypes,
        mamba_type="mamba2",
        declared_alignment=1,
    )


def _attention_layer(
    context: FamilyContext, name: str, index: int, head_size: int
) -> AttentionLayer:
    return AttentionLayer(
        name=f"{context.prefix}model.{name}",
        index=index,
        num_kv_heads=context.text.num_kv_heads,
        head_size=head_size,
    )


def _hybrid(
    context: FamilyContext, layers: Iterator[Layer], num_layers: int, head_size: int
) -> ModelLayers:
    return ModelLayers(
        layers=tuple(layers),
        num_hidden_layers=num_layers,
        is_hybrid=not _only_attention(context.root),
        page_kv_heads=context.text.num_kv_heads,
        page_head_size=head_size,
        model_type=context.text.model_type,
    )


def _only_attention(root: ConfigView) -> bool:
    """A hybrid architecture whose layer list names attention only is planned like any other.

    Mirrors vllm/config/model.py::ModelConfig.is_hybrid (0.33).
    """
    kinds = root.values.get("layer_types")
    return isinstance(kinds, list) and all(k in ("attention", "full_attention") for k in kinds)


def pure_mamba(context: FamilyContext) -> ModelLayers:
    """Mamba 1 or 2 in every layer, no attention."""
    text, options, tp = context.text, context.options, context.tp
    dtypes = state_dtypes(options, context.dtype)
    num_layers = text.num_layers
    if context.traits.mamba_version == 2:
        shapes = mamba2_shapes(
            tp,
            text.size("expand") * text.size("hidden_size"),
            text.size("n_groups"),
            text.size("num_heads"),
            text.size("head_dim"),
            text.size("state_size"),
            text.size("conv_kernel"),
            options.num_speculative_tokens,
        )
        make = _mamba2_layer
    else:
        intermediate = text.optional_size("intermediate_size") or (
            text.size("expand") * text.size("hidden_size")
        )
        shapes = mamba1_shapes(tp, intermediate, text.size("state_size"), text.size("conv_kernel"))
        make = _mamba1_layer
    return ModelLayers(
        layers=tuple(make(context.name(i), i, shapes, dtypes) for i in range(num_layers)),
        num_hidden_layers=num_layers,
        is_attention_free=True,
        model_type=text.model_type,
    )


def jamba(context: FamilyContext) -> ModelLayers:
    """Mamba 1 with one attention layer every few layers."""
    text, options = context.text, context.options
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers) or _jamba_kinds(text, num_layers)
    shapes = mamba1_shapes(
        context.tp,
        text.size("mamba_expand") * text.size("hidden_size"),
        text.size("mamba_d_state"),
        text.size("mamba_d_conv"),
    )
    dtypes = state_dtypes(options, context.dtype)

    def layers() -> Iterator[Layer]:
        for i, kind in enumerate(kinds):
            if kind in _ATTENTION:
                yield _attention_layer(context, f"layers.{i}.attn", i, text.split_head_size)
            else:
                yield _mamba1_layer(f"{context.prefix}model.layers.{i}.mixer", i, shapes, dtypes)

    return _hybrid(context, layers(), num_layers, text.head_size)


def _jamba_kinds(text: ConfigView, num_layers: int) -> list[str]:
    period = text.size("attn_layer_period")
    offset = text.size("attn_layer_offset", minimum=0)
    return ["attention" if i % period == offset else "mamba" for i in range(num_layers)]


def granite_hybrid(context: FamilyContext) -> ModelLayers:
    """Granite 4: Mamba 2 with a few attention layers named in ``layer_types``."""
    text, options = context.text, context.options
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers)
    if kinds is None:
        kinds = ["mamba"] * num_layers
    shapes = mamba2_shapes(
        context.tp,
        text.size("mamba_expand") * text.size("hidden_size"),
        text.size("mamba_n_groups"),
        text.size("mamba_n_heads"),
        _granite_head_dim(text),
        text.size("mamba_d_state"),
        text.size("mamba_d_conv"),
        options.num_speculative_tokens,
    )
    dtypes = state_dtypes(options, context.dtype)

    def layers() -> Iterator[Layer]:
        for i, kind in enumerate(kinds):
            if kind in _ATTENTION:
                yield _attention_layer(
                    context, f"layers.{i}.self_attn.attn", i, text.split_head_size
                )
            elif kind in _STATE:
                yield _mamba2_layer(f"{context.prefix}model.layers.{i}.mixer", i, shapes, dtypes)
            else:
                raise ModelError(f"{text.where}.layer_types[{i}] is {kind!r}, which is unknown")

    return _hybrid(context, layers(), num_layers, text.head_size)


def _granite_head_dim(text: ConfigView) -> int:
    head_dim = text.get("mamba_d_head")
    if head_dim in (None, "auto"):
        return text.size("mamba_expand") * text.size("hidden_size") // text.size("mamba_n_heads")
    return text.size("mamba_d_head")


def falcon_h1(context: FamilyContext) -> ModelLayers:
    """Attention and Mamba 2 side by side in every layer."""
    text, options = context.text, context.options
    num_layers, head_size = text.num_layers, text.head_size
    intermediate = text.optional_size("mamba_d_ssm") or (
        text.size("mamba_expand") * text.size("hidden_size")
    )
    shapes = mamba2_shapes(
        context.tp,
        intermediate,
        text.size("mamba_n_groups"),
        text.size("mamba_n_heads"),
        text.size("mamba_d_head"),
        text.size("mamba_d_state"),
        text.size("mamba_d_conv"),
        options.num_speculative_tokens,
    )
    dtypes = state_dtypes(options, context.dtype)

    def layers() -> Iterator[Layer]:
        for i in range(num_layers):
            yield _attention_layer(context, f"layers.{i}.attn", i, head_size)
            yield _mamba2_layer(f"{context.prefix}model.{num_layers + i}.mixer", i, shapes, dtypes)

    return _hybrid(context, layers(), num_layers, head_size)


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
    text, options = context.text, context.options
    kinds = _nemotron_kinds(text)
    heads, head_dim = text.size("mamba_num_heads"), text.size("mamba_head_dim")
    shapes = mamba2_shapes(
        context.tp,
        heads * head_dim,
        text.size("n_groups"),
        heads,
        head_dim,
        text.size("ssm_state_size"),
        text.size("conv_kernel"),
        options.num_speculative_tokens,
    )
    ssm_dtype = text.get("mamba_ssm_cache_dtype", "float32")
    dtypes = state_dtypes(options, context.dtype, ssm_dtype=ssm_dtype)

    def layers() -> Iterator[Layer]:
        for i, kind in enumerate(kinds):
            if kind in _ATTENTION:
                yield _attention_layer(context, f"layers.{i}.mixer.attn", i, text.head_size)
            elif kind in _STATE:
                yield _mamba2_layer(f"{context.prefix}model.layers.{i}.mixer", i, shapes, dtypes)
            elif kind not in _NO_CACHE:
                raise ModelError(f"{text.where}: layer {i} has the unknown kind {kind!r}")

    return _hybrid(context, layers(), len(kinds), text.head_size)


def zamba2(context: FamilyContext) -> ModelLayers:
    """Mamba 2 with shared attention blocks applied at some layers."""
    text, options = context.text, context.options
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers)
    if kinds is None:
        raise ModelError(f"{text.where} has no layers_block_type, which Zamba2 needs")
    head_size = text.optional_size("attention_head_dim") or (
        2 * text.size("hidden_size") // text.num_heads
    )
    shapes = mamba2_shapes(
        context.tp,
        text.size("mamba_expand") * text.size("hidden_size"),
        text.size("mamba_ngroups"),
        text.size("n_mamba_heads"),
        text.optional_size("mamba_headdim")
        or text.size("mamba_expand") * text.size("hidden_size") // text.size("n_mamba_heads"),
        text.size("mamba_d_state"),
        text.size("mamba_d_conv"),
        options.num_speculative_tokens,
    )
    dtypes = state_dtypes(options, context.dtype)
    hybrid_layers = [i for i, kind in enumerate(kinds) if kind == "hybrid"]

    def layers() -> Iterator[Layer]:
        for j, i in enumerate(hybrid_layers):
            yield _attention_layer(context, f"attn.{j}", i, head_size)
        for i in range(num_layers):
            yield _mamba2_layer(f"{len(hybrid_layers) + i}.mixer", i, shapes, dtypes)

    return _hybrid(context, layers(), num_layers, head_size)
