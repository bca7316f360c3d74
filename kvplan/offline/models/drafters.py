"""Layers that a speculative decoding drafter adds: MTP heads, EAGLE heads, DSpark, draft models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvplan.offline.models.config_file import builtin_models, read_config
from kvplan.offline.models.config_view import ConfigView, text_view
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext, layer_kinds, model_window
from kvplan.offline.models.families.deepseek_v4 import window_layer
from kvplan.offline.models.families.deepseek_v41 import deepseek_v41_window
from kvplan.offline.models.families.heterogeneous import mimo_v2_layer
from kvplan.offline.models.families.mla import backend_with_sinks, indexer_layer, latent_size
from kvplan.offline.models.layers import AttentionLayer, Layer, MLALayer, ModelLayers

#: Methods that draft without a KV cache of their own.
WITHOUT_CACHE = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})

#: Methods whose drafter reads the target's hidden states.
HIDDEN_STATE_METHODS = frozenset({"eagle", "eagle3", "mtp", "dspark", "dflash"})

#: Of those, methods whose cached keys do not depend on the token that follows.
WITHOUT_BLOCK_DROP = frozenset({"dspark", "dflash"})

_KNOWN = ("mtp", "eagle", "eagle3", "dspark", "dflash", "draft_model", "ngram", "suffix")

#: Architectures of drafters that vLLM knows by their config instead of their name.
_DFLASH = frozenset({"MuseGlimmerAssistantModel"})
_DSPARK = frozenset({"Qwen3DSparkModel", "Gemma4DSparkModel"})


def speculative_method(speculative: Mapping[str, Any]) -> str:
    """The method of a speculative config.

    Raises:
        ModelError: If it is not one that kvplan plans, or it is missing and cannot be inferred.
    """
    method = speculative.get("method")
    if method is None:
        return _inferred(speculative)
    if isinstance(method, str) and method.endswith("_mtp"):
        return "mtp"  # older names of the same, one for each model family
    if method == "draft_model" and isinstance(speculative.get("model"), str):
        return _inferred(speculative)  # vLLM looks at the drafter all the same
    if method in _KNOWN or method in WITHOUT_CACHE:
        return str(method)
    raise ModelError(f"speculative_config.method is {method!r}; kvplan plans {', '.join(_KNOWN)}")


def num_lookahead_tokens(speculative: Mapping[str, Any] | None, drafted: int) -> int:
    """Slots that a drafter writes beyond the tokens of a step.

    Mirrors vllm/config/vllm.py::VllmConfig.num_lookahead_tokens (0.33).
    """
    method = None if speculative is None else speculative_method(speculative)
    if speculative is None or method is None or method in WITHOUT_CACHE:
        return 0
    fills_in = method == "dflash" or (
        method == "dspark" and not draft_config(speculative).values.get("sample_from_anchor", True)
    )
    return drafted + fills_in


def _inferred(speculative: Mapping[str, Any]) -> str:
    """The method of a drafter, by its name and then by its config.

    Mirrors vllm/config/speculative.py::SpeculativeConfig.__post_init__ (0.33).
    """
    model = speculative.get("model")
    if not isinstance(model, str):
        raise ModelError(
            "speculative_config has no method, and no model whose name and config it would be "
            f"inferred from; give method ({', '.join(_KNOWN)}) or model"
        )
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if _is_import_path(model):
        raise ModelError(
            f"vLLM takes speculative_config.model {model!r} for a class of a Python module, whose "
            "drafter is not known; a directory is written with a slash"
        )
    path = Path(model)
    name = (str(path.parent) if path.name == "config.json" else model).lower()
    if "eagle-" in name:
        return "eagle"
    for method in ("eagle3", "dflash", "dspark"):
        if method in name:
            return method
    from kvplan.offline.models.registry import MTP_ARCHITECTURES

    root = draft_config(speculative)
    architectures = root.values.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    names = {name for name in listed if isinstance(name, str)}
    if names & _DFLASH:
        return "dflash"
    if names & _DSPARK:
        return "dspark"
    if names & set(MTP_ARCHITECTURES) or root.model_type.endswith("_mtp"):
        return "mtp"
    if num_mtp_layers(root) or num_mtp_layers(text_view(root)):
        raise ModelError(
            f"speculative_config has no method, and whether vLLM runs all of {model!r} or only its "
            "MTP layers is not known; give method"
        )
    return "draft_model"


def _is_import_path(model: str) -> bool:
    """Whether vLLM reads a name as that of a class in a module."""
    if "/" in model or model in builtin_models() or Path(model).exists():
        return False
    parts = model.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def num_mtp_layers(text: ConfigView) -> int:
    """MTP layers that a config declares, 0 for none."""
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        value = text.optional_size(key, minimum=0)
        if value is not None:
            return value
    return 0


def draft_config(speculative: Mapping[str, Any]) -> ConfigView:
    """The drafter's own config: given in place, or by name or path.

    Raises:
        ModelError: If there is none.
    """
    config = speculative.get("config")
    if isinstance(config, dict):
        return ConfigView(config, "draft config")
    model = speculative.get("model")
    if not isinstance(model, str):
        raise ModelError(
            f"speculative method {speculative.get('method')!r} needs speculative_config.model: "
            "the drafter's config.json, a directory that holds one, a Hub id or a built-in name"
        )
    return ConfigView(read_config(model)[0], "draft config")


def like_the_model(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """A latent, with its indexer, where the model has latents; else keys and values."""
    text = context.text
    if not model.uses_mla:
        yield _attention(text, name)
        return
    topk = text.optional_size("index_topk")
    if topk is not None:
        indexer = f"{name.removesuffix('.attn')}.indexer.k_cache"
        yield indexer_layer(indexer, None, text, is_draft=True)
    yield MLALayer(
        name=name,
        index=None,
        is_draft=True,
        head_size=latent_size(text),
        backend_with_sinks=backend_with_sinks(context),
        is_sparse=topk is not None,
        topk_buffer_width=topk,
        is_index_group_leader=topk is not None,
    )


def by_layer_types(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """The kind of the model's layer of the same number."""
    text = context.text
    kinds = text.layer_types(text.num_layers)
    slides = kinds is not None and kinds[k] == "sliding_attention"
    yield _attention(text, name, text.size("sliding_window") if slides else None)


