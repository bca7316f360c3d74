"""kvplan as vLLM's KV cache config builder, selected by the platform hook (0.33).

Importing this module imports vLLM's planner.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, ClassVar

from vllm.platforms.interface import Platform
from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder

from kvplan.vllm import report
from kvplan.vllm.flow import Answer, Flow
from kvplan.vllm.patch import Patch, stock

_HOOK = "get_kv_cache_config_builder_cls"
_DEFAULT = "vllm.v1.core.kv_cache_planning.DefaultKVCacheConfigBuilder"


class KvplanKVCacheConfigBuilder(DefaultKVCacheConfigBuilder):
    """vLLM's default builder, computed by kvplan.

    What a block takes is known without placing one, so vLLM's flow needs no probe inside its fit
    loop. A model that declares its own grouping keeps it.
    """

    flow: ClassVar[Flow | None] = None  # vLLM makes an object by the name of the class

    def get_kv_cache_groups(self, vllm_config: Any, kv_cache_spec: Any) -> Any:
        """Mirrors vLLM's, its changes to ``kv_cache_spec`` included."""
        stock = super().get_kv_cache_groups
        if self.flow is None:
            return stock(vllm_config, kv_cache_spec)
        return self.flow.call(
            "get_kv_cache_groups",
            functools.partial(_groups, self.flow),
            stock,
            vllm_config,
            kv_cache_spec,
            grouping=True,
            of_builder=True,
        )

    def get_kv_cache_config_from_groups(
        self, vllm_config: Any, kv_cache_groups: Any, num_blocks: int
    ) -> Any:
        """Mirrors vLLM's."""
        stock = super().get_kv_cache_config_from_groups
        if self.flow is None or len(kv_cache_groups) == 0:
            return stock(vllm_config, kv_cache_groups, num_blocks)
        return self.flow.call(
            "get_kv_cache_config_from_groups",
            functools.partial(_config, self.flow),
            stock,
            vllm_config,
            kv_cache_groups,
            num_blocks,
            of_builder=True,
        )

    def _get_pool_bytes_per_block(self, vllm_config: Any, kv_cache_groups: Any) -> int | None:
        if self.flow is None or self.flow.keeps_out() or self.flow.known.replaced() is not None:
            return None
        try:
            return self.flow.planner.bytes_per_block(vllm_config, kv_cache_groups)
        except Exception:
            # vLLM's probe then says what is wrong.
            return None


def _groups(flow: Flow, vllm_config: Any, kv_cache_spec: Any) -> Answer:
    groups, changes, notices = flow.planner.groups(vllm_config, kv_cache_spec)

    def commit() -> None:
        if changes is not None:
            kv_cache_spec.update(changes)
        flow.log(notices)

    return Answer(groups, commit)


def _config(flow: Flow, vllm_config: Any, kv_cache_groups: Any, num_blocks: int) -> Answer:
    return Answer(flow.planner.place(vllm_config, kv_cache_groups, num_blocks))


def patches(flow: Flow) -> list[Patch]:
    """The platform's hook, naming kvplan's builder.

    Raises:
        AttributeError: this vLLM has no such hook.
    """
    original = stock(Platform, _HOOK)

    @classmethod  # type: ignore[misc]
    @functools.wraps(original.__func__)
    def hook(cls: type[Platform], vllm_config: Any) -> str:
        chosen = original.__func__(cls, vllm_config)
        if chosen != _DEFAULT:
            report.once(logging.INFO, f"kvplan leaves placement to the builder {chosen}")
            return chosen
        return f"{KvplanKVCacheConfigBuilder.__module__}.{KvplanKVCacheConfigBuilder.__qualname__}"

    flow.builders = (KvplanKVCacheConfigBuilder, flow.vllm.planning.DefaultKVCacheConfigBuilder)
    _name_overriding_platform()
    return [Patch(Platform, _HOOK, hook), Patch(KvplanKVCacheConfigBuilder, "flow", flow)]


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
