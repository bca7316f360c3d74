"""What vLLM asks of the pool of a manager whose groups cut blocks into slices."""

from __future__ import annotations

from typing import Any, NoReturn

from vllm.logger import init_logger

# Lines that users look for keep the name of the module they came from.
_vllm_logger = init_logger("vllm.v1.core.block_pool")


class SlicedPool:
    """A face of the native pool, in large blocks. The blocks themselves have no objects."""

    enable_kv_cache_events = False
    metrics_collector = None

    def __init__(self, manager: Any, num_large_blocks: int) -> None:
        self._manager = manager
        self.num_gpu_blocks = num_large_blocks

    def get_num_free_blocks(self) -> int:
        """Large blocks that nobody uses, cached ones among them."""
        return int(self._manager._num_free_blocks())

    def get_usage(self) -> float:
        """Share of the large blocks that are in use, wholly or in part."""
        return float(self._manager._usage())

    def reset_prefix_cache(self) -> bool:
        """Forgets everything cached; False, and nothing happens, while a block is in use."""
        if not self._manager._forget_prefix_cache():
            used = self.num_gpu_blocks - 1 - self.get_num_free_blocks()
            _vllm_logger.warning(
                "Failed to reset prefix cache because some blocks (%d) are not freed yet", used
            )
            return False
        _vllm_logger.info("Successfully reset prefix cache")
        return True

    def take_events(self) -> list[Any]:
        """None: a server with KV cache events gets vLLM's plan."""
        return []

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"kvplan's sliced block pool has no {name!r}: an id means another block in each group, "
            "and what asks for it is not among what KVPLAN_GROUPING=sliced takes; unset it, and "
            "please report this"
        )
