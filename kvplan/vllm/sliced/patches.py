"""What a vLLM process needs to run a plan with slices; without such a plan nothing differs."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from vllm.v1.core import kv_cache_coordinator

from kvplan.vllm import installation
from kvplan.vllm.installation import Installation
from kvplan.vllm.sliced.config import SlicedKVCacheConfig, max_concurrency
from kvplan.vllm.sliced.coordinator import SlicedCoordinator, SlicedCoordinatorNoPrefixCache

_CAPACITY = "get_max_concurrency_for_kv_cache_config"
_COORDINATOR = "get_kv_cache_coordinator"


def install(installed: Installation) -> None:
    """Put the coordinators, and the capacity in the log, behind vLLM's functions."""
    importlib.import_module("vllm.v1.core.kv_cache_manager")
    _replace(installed, installed.planning, _CAPACITY, _capacity)
    _replace(installed, kv_cache_coordinator, _COORDINATOR, _coordinator)


def _replace(installed: Installation, module: Any, name: str, make: Any) -> None:
    original = getattr(module, name)
    replacement = functools.wraps(original)(make(installed, original))
    installation.replace_everywhere(name, original, replacement)
    installed.undo.append(
        functools.partial(installation.replace_everywhere, name, replacement, original)
    )


def _capacity(installed: Installation, original: Any) -> Any:
    def get_max_concurrency(vllm_config: Any, kv_cache_config: Any) -> float:
        if not isinstance(kv_cache_config, SlicedKVCacheConfig):
            return original(vllm_config, kv_cache_config)
        config = installed.planner.read_config(vllm_config, {})
        return max_concurrency(installed.planner, config, kv_cache_config)

    return get_max_concurrency


def _coordinator(installed: Installation, original: Any) -> Any:
    signature = inspect.signature(original)

    def get_coordinator(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if not isinstance(arguments["kv_cache_config"], SlicedKVCacheConfig):
            return original(*args, **kwargs)
        if arguments["enable_caching"]:
            return SlicedCoordinator(**arguments)
        for name in ("enable_caching", "allow_partial_hash_hits"):
            del arguments[name]
        return SlicedCoordinatorNoPrefixCache(**arguments)

    return get_coordinator
