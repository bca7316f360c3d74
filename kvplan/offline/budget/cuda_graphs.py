"""Memory that vLLM reserves for CUDA graphs."""

from __future__ import annotations

from kvplan.offline.budget.non_torch import Range

_MIB = 1 << 20
#: From these versions on vLLM takes its estimate of graphs off the memory for the KV cache, by its
#: model runner.
_ESTIMATED_SINCE = {"V1": (0, 20), "V2": (0, 27)}
#: MiB of a layer's kernels in the graphs of one size: a dense layer, and one with experts.
_MIB_PER_LAYER = {False: 0.4, True: 0.75}
#: MiB that the first graphs take with experts, however few there are.
_MIB_AT_FIRST = {False: 0, True: 300}
#: By how much small estimates differ.
_ERROR_BYTES = 100 * _MIB


def are_estimated(version: tuple[int, int], *, has_v2_runner: bool) -> bool:
    """Whether a version's runner takes graphs off the memory for the KV cache."""
    return version >= _ESTIMATED_SINCE["V2" if has_v2_runner else "V1"]


def capture_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    capability: tuple[int, int] | None = None,
    query_tokens: int = 1,
) -> list[int]:
    """Tokens of the steps that are captured by default.

    Mirrors vllm/config/vllm.py::VllmConfig._set_cudagraph_sizes (0.33) without speculation.
    """
    most = 1024 if capability is not None and capability[0] == 10 else 512
    most = min(max_num_seqs * query_tokens * 2, most, max_num_batched_tokens)
    sizes = {size for size in (1, 2, 4) if size <= most}
    sizes |= set(range(8, min(most + 1, 256), 8)) | set(range(256, most + 1, 16))
    return sorted(sizes)


def cuda_graphs(num_sizes: int, num_layers: int, *, has_experts: bool) -> Range:
    """The estimate that vLLM makes by capturing a few graphs and extrapolating.

    It grows with the sizes captured and the kernels of each, i.e. layers; a layer with experts has
    more of them. No formula is exact: of nine dense models with 51 sizes logs show 10 to 34 MiB a
    layer, in all 0.06 to 2.7 GiB, and 4 to 5 GiB of a large mixture of experts.
    """
    mib = num_sizes * num_layers * _MIB_PER_LAYER[has_experts] + _MIB_AT_FIRST[has_experts]
    value = int(mib * _MIB)
    return Range(value, value * 2 // 5 + _ERROR_BYTES)