def deepseek_v4_window(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """Records of the sliding window only."""
    yield window_layer(name, None, context.text, is_draft=True)


def mimo_v2_window(
    context: FamilyContext, model: ModelLayers, name: str, k: int
) -> Iterator[Layer]:
    """A sliding layer of MiMo-V2."""
    yield mimo_v2_layer(context.text, name, None, slides=True, is_draft=True)


_EAGLE = frozenset({"eagle", "eagle3"})

#: Architectures of EAGLE heads whose layers were recorded, or that run the same code.
EAGLE_ARCHITECTURES = (
    "DeepseekV3ForCausalLM",
    "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
    "EagleDeepSeekMTPModel",
    "EagleLlamaForCausalLM",
    "EagleMistralForCausalLM",
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle3",
)
DFLASH_ARCHITECTURES = ("DFlashDraftModel",)


def with_drafter(context: FamilyContext, model: ModelLayers) -> ModelLayers:
    """The model's layers with those of its drafter behind them.

    Raises:
        ModelError: If the model has no such drafter, or the drafter's config is missing.
    """
    speculative = context.options.speculative_config
    if speculative is None:
        return model
    method = speculative_method(speculative)
    if method in WITHOUT_CACHE:
        return model
    if context.options.num_speculative_tokens < 1:
        raise ModelError(
            f"speculative_config with method {method!r} needs num_speculative_tokens of at least 1"
        )
    if method in ("mtp", "dspark") and speculative.get("method") is None:
        _check_own_drafter(context, method, speculative)
    if method == "mtp":
        drafted = tuple(_mtp_layers(context, model))
    elif method == "dspark":
        drafted = tuple(_dspark_layers(context, model))
    elif method == "dflash":
        drafted = tuple(_dflash_layers(model, speculative))
    elif method in _EAGLE:
        drafted = tuple(_eagle_layers(context, model, speculative))
    else:
        drafted = tuple(_draft_model_layers(context, speculative))
    return dataclasses.replace(
        model,
        layers=model.layers + drafted,
        num_prefill_lookahead_tokens=_prefill_lookahead(context, method),
    )


def _check_own_drafter(context: FamilyContext, method: str, speculative: Mapping[str, Any]) -> None:
    """Layers of these methods are read from the target's config, so that must be the drafter's."""
    if draft_config(speculative).values != context.root.values:
        raise ModelError(
            f"vLLM takes speculative method {method!r} for model {speculative.get('model')!r}, "
            "whose config is not the target's; such a drafter is not planned. Where the target "
            f"drafts for itself, give method {method!r}"
        )


def _prefill_lookahead(context: FamilyContext, method: str) -> int:
    """Prompt tokens past the computed range that the drafter reads.

    Mirrors vllm/config/vllm.py::VllmConfig.num_prefill_lookahead_tokens (0.33).
    """
    if method not in HIDDEN_STATE_METHODS:
        return 0
    modules = context.text.optional_size("num_nextn_predict_layers", 1, minimum=0)
    drafted = context.options.num_speculative_tokens
    return drafted if method == "mtp" and min(modules, drafted) > 1 else 1


def _mtp_layers(context: FamilyContext, model: ModelLayers) -> Iterator[Layer]:
    from kvplan.offline.models.registry import ARCHITECTURES, MTP_ARCHITECTURES

    if context.architecture == "DeepseekV41ForCausalLM":
        raise ModelError("DeepSeek-V4.1 drafts with method 'dspark', not 'mtp'")
    # A wrapper's row, not that of the language model that it runs.
    mtp = ARCHITECTURES[context.architecture].traits.mtp
    if mtp is None:
        raise ModelError(
            f"speculative method 'mtp' is not planned for {context.architecture}: what its MTP "
            f"layers cache is not known; it is for {', '.join(MTP_ARCHITECTURES)}"
        )
    count = num_mtp_layers(context.root) or num_mtp_layers(context.text) or mtp.default_count
    if not count:
        raise ModelError(
            f"{context.architecture} declares no MTP layers (num_nextn_predict_layers), so "
            "speculative method 'mtp' has nothing to draft with"
        )
    first = model.num_hidden_layers * context.traits.attentions_per_layer
    for k in range(1 if mtp.only_first else count):
        yield from mtp.layer(context, model, mtp.name.format(k=k, n=first + k), k)


def _dspark_layers(context: FamilyContext, model: ModelLayers) -> Iterator[Layer]:
    text = context.text
    makers: dict[str, Callable[[str], Layer]] = {
        "DeepseekV4ForCausalLM": lambda name: window_layer(name, None, text, is_draft=True),
        "DeepseekV41ForCausalLM": lambda name: deepseek_v41_window(
            name, None, text, context.options, is_draft=True
        ),
    }
    make = makers.get(context.architecture)
    if make is None:
        raise ModelError(
            f"speculative method 'dspark' is planned for {', '.join(makers)}; got "
            f"{context.architecture}"
        )
    for k in range(num_mtp_layers(text)):
        yield make(f"model.layers.{model.num_hidden_layers + k}.attn.swa_cache")


def _behind(model: ModelLayers, k: int) -> str:
    """VLLM's name of the attention of a drafter's layer, numbered behind the target's."""
    return f"model.layers.{model.num_hidden_layers + k}.self_attn.attn"


def _attention(text: ConfigView, name: str, window: int | None = None) -> AttentionLayer:
    """Keys and values of a drafter's layer, with the heads of the config that it reads."""
    return AttentionLayer(
        name=name,
        index=None,
        is_draft=True,
        num_kv_heads=text.num_kv_heads,
        head_size=text.head_size,
        sliding_window=window,
    )


def _eagle_layers(
    context: FamilyContext, model: ModelLayers, speculative: Mapping[str, Any]
) -> Iterator[Layer]:
    """EAGLE heads are decoder layers numbered behind the target's."""
    root = draft_config(speculative)
    _check_draft_architecture(root, speculative, EAGLE_ARCHITECTURES)
    text = text_view(root)
    if text.own("kv_lora_rank") is not None:
        for k in range(text.num_layers):
            head_size = latent_size(text)
            yield MLALayer(name=_behind(model, k), index=None, is_draft=True, head_size=head_size)
        return
    kinds = text.layer_types(text.num_layers)
    # A window that holds for the whole target holds for its drafter, too.
    shared = model_window(context) if layer_kinds(context) is None else None
    for k in range(text.num_layers):
        slides = kinds is not None and kinds[k] == "sliding_attention"
        window = text.size("sliding_window") if slides else shared
        yield _attention(text, _behind(model, k), window)


def _check_draft_architecture(
    root: ConfigView, speculative: Mapping[str, Any], known: Sequence[str]
) -> None:
    names = root.values.get("architectures")
    if not isinstance(names, list) or not any(name in known for name in names):
        raise ModelError(
            f"speculative method {speculative.get('method')!r} is not planned with a drafter of "
            f"architectures {names!r}: what its layers cache is not known; it is with "
            f"{', '.join(known)}"
        )


def _dflash_layers(model: ModelLayers, speculative: Mapping[str, Any]) -> Iterator[Layer]:
    """Layers of a block drafter, numbered behind the target's.

    Mirrors vllm/model_executor/models/qwen3_dflash.py::_dflash_layer_attention (0.33).
    """
    root = draft_config(speculative)
    _check_draft_architecture(root, speculative, DFLASH_ARCHITECTURES)
    text = text_view(root)
    own = text.own("dflash_config") or {}
    if not isinstance(own, dict):
        raise ModelError("draft config.dflash_config must be an object")
    kinds = text.layer_types(text.num_layers)
    slides = [kind == "sliding_attention" for kind in kinds or ()]
    if kinds is None or (own.get("use_swa") and not any(slides)):
        slides = [bool(own.get("use_swa"))] * text.num_layers
    for k in range(text.num_layers):
        window = None
        if slides[k]:
            window = ConfigView(own, "draft config.dflash_config").optional_size("swa_window_size")
            window = window or text.size("sliding_window")
        yield _attention(text, _behind(model, k), window)


def _draft_model_layers(context: FamilyContext, speculative: Mapping[str, Any]) -> Iterator[Layer]:
    """A whole model of its own, on the last pipeline stage."""
    from kvplan.offline.models.registry import find_architecture, model_layers

    root = draft_config(speculative)
    names = root.values.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelError("the draft config names no architectures")
    name, architecture = find_architecture(names)
    _, draft = model_layers(
        name, architecture, root, text_view(root), context.options, context.dtype
    )
    for layer in draft.layers:
        yield dataclasses.replace(
            layer, name=f"draft_model.{layer.name}", index=None, is_draft=True
        )
