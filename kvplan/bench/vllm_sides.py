"""vLLM beside kvplan: its own functions, and kvplan's drop-in with vLLM's objects in and out.

Importing this module imports vLLM's planner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
from collections.abc import Callable
from typing import Any

import kvplan.vllm
from kvplan.bench import vllm_objects
from kvplan.vllm.flow import stock_mode

Call = Callable[[], list[Any]]


class Sides:
    """vLLM with kvplan installed into it; both ways of planning stay callable.

    A context manager: afterwards, vLLM is as it was.

    Attributes:
        stock_pool: vLLM's `BlockPool`.
        drop_in_pool: kvplan's with vLLM's face.
        approximate_gcd: vLLM's search, or None where it has none.
    """

    def __init__(self) -> None:
        from vllm.v1.core import block_pool

        self._stack = contextlib.ExitStack()
        if kvplan.vllm.is_installed():
            kvplan.vllm.uninstall()
            self._stack.callback(kvplan.vllm.install)
        self.stock_pool = block_pool.BlockPool
        installed = kvplan.vllm.installed_flow() if kvplan.vllm.install() else None
        if installed is None:
            self._stack.close()
            raise ImportError("kvplan does not know this vLLM")
        self._stack.callback(kvplan.vllm.uninstall)
        logging.getLogger("vllm").setLevel(logging.ERROR)
        self._planning = installed.vllm.planning
        self._originals = installed.stock
        self._groups_first = not installed.vllm.before_033
        self.approximate_gcd = getattr(self._planning, "_approximate_gcd", None)
        from kvplan.vllm.block_pool import BlockPool

        self.drop_in_pool = BlockPool
        if self._groups_first:
            from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

            self._select_builders()
            self._stock_builder = self._planning.DefaultKVCacheConfigBuilder()
            self._drop_in_builder = KvplanKVCacheConfigBuilder()

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def planning(self, request: dict[str, Any]) -> dict[str, Call]:
        """The whole planning step of an engine, by side; each call gives the workers' configs.

        `drop_in_own` has spec objects of its own for every worker, as they arrive from
        worker processes. `builder_only` is vLLM's flow with kvplan's builder.
        """
        config, per_worker, memory = vllm_objects.inputs(request)
        own = [{n: dataclasses.replace(s) for n, s in worker.items()} for worker in per_worker]
        stock = self._step(self._originals, config, per_worker, memory)
        calls = {
            "vllm": self._selecting("_stock_builder", stock, stock=True),
            "drop_in": self._selecting(
                "_drop_in_builder", self._step(vars(self._planning), config, per_worker, memory)
            ),
            "drop_in_own": self._selecting(
                "_drop_in_builder", self._step(vars(self._planning), config, own, memory)
            ),
        }
        if self._groups_first:
            calls["builder_only"] = self._selecting("_drop_in_builder", stock)
        return calls

    def placement(self, request: dict[str, Any], num_blocks: int) -> dict[str, Call]:
        """Placing the groups of one worker in `num_blocks` blocks; nothing before vLLM 0.33."""
        if not self._groups_first:
            return {}
        config, per_worker, _ = vllm_objects.inputs(request)

        def group() -> Any:
            return self._originals["get_global_kv_cache_groups"](config, per_worker)

        groups = self._selecting("_stock_builder", group, stock=True)()

        def place(builder: Any) -> Call:
            return lambda: [builder.get_kv_cache_config_from_groups(config, groups, num_blocks)]

        return {
            "vllm": self._selecting("_stock_builder", place(self._stock_builder), stock=True),
            "drop_in": self._selecting("_drop_in_builder", place(self._drop_in_builder)),
        }

    def managers(self, num_groups: int) -> dict[str, Any]:
        """The KV cache manager, by side, as `kvplan.bench.manager.Load`."""
        from kvplan.bench.vllm_manager import loads

        return dict(loads(num_groups))

    def _step(
        self, functions: Any, config: Any, specs: list[Any], memory: list[int]
    ) -> Callable[[], list[Any]]:
        length = config.model_config.max_model_len
        plan = functions["get_kv_cache_configs"]
        group = functions["get_global_kv_cache_groups"] if self._groups_first else None

        def call() -> list[Any]:
            config.model_config.max_model_len = length  # auto-fit writes it
            if group is None:
                return plan(config, specs, memory)
            return plan(config, specs, memory, group(config, specs))

        return call

    def _select_builders(self) -> None:
        """Let the platform, which a test has none of, select what is in `_chosen`."""
        module: Any = importlib.import_module("vllm.v1.core.kv_cache_config_builder")
        before = module.get_kv_cache_config_builder
        module.get_kv_cache_config_builder = lambda vllm_config: self._chosen
        self._stack.callback(setattr, module, "get_kv_cache_config_builder", before)

    def _selecting(self, builder: str, call: Call, *, stock: bool = False) -> Call:
        """The call while the platform selects this builder; with `stock`, kvplan keeps out."""
        chosen = getattr(self, builder, None)

        def wrapped() -> list[Any]:
            self._chosen = chosen
            return call()

        def wrapped_stock() -> list[Any]:
            with stock_mode():
                return wrapped()

        return wrapped_stock if stock else wrapped
