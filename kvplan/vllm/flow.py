"""vLLM's planning flow on kvplan: the two functions that its engine core calls.

They mirror ``get_global_kv_cache_groups`` and ``get_kv_cache_configs`` of
vllm/v1/core/kv_cache_planning.py (0.33), and ``get_kv_cache_configs`` of
vllm/v1/core/kv_cache_utils.py (0.32), which groups the layers itself.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from kvplan.vllm import grouping, installation, record, report
from kvplan.vllm.dispatch import Answer, call
from kvplan.vllm.installation import Installation
from kvplan.vllm.step_aside import StepAside

_BUILDERS = "vllm.v1.core.kv_cache_config_builder"
_REGISTRY = "vllm.v1.kv_cache_spec_registry"

# What was there before kvplan: for calls once kvplan is out again, and for functions of other
# plugins that call what they have wrapped.
_before: dict[str, Any] = {}


def install(installed: Installation) -> None:
    """Replace the functions wherever a module of this process holds them."""
    replacements: dict[str, Callable[..., Any]] = {"get_kv_cache_configs": get_kv_cache_configs_032}
    if not installed.before_033:
        replacements = {
            "get_kv_cache_configs": get_kv_cache_configs,
            "get_global_kv_cache_groups": get_global_kv_cache_groups,
        }
    for name, replacement in replacements.items():
        original = installed.originals[name]
        if name not in _before:
            _before[name] = original
            functools.update_wrapper(replacement, original)
        installation.replace_everywhere(name, original, replacement)
        installed.undo.append(functools.partial(_restore, installed, name, replacement))
    installed.replacements = replacements


def _restore(installed: Installation, name: str, replacement: Any) -> None:
    original = installed.originals[name]
    if vars(installed.planning).get(name) is not replacement:
        report.once(
            logging.WARNING,
            f"{installed.planning.__name__}.{name} was replaced after kvplan was installed and "
            "stays as it is",
        )
    installation.replace_everywhere(name, replacement, original)


def get_global_kv_cache_groups(vllm_config: Any, kv_cache_specs: Any) -> Any:
    """The groups of the whole model (0.33)."""
    installed = installation.active()
    if installed is None:
        return _before["get_global_kv_cache_groups"](vllm_config, kv_cache_specs)
    return call(
        installed,
        "get_global_kv_cache_groups",
        _prepare_groups,
        installed.originals["get_global_kv_cache_groups"],
        (vllm_config, kv_cache_specs),
    )


def get_kv_cache_configs(
    vllm_config: Any, kv_cache_specs: Any, available_memory: Any, global_kv_cache_groups: Any
) -> Any:
    """The KV cache of every worker, for groups from :func:`get_global_kv_cache_groups` (0.33)."""
    return _configs(vllm_config, kv_cache_specs, available_memory, global_kv_cache_groups)


def get_kv_cache_configs_032(vllm_config: Any, kv_cache_specs: Any, available_memory: Any) -> Any:
    """The KV cache of every worker, grouped here (0.32)."""
    return _configs(vllm_config, kv_cache_specs, available_memory)


def original_of(name: str, function: Any) -> Any:
    """What a planning module holds, or what it held before kvplan."""
    ours = (get_kv_cache_configs, get_kv_cache_configs_032, get_global_kv_cache_groups)
    return _before[name] if function in ours else function


def _configs(vllm_config: Any, kv_cache_specs: Any, available_memory: Any, *groups: Any) -> Any:
    installed = installation.active()
    if installed is None:
        before = _before["get_kv_cache_configs"]
        return before(vllm_config, kv_cache_specs, available_memory, *groups)
    if installed.record:
        record.record(installed, vllm_config, kv_cache_specs, available_memory)
    return call(
        installed,
        "get_kv_cache_configs",
        _prepare_configs,
        installed.originals["get_kv_cache_configs"],
        (vllm_config, kv_cache_specs, available_memory, *groups),
        _description(installed, vllm_config, kv_cache_specs, available_memory)
        if installed.verify
        else None,
    )


def _description(
    installed: Installation, vllm_config: Any, kv_cache_specs: Any, available_memory: Any
) -> Callable[[], str]:
    """The request, for later: by then, vLLM has written the fitted length."""
    requested = getattr(getattr(vllm_config, "model_config", None), "max_model_len", None)
    return functools.partial(
        record.request_text,
        installed,
        vllm_config,
        kv_cache_specs,
        available_memory,
        max_model_len=requested,
    )


def _module(name: str) -> Any:
    """As vLLM imports it, in each call."""
    return sys.modules.get(name) or importlib.import_module(name)


def _require_default_builder(installed: Installation, vllm_config: Any) -> None:
    """A platform or a test that selects a builder of its own keeps it."""
    if installed.before_033:
        return
    cls = type(_module(_BUILDERS).get_kv_cache_config_builder(vllm_config))
    if cls not in installed.builders:
        raise StepAside(
            f"the platform selects the builder {cls.__module__}.{cls.__qualname__}", by_design=True
        )


def _require_known_registry(installed: Installation) -> None:
    reason = installed.guard.registry_reason(_module(_REGISTRY))
    if reason is not None:
        raise StepAside(reason)


def _prepare_groups(installed: Installation, vllm_config: Any, kv_cache_specs: Any) -> Answer:
    _require_default_builder(installed, vllm_config)
    if vllm_config.model_config.supports_kv_cache_grouping:
        raise StepAside("the model declares its own KV cache groups", by_design=True)
    _require_known_registry(installed)
    chosen = grouping.keywords(installed, vllm_config, kv_cache_specs)
    groups, notices = installed.planner.global_groups(vllm_config, kv_cache_specs, chosen)
    return Answer(
        groups, functools.partial(log, installed, notices) if notices else None, not chosen
    )


def _prepare_configs(
    installed: Installation,
    vllm_config: Any,
    kv_cache_specs: Any,
    available_memory: Any,
    global_kv_cache_groups: Any = None,
) -> Answer:
    _require_default_builder(installed, vllm_config)
    _require_known_registry(installed)
    # From 0.33 on, the groups are there already.
    chosen = (
        grouping.keywords(installed, vllm_config, kv_cache_specs) if installed.before_033 else {}
    )
    request = (vllm_config, kv_cache_specs, available_memory, global_kv_cache_groups)
    if grouping.is_sliced(chosen):
        try:
            return _planned(installed, chosen, *request)
        except ValueError as error:  # gate.Refused, or what the planner says
            grouping.warn_not_sliced(error)
            chosen = {}
    return _planned(installed, chosen, *request)


def _planned(
    installed: Installation,
    chosen: dict[str, Any],
    vllm_config: Any,
    kv_cache_specs: Any,
    available_memory: Any,
    global_kv_cache_groups: Any,
) -> Answer:
    configs, effects = installed.planner.plan(
        vllm_config, kv_cache_specs, available_memory, global_kv_cache_groups, chosen
    )
    if grouping.is_sliced(chosen):
        configs = grouping.cut(configs, chosen)
    commit = effects and functools.partial(_commit, installed, vllm_config, effects)
    return Answer(configs, commit, not chosen)


def _commit(installed: Installation, vllm_config: Any, effects: dict[str, Any]) -> None:
    """Log and write what vLLM would."""
    log(installed, effects["notices"])
    for own in effects["own_blocks"]:
        installed.planning.logger.info(
            "Overriding num_gpu_blocks=%d with num_gpu_blocks_override=%d",
            own,
            effects["num_gpu_blocks_override"],
        )
    if effects["auto_fit"]:
        _commit_fitted_length(installed, vllm_config, effects)
    for level, message in effects["remarks"]:
        if level == "warning":
            report.once(logging.WARNING, message)


def log(installed: Installation, notices: list[tuple[str, str]]) -> None:
    """Log the lines of vLLM through its own logger."""
    for level, message in notices:
        getattr(installed.planning.logger, level)("%s", message)


def _commit_fitted_length(
    installed: Installation, vllm_config: Any, effects: dict[str, Any]
) -> None:
    """Write the length, and the line that users look for after ``--max-model-len auto``."""
    planning = installed.planning
    requested, fitted = effects["requested_max_model_len"], effects["max_model_len"]
    if effects["attention_free"]:
        planning.logger.info_once(
            "Auto-fit max_model_len: attention-free model, using derived max_model_len=%d",
            requested,
        )
        return
    memory = f"{planning.format_gib(effects['limiting_memory'])} GiB"
    memory = f"{memory} {planning._kv_cache_device_name(vllm_config)}"
    if fitted >= requested:
        planning.logger.info_once(
            "Auto-fit max_model_len: full model context length %d fits in "
            "available KV cache memory (%s)",
            requested,
            memory,
        )
        return
    vllm_config.model_config.max_model_len = fitted
    planning.logger.info_once(
        "Auto-fit max_model_len: reduced from %d to %d to fit in available KV cache memory (%s)",
        requested,
        fitted,
        memory,
    )
