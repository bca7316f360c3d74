"""Which method drafts under a speculative config: the one it names, or the one vLLM infers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.offline.models.config_file import builtin_models, read_config
from kvplan.offline.models.config_view import ConfigView, text_view
from kvplan.offline.models.errors import ModelError

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
