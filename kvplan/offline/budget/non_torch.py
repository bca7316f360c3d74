"""What a process holds outside PyTorch's allocator: loaded kernels, and buffers of collectives.

vLLM measures it against a snapshot taken after CUDA and NCCL have started, so that the CUDA context
is not in it. No formula gives it; these are what public start-up logs show.
"""

from __future__ import annotations

from typing import NamedTuple

_GIB = 1 << 30


class Range(NamedTuple):
    """A figure and how far off it may be, in bytes."""

    bytes: int
    error: int


def non_torch(
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    expert_parallel: bool = False,
    capability: tuple[int, int] | None = None,
    is_unified: bool = False,
) -> Range:
    """Non-torch memory of a rank.

    0.25 GiB alone. Collectives over NVLink add buffers for each peer (2.06 GiB in all on two H100s,
    2.13 on four, but 0.6 on eight H200s); those over PCIe add few, and so do Blackwell's (0.95 GiB
    on four GB200s). Where the host's memory is the same, what vLLM's processes hold there counts as
    well.
    """
    value, error = 0.25, 0.1
    if tensor_parallel_size > 1:
        if capability is not None and capability[0] == 9:
            value, error = (2.1, 0.6) if tensor_parallel_size < 8 else (1.4, 0.9)
        elif capability in ((10, 0), (10, 3), (8, 0)):
            value, error = 0.95, 0.6
        else:
            value, error = 0.5, 0.3
    if expert_parallel and tensor_parallel_size > 1:
        error += 0.3
    if pipeline_parallel_size > 1:
        value += 0.07
    if is_unified:
        value, error = value + 2.2, error + 2.4
    return Range(int(value * _GIB), int(error * _GIB))
