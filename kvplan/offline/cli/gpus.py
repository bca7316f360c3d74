"""GPUs by name: the memory that CUDA reports, and the compute capability."""

from __future__ import annotations

from typing import NamedTuple

from kvplan.offline.cli.sizes import parse_size
from kvplan.offline.cli.suggestions import did_you_mean


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
        memory_bytes: Total memory as an engine sees it, which is less than the name says.
        capability: CUDA compute capability, or None where only a size was given.
    """

    memory_bytes: int
    capability: str | None


_GIB = 2**30
GPUS = {
    "T4": Gpu(int(14.56 * _GIB), "7.5"),
    "A10G": Gpu(int(21.98 * _GIB), "8.6"),
    "L4": Gpu(int(22.03 * _GIB), "8.9"),
    "RTX4090": Gpu(int(23.52 * _GIB), "8.9"),
    "RTX5090": Gpu(int(31.36 * _GIB), "12.0"),
    "A100-40GB": Gpu(int(39.39 * _GIB), "8.0"),
    "L40S": Gpu(int(44.39 * _GIB), "8.9"),
    "A100": Gpu(int(79.14 * _GIB), "8.0"),
    "H100": Gpu(int(79.10 * _GIB), "9.0"),
    "H200": Gpu(int(139.80 * _GIB), "9.0"),
    "B200": Gpu(int(178.35 * _GIB), "10.0"),
}


def default_max_num_seqs(gpu: Gpu) -> int:
    """Sequences of a step for which vLLM's server starts on a GPU.

    Mirrors vllm/engine/arg_utils.py::EngineArgs.get_batch_defaults (0.33).
    """
    is_large = gpu.memory_bytes >= 70 * _GIB and gpu not in (GPUS["A100"], GPUS["A100-40GB"])
    return 1024 if is_large else 256


def find_gpu(text: str) -> Gpu:
    """A GPU by name in any case, or of a size such as 96GiB. Raises ValueError."""
    for name, gpu in GPUS.items():
        if text.strip().lower().replace(" ", "") == name.lower():
            return gpu
    try:
        return Gpu(parse_size(text), None)
    except ValueError:
        raise ValueError(
            f"{text!r} is no GPU known here.{did_you_mean(text, GPUS)} Known: {', '.join(GPUS)}; "
            "or give a size, e.g. 96GiB"
        ) from None
