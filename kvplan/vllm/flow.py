"""vLLM's planning flow on kvplan: the two functions that its engine core calls.

They mirror ``get_global_kv_cache_groups`` and ``get_kv_cache_configs`` of
vllm/v1/core/kv_cache_planning.py (0.33), and ``get_kv_cache_configs`` of
vllm/v1/core/kv_cache_utils.py (0.32), which groups the layers itself.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from kvplan.vllm import conversion, grouping, installation, record, report
from kvplan.vllm.dispatch import Answer, call
from kvplan.vllm.installation import Installation
from kvplan.vllm.step_aside import StepAside

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
        lambda: _prepare_groups(installed, vllm_config, kv_cache_specs),
        lambda: installed.originals["get_global_kv_cache_groups"](vllm_config, kv_cache_specs),
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
    record.record(installed, vllm_config, kv_cache_specs, available_memory)
    requested = getattr(getattr(vllm_config, "model_config", None), "max_model_len", None)

    def describe() -> str:
        # By then, vLLM has written the fitted length.
        return record.request_text(
            installed, vllm_config, kv_cache_specs, available_memory, max_model_len=requested
        )

    return call(
        installed,
        "get_kv_cache_configs",
        lambda: _prepare_configs(installed, vllm_config, kv_cache_specs, available_memory, *groups),
        lambda: installed.originals["get_kv_cache_configs"](
            vllm_config, kv_cache_specs, available_memory, *groups
        ),
        describe,
    )


def _require_default_builder(installed: Installation, vllm_config: Any) -> None:
    """A platform or a test that selects a builder of its own keeps it."""
    if installed.before_033:
        return
    # As vLLM imports it, in each call.
    from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder

    from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

    cls = type(get_kv_cache_config_builder(vllm_config))
    if cls is not KvplanKVCacheConfigBuilder and (
        cls is not installed.planning.DefaultKVCacheConfigBuilder
    ):
        raise StepAside(
            f"the platform selects the builder {cls.__module__}.{cls.__qualname__}", by_design=True
        )


def _require_known_registry(installed: Installation) -> None:
    from vllm.v1 import kv_cache_spec_registry as registry

    reason = installed.guard.registry_reason(registry)
    if reason is not None:
        raise StepAside(reason)


def _prepare_groups(installed: Installation, vllm_config: Any, kv_cache_specs: Any) -> Answer:
    _require_default_builder(installed, vllm_config)
    if vllm_config.model_config.supports_kv_cache_grouping:
        raise StepAside("the model declares its own KV cache groups", by_design=True)
    _require_known_registry(installed)
    chosen = grouping.keywords(installed, vllm_config, kv_cache_specs)
    config = conversion.read_config(vllm_config, before_033=False, **chosen)
    groups, notices = installed.planner.global_groups(config, kv_cache_specs)
    return Answer(groups, lambda: log(installed, notices), verifiable=not chosen)


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
    config = conversion.read_config(vllm_config, before_033=installed.before_033, **chosen)
    plan = installed.planner.plan(
        config,
        kv_cache_specs,
        available_memory,
        global_kv_cache_groups,
        vllm_config.cache_config.prefix_cache_retention_interval,
    )
    configs = plan["kv_cache_configs"]
    if grouping.is_sliced(chosen):
        configs = grouping.cut(configs, chosen)

    def commit() -> None:
        log(installed, plan["notices"])
        _log_override(installed, config, plan)
        if config.auto_fit:
            _commit_fitted_length(installed, vllm_config, config, plan)
        for level, message in plan["remarks"]:
            if level == "warning":
                report.once(logging.WARNING, message)

    return Answer(configs, commit, verifiable=not chosen)


def log(installed: Installation, notices: list[tuple[str, str]]) -> None:
    """Log the lines of vLLM through its own logger."""
    for level, message in notices:
        getattr(installed.planning.logger, level)("%s", message)


def _log_override(installed: Installation, config: Any, plan: dict[str, Any]) -> None:
    for own in plan.get("own_blocks", ()):
        installed.planning.logger.info(
            "Overriding num_gpu_blocks=%d with num_gpu_blocks_override=%d",
            own,
            config.num_gpu_blocks_override,
        )


def _commit_fitted_length(
    installed: Installation, vllm_config: Any, config: Any, plan: dict[str, Any]
) -> None:
    """Write the length, and the line that users look for after ``--max-model-len auto``."""
    planning = installed.planning
    requested, fitted = config.max_model_len, plan["max_model_len"]
    if plan["attention_free"]:
        planning.logger.info_once(
            "Auto-fit max_model_len: attention-free model, using derived max_model_len=%d",
            requested,
        )
        return
    memory = f"{planning.format_gib(plan['limiting_memory'])} GiB"
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
