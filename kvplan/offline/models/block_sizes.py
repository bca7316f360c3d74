"""Block sizes as vLLM resolves them once the backends are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from kvplan.offline.models.errors import ModelError
from kvplan.offline.packing import (
    AttentionBackend,
    default_block_size,
    smallest_kernel_block_size,
    supports_block_size,
)

_DEFAULT_BLOCK_SIZE = 16

#: MLA decode kernels want the blocks of hybrid models in multiples of this many tokens.
_HYBRID_MLA_BLOCK = 128

KernelSizes = Callable[[AttentionBackend], tuple]


def preferred_block_size(backends: Sequence[AttentionBackend], kernel_sizes: KernelSizes) -> int:
    """Smallest block size in tokens that every backend takes, 16 if it can be.

    Mirrors vllm/platforms/interface.py::Platform._preferred_block_size_for_backends (0.33).

    Raises:
        ModelError: If the backends share none.
    """
    if len(backends) == 1:
        return default_block_size(backends[0], _DEFAULT_BLOCK_SIZE, kernel_sizes(backends[0]))

    def all_take(size: int) -> bool:
        return all(supports_block_size(b, size, kernel_sizes(b)) for b in backends)

    if all_take(_DEFAULT_BLOCK_SIZE):
        return _DEFAULT_BLOCK_SIZE
    choices = [
        [size if isinstance(size, int) else size.base for size in kernel_sizes(backend)]
        for backend in backends
    ]
    for candidate in sorted({math.lcm(*sizes) for sizes in itertools.product(*choices)}):
        if all_take(candidate):
            return candidate
    raise ModelError(
        "the attention backends share no block size: "
        + "; ".join(f"{b.name} takes {kernel_sizes(b)}" for b in backends)
    )


def hybrid_block_size(
    block_size: int,
    backends: Sequence[AttentionBackend],
    kernel_sizes: KernelSizes,
    *,
    token_bytes: int,
    state_bytes: int,
    uses_mla: bool,
    checkpoint_alignment: int,
) -> int:
    """Block size in tokens whose attention page holds a recurrent state.

    Args:
        block_size: Block size before alignment.
        backends: Attention backends in layer order.
        kernel_sizes: Kernel block sizes of a backend.
        token_bytes: Bytes of one token in one attention layer.
        state_bytes: Bytes of one recurrent state.
        uses_mla: Whether the attention layers hold latents.
        checkpoint_alignment: Tokens that prefill checkpoints are aligned to, 1 for none.

    Mirrors vllm/platforms/interface.py::Platform._align_hybrid_block_size (0.33).
    """
    alignment = max(smallest_kernel_block_size(kernel_sizes(backends[0])), block_size)
    backend_alignment = math.lcm(*(smallest_kernel_block_size(kernel_sizes(b)) for b in backends))
    if uses_mla:
        alignment = max(alignment, _HYBRID_MLA_BLOCK)
    alignment = math.lcm(alignment, checkpoint_alignment)
    aligned = alignment * -(-state_bytes // (alignment * token_bytes))
    aligned = backend_alignment * -(-aligned // backend_alignment)
    return max(block_size, aligned)


def sliding_block_size(sizes: tuple, token_bytes: int, page_budget: int, fallback: int) -> int:
    """Largest kernel block of a sliding-window layer whose page fits the primary page.

    Args:
        sizes: Kernel block sizes of the layer's backend.
        token_bytes: Bytes of one token in the layer.
        page_budget: Bytes of the page to fit.
        fallback: Block size where the backend declares none.

    Mirrors vllm/model_executor/layers/attention/attention.py::_largest_kernel_block_within (0.33).
    """
    if not sizes:
        return fallback
    limit = page_budget // token_bytes
    candidates = [
        size if isinstance(size, int) else max(size.base, limit // size.base * size.base)
        for size in sizes
    ]
    fitting = [size for size in candidates if size * token_bytes <= page_budget]
    return max(fitting) if fitting else min(candidates)


def skip_layer_page(
    block_size: int, kernel_sizes: tuple, *, primary: int, skipped: int, padded_state: int
) -> tuple[int, int | None]:
    """Block size and shared page where some layers stay unquantized.

    Args:
        block_size: Block size so far, in tokens.
        kernel_sizes: Kernel block sizes of the first backend.
        primary: Bytes of a token in a quantized layer.
        skipped: Bytes of a token in an unquantized layer.
        padded_state: Bytes that recurrent states are padded to, or 0.

    Returns:
        The block size, and the bytes every unquantized sliding-window page is padded to or None.

    Mirrors vllm/platforms/interface.py::Platform._align_heterogeneous_kv_block_size (0.33).
    """
    if skipped == primary:
        return block_size, None
    if skipped < primary:
        raise ModelError(
            f"a skipped layer's token ({skipped} bytes) is smaller than a quantized one's "
            f"({primary} bytes); kv_cache_dtype_skip_layers needs a smaller kv_cache_dtype"
        )
    smallest = smallest_kernel_block_size(kernel_sizes)
    alignment = max(smallest, block_size)
    required = max(skipped * smallest, padded_state)
    block_size = max(block_size, alignment * -(-required // (alignment * primary)))
    return block_size, block_size * primary
