"""KV cache planner and block pool for large language model servers."""

from kvplan._core import BlockPool, BlockPoolError, BlockPoolEvent

__all__ = ["BlockPool", "BlockPoolError", "BlockPoolEvent"]
