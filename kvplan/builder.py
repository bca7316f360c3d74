"""The extension point for platforms that place the KV cache themselves.

Mirrors vllm/v1/core/kv_cache_config_builder.py and ``DefaultKVCacheConfigBuilder`` of
kv_cache_planning.py (0.33). Pass a builder to :func:`kvplan.get_kv_cache_configs`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from kvplan import planning
from kvplan.config import as_planning_config
from kvplan.kv_cache_config import KVCacheConfig, KVCacheGroupSpec
from kvplan.specs import KVCacheSpec

__all__ = ["DefaultKVCacheConfigBuilder", "KVCacheConfigBuilder"]


class KVCacheConfigBuilder(ABC):
    """Decides how layers are grouped and where groups lie; sizing stays with the planner."""

    @abstractmethod
    def get_kv_cache_groups(
        self, vllm_config: Any, kv_cache_spec: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        """Split the layers into groups; the planner rejects any but an exact partition."""

    @abstractmethod
    def get_kv_cache_config_from_groups(
        self, vllm_config: Any, kv_cache_groups: list[KVCacheGroupSpec], num_blocks: int
    ) -> KVCacheConfig:
        """Place the groups for exactly ``num_blocks`` blocks.

        Each device allocation has ``bytes_per_block * num_blocks`` bytes, and there is one, unless
        :meth:`_get_pool_bytes_per_block` says what a block takes from all of them.
        """

    def _get_pool_bytes_per_block(
        self, vllm_config: Any, kv_cache_groups: list[KVCacheGroupSpec]
    ) -> int | None:
        """Device bytes of one block id; None: the planner places one block and looks."""
        return None


class DefaultKVCacheConfigBuilder(KVCacheConfigBuilder):
    """kvplan's own grouping and placement. Override what differs."""

    def get_kv_cache_groups(
        self, vllm_config: Any, kv_cache_spec: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        """A model that declares its own grouping keeps it."""
        model_config: Any = getattr(vllm_config, "model_config", None)
        if not getattr(model_config, "supports_kv_cache_grouping", False):
            return planning.get_kv_cache_groups(vllm_config, kv_cache_spec)
        model_cls, _ = model_config.registry.resolve_model_cls(
            model_config.architectures, model_config
        )
        return model_cls.get_kv_cache_groups(vllm_config, kv_cache_spec)

    def get_kv_cache_config_from_groups(
        self, vllm_config: Any, kv_cache_groups: list[KVCacheGroupSpec], num_blocks: int
    ) -> KVCacheConfig:
        """Place the groups side by side from byte 0."""
        if not kv_cache_groups:
            # The block pool always needs its null block.
            return planning.get_kv_cache_config_from_groups(vllm_config, kv_cache_groups, 0)
        config = as_planning_config(vllm_config)
        bytes_per_block = planning._pool_bytes_per_block(config, kv_cache_groups)
        return planning.get_kv_cache_config_from_groups(
            config, kv_cache_groups, num_blocks * bytes_per_block
        )
