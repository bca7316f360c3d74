"""What a GPU has left for the KV cache beside weights and activations: an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.offline.cli.failures import DoesNotFit, does_not_fit
from kvplan.offline.cli.sizes import format_size

#: Activations, CUDA graphs and the CUDA context of a usual deployment.
DEFAULT_OVERHEAD = 3 << 30


@dataclass(frozen=True)
class MemoryEstimate:
    """The parts of a GPU's memory.

    Attributes:
        gpu_bytes: Total memory of a GPU.
        utilization: Part of it that the engine may use.
        weights_bytes: Weights of the whole model, spread evenly over the GPUs.
        overhead_bytes: What else a GPU holds.
    """

    gpu_bytes: int
    utilization: float
    weights_bytes: int
    overhead_bytes: int = DEFAULT_OVERHEAD

    def kv_cache_bytes(self, num_gpus: int, label: str) -> int:
        """Bytes left on each GPU. Raises DoesNotFit, which names the model, where nothing is."""
        left = self._left(num_gpus)
        if left <= 0:
            reason = (
                f"the weights' share of {format_size(self.weights_bytes / num_gpus)} and "
                f"{format_size(self.overhead_bytes)} overhead leave nothing of the "
                f"{format_size(self._usable)} that may be used of each GPU (estimated); use more "
                "GPUs with --tp, or a larger --gpu-memory-utilization"
            )
            raise DoesNotFit(does_not_fit(label, reason))
        return left

    @property
    def _usable(self) -> int:
        return int(self.gpu_bytes * self.utilization)

    def _left(self, num_gpus: int) -> int:
        return self._usable - -(-self.weights_bytes // num_gpus) - self.overhead_bytes

    def words(self, num_gpus: int) -> str:
        """The sum, for a reader."""
        return (
            f"{format_size(self.gpu_bytes)} x {self.utilization:g} - "
            f"{format_size(self.weights_bytes / num_gpus)} weights - "
            f"{format_size(self.overhead_bytes)} overhead = "
            f"{format_size(self._left(num_gpus))}, ESTIMATED"
        )
