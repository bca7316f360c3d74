"""What a vLLM process needs to run a plan with slices; without such a plan nothing differs."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from vllm.v1.core import kv_cache_coordinator

from kvplan.vllm.flow import Flow
from kvplan.vllm.patch import Patch, stock
from kvplan.vllm.sliced.config import SlicedKVCacheConfig, max_concurrency
from kvplan.vllm.sliced.coordinator import SlicedCoordinator, SlicedCoordinatorNoPrefixCache


def patches(flow: Flow) -> list[Patch]:
    """The coordinators, and the capacity in the log, behind vLLM's functions."""
    importlib.import_module("vllm.v1.core.kv_cache_manager")
    return [
        _capacity(flow, "get_max_concurrency_for_kv_cache_config"),
        _coordinator("get_kv_cache_coordinator"),
    ]


def _capacity(flow: Flow, name: str) -> Patch:
    original = stock(flow.vllm.planning, name)

    @functools.wraps(original)
    def get_max_concurrency(vllm_config: Any, kv_cache_config: Any) -> float:
        if not isinstance(kv_cache_config, SlicedKVCacheConfig):
            return original(vllm_config, kv_cache_config)
        config = flow.planner.read_config(vllm_config, {})
        return max_concurrency(flow.planner, config, kv_cache_config)

    return Patch(flow.vllm.planning, name, get_max_concurrency)


def _coordinator(name: str) -> Patch:
    original = stock(kv_cache_coordinator, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_coordinator(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if not isinstance(arguments["kv_cache_config"], SlicedKVCacheConfig):
            return original(*args, **kwargs)
        if arguments["enable_caching"]:
            return SlicedCoordinator(**arguments)
        for argument in ("enable_caching", "allow_partial_hash_hits"):
            del arguments[argument]
        return SlicedCoordinatorNoPrefixCache(**arguments)

    return Patch(kv_cache_coordinator, name, get_coordinator)
