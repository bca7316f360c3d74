"""kvplan as vLLM's KV cache config builder, selected by the platform hook (0.33).

Importing this module imports vLLM's planner.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from vllm.platforms.interface import Platform
from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder

from kvplan.vllm import flow, installation, report
from kvplan.vllm.dispatch import Answer, call
from kvplan.vllm.installation import Installation
from kvplan.vllm.step_aside import StepAside

_HOOK = "get_kv_cache_config_builder_cls"
_DEFAULT = "vllm.v1.core.kv_cache_planning.DefaultKVCacheConfigBuilder"


class KvplanKVCacheConfigBuilder(DefaultKVCacheConfigBuilder):
    """vLLM's default builder, computed by kvplan.

    What a block takes is known without placing one, so vLLM's flow needs no probe inside its fit
    loop. A model that declares its own grouping keeps it.
    """

    def get_kv_cache_groups(self, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """Mirrors vLLM's, its changes to ``kv_cache_spec`` included."""
        installed = installation.active()
        stock = super().get_kv_cache_groups
        if installed is None:
            return stock(vllm_config, kv_cache_spec)
        return call(
            installed, "get_kv_cache_groups", _prepare_groups, stock, (vllm_config, kv_cache_spec)
        )

    def get_kv_cache_config_from_groups(
        self, vllm_config: Any, kv_cache_groups: Any, num_blocks: int
    ) -> Any:
        """Mirrors vLLM's."""
        installed = installation.active()
        stock = super().get_kv_cache_config_from_groups
        if installed is None or len(kv_cache_groups) == 0:
            return stock(vllm_config, kv_cache_groups, num_blocks)
        return call(
            installed,
            "get_kv_cache_config_from_groups",
            _prepare_config,
            stock,
            (vllm_config, kv_cache_groups, num_blocks),
        )

    def _get_pool_bytes_per_block(self, vllm_config: Any, kv_cache_groups: Any) -> int | None:
        installed = installation.active()
        if installed is None or installed.guard.reason() is not None:
            return None
        installed.subclasses.met.clear()
        try:
            size = installed.planner.bytes_per_block(vllm_config, kv_cache_groups)
            # Nothing compares this number; vLLM's probe is exact for a plugin's class, too.
            return None if installed.subclasses.met else size
        except Exception:
            # vLLM's probe then says what is wrong.
            return None


def _prepare_groups(installed: Installation, vllm_config: Any, kv_cache_spec: Any) -> Answer:
    if vllm_config.model_config.supports_kv_cache_grouping:
        raise StepAside("the model declares its own KV cache groups", by_design=True)
    flow._require_known_registry(installed)
    groups, changes, notices = installed.planner.groups(vllm_config, kv_cache_spec)

    def commit() -> None:
        if changes is not None:
            kv_cache_spec.update(changes)
        flow.log(installed, notices)

    return Answer(groups, commit)


def _prepare_config(
    installed: Installation, vllm_config: Any, kv_cache_groups: Any, num_blocks: int
) -> Answer:
    return Answer(installed.planner.place(vllm_config, kv_cache_groups, num_blocks))


def install(installed: Installation) -> bool:
    """Make the platform's hook name kvplan's builder; False if this vLLM has no such hook."""
    if _HOOK not in vars(Platform):
        report.fallback(f"vLLM {installed.version} has no platform hook {_HOOK}")
        return False
    original = vars(Platform)[_HOOK]

    @classmethod  # type: ignore[misc]
    @functools.wraps(original.__func__)
    def hook(cls: type[Platform], vllm_config: Any) -> str:
        chosen = original.__func__(cls, vllm_config)
        if chosen != _DEFAULT:
            report.once(logging.INFO, f"kvplan leaves placement to the builder {chosen}")
            return chosen
        return f"{KvplanKVCacheConfigBuilder.__module__}.{KvplanKVCacheConfigBuilder.__qualname__}"

    setattr(Platform, _HOOK, hook)
    installed.undo.append(functools.partial(_restore, hook, original))
    installed.builders = (
        KvplanKVCacheConfigBuilder,
        installed.planning.DefaultKVCacheConfigBuilder,
    )
    _name_overriding_platform()
    return True


def _restore(hook: Any, original: Any) -> None:
    if vars(Platform).get(_HOOK) is hook:
        setattr(Platform, _HOOK, original)
    else:
        report.once(logging.WARNING, f"Platform.{_HOOK} was replaced after kvplan and stays")


def _name_overriding_platform() -> None:
    """An out-of-tree platform with a hook of its own wins."""
    from vllm.platforms import current_platform

    for cls in type(current_platform).__mro__:
        if cls is not Platform and _HOOK in vars(cls):
            report.once(
                logging.INFO,
                f"kvplan leaves the KV cache builder to the platform {cls.__module__}."
                f"{cls.__qualname__}, which selects its own",
            )
