"""Linear attention between full layers: Qwen3-Next and 3.5, OLMo hybrid, LFM2, Bailing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.mla import latent_size
from kvplan.offline.models.families.states import (
    flashkda_alignment,
    gated_delta_shapes,
    kda_shapes,
    linear_attention_shapes,
    short_conv_shapes,
    state_dtypes,
)
from kvplan.offline.models.layers import MLALayer, ModelLayers, StateLayer

#: FlashInfer's gated-delta prefill exports states at multiples of this many tokens.
FLASHINFER_CHECKPOINT = 64

_FULL = frozenset({"full_attention", "attention"})
_LINEAR = frozenset({"linear_attention"})
_DEFAULT_INTERVAL = 4


def _kinds(text: ConfigView) -> list[str]:
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers)
    if kinds is None:
        interval = text.optional_size("full_attention_interval", _DEFAULT_INTERVAL)
        kinds = [
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(num_layers)
        ]
    for i, kind in enumerate(kinds):
        if kind not in _FULL | _LINEAR:
            raise ModelError(f"{text.where}.layer_types[{i}] is {kind!r}, which is unknown")
    return kinds


def uses_flashinfer_prefill(context: FamilyContext) -> bool:
    """Whether gated-delta prefill runs on FlashInfer: Hopper, or Blackwell with 128-wide keys.

    Mirrors vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py::
    _resolve_gdn_prefill_backend (0.33) with CUDA 13.
    """
    major = context.options.device_capability[0]
    if major == 9:
        return True
    return major in (10, 12) and context.text.get("linear_key_head_dim") == 128


def gated_delta(context: FamilyContext) -> ModelLayers:
    """Gated delta networks with a full-attention layer every few layers."""
    text, options = context.text, context.options
    kinds = _kinds(text)
    attention = context.attention(0)
    shapes = gated_delta_shapes(context.tp, text, options.num_speculative_tokens)
    ssm_dtype = text.own("mamba_ssm_dtype") if context.traits.own_ssm_dtype else None
    dtypes = state_dtypes(options, context.dtype, ssm_dtype=ssm_dtype)
    exports = context.traits.exports_checkpoints and uses_flashinfer_prefill(context)
    aligned = options.enable_prefix_caching is not False
    state = StateLayer(
        name="",
        index=0,
        shapes=shapes,
        dtypes=dtypes,
        mamba_type="gdn_attn",
        checkpoint_alignment=FLASHINFER_CHECKPOINT if exports and aligned else None,
    )
    layers = context.interleaved([kind in _FULL for kind in kinds], attention, state)
    return context.model(layers, is_hybrid=_is_hybrid(context, kinds))


def _is_hybrid(context: FamilyContext, kinds: list[str]) -> bool:
    """Whether vLLM treats the model as a hybrid: it looks for layer kinds at the top level only.

    Mirrors vllm/config/model.py::ModelConfig.is_hybrid (0.33).
    """
    return context.text is not context.root or any(kind not in _FULL for kind in kinds)


def short_conv(context: FamilyContext) -> ModelLayers:
    """LFM2: short convolutions with full-attention layers between them."""
    text, options = context.text, context.options
    num_layers = text.num_layers
    kinds = text.layer_types(num_layers) or _lfm2_kinds(text, num_layers)
    channels = text.size(context.traits.conv_dim_key)
    kernel = text.size("conv_L_cache")
    shapes = short_conv_shapes(context.tp, channels, kernel, options.num_speculative_tokens)
    dtypes = state_dtypes(options, context.dtype)[:1]
    attention = context.attention(0, head_size=text.split_head_size)
    state = StateLayer(name="", index=0, shapes=shapes, dtypes=dtypes, mamba_type="short_conv")
    layers = context.interleaved([kind in _FULL for kind in kinds], attention, state)
    return context.model(layers, is_hybrid=_is_hybrid(context, kinds))


def _lfm2_kinds(text: ConfigView, num_layers: int) -> list[str]:
    full = text.own("full_attn_idxs")
    if not isinstance(full, list):
        return ["full_attention"] * num_layers
    return ["full_attention" if i in full else "conv" for i in range(num_layers)]


def bailing_hybrid(context: FamilyContext) -> ModelLayers:
    """Bailing (Ring) 2.5: lightning attention, with a latent-attention layer every few layers.

    Mirrors vllm/model_executor/models/bailing_moe_linear.py (0.33).
    """
    text, options = context.text, context.options
    num_layers, group = text.num_layers, text.size("layer_group_size")
    shapes = linear_attention_shapes(context.tp, text.num_heads, text.head_size)
    dtypes = state_dtypes(options, context.dtype)[:1]
    latent = [(i + 1) % group == 0 for i in range(num_layers)]
    return _with_latent_layers(context, latent, shapes, dtypes, "linear")


def bailing_v3(context: FamilyContext) -> ModelLayers:
    """Bailing (Ring) 3: Kimi delta attention, with latent attention at the end of each group.

    Layers behind the last whole group have latent attention, too. Mirrors
    vllm/model_executor/models/bailing_moe_v3.py (0.33).
    """
    text, options = context.text, context.options
    num_layers, group = text.num_layers, text.size("layer_group_size")
    shapes = kda_shapes(
        context.tp,
        text.num_heads,
        text.head_size,
        text.size("short_conv_kernel_size"),
        options.num_speculative_tokens,
    )
    conv_dtype, _ = state_dtypes(options, context.dtype)
    dtypes = (conv_dtype, "float32")  # whatever mamba_ssm_cache_dtype says
    latent = [(i + 1) % group == 0 or i >= num_layers // group * group for i in range(num_layers)]
    return _with_latent_layers(context, latent, shapes, dtypes, "gdn_attn")


def kimi_linear(context: FamilyContext) -> ModelLayers:
    """Kimi delta attention, with latent attention at the layers the config names.

    With a full-rank gate (Kimi K3), its states have a backend of their own.

    Mirrors vllm/models/kimi_k3/nvidia/model.py (0.33).
    """
    text, options = context.text, context.options
    num_layers = text.num_layers
    linear = text.section("linear_attn_config")
    kda_layers = set(linear.sizes("kda_layers", minimum=1))
    shapes = kda_shapes(
        context.tp,
        linear.size("num_heads"),
        linear.size("head_dim"),
        linear.optional_size("short_conv_kernel_size", 4),
        options.num_speculative_tokens,
    )
    if options.mamba_ssm_cache_dtype not in ("auto", "float32"):
        raise ModelError(
            f"mamba_ssm_cache_dtype {options.mamba_ssm_cache_dtype}: vLLM 0.33 does not start "
            f"{context.architecture} with it; its recurrent states are float32 (or auto)"
        )
    dtypes = state_dtypes(options, context.dtype, ssm_dtype="float32")
    latent = [i + 1 not in kda_layers for i in range(num_layers)]
    model = _with_latent_layers(context, latent, shapes, dtypes, "gdn_attn", can_be_skipped=False)
    if not linear.get("use_full_rank_gate", False):
        return model
    alignment = flashkda_alignment(context, linear)
    layers = tuple(
        replace(layer, backend="KIMI_K3_KDA", declared_alignment=alignment)
        if isinstance(layer, StateLayer)
        else layer
        for layer in model.layers
    )
    return replace(model, layers=layers)


def _with_latent_layers(
    context: FamilyContext,
    latent: Sequence[bool],
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    mamba_type: str,
    *,
    can_be_skipped: bool = True,
) -> ModelLayers:
    """A model of latent attention where ``latent`` says so, by layer, and else of linear states."""
    head_size = latent_size(context.text)
    mla = MLALayer(name="", index=0, head_size=head_size, can_be_skipped=can_be_skipped)
    state = StateLayer(name="", index=0, shapes=shapes, dtypes=dtypes, mamba_type=mamba_type)
    layers = context.interleaved(latent, mla, state)
    return context.model(layers, is_hybrid=True, uses_mla=True, page_head_size=head_size)
