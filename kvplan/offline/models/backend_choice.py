"""Which backend vLLM takes on a CUDA GPU, and the block sizes and the layout that follow from it.

The choice mirrors vllm/platforms/cuda.py::CudaPlatformBase.get_attn_backend_cls (0.33), as far as
it changes a KV cache. FlashAttention 4 is taken as absent, FlashInfer as present.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvplan.offline.models.errors import ModelError
from kvplan.offline.packing import (
    ATTENTION_BACKENDS,
    AttentionBackend,
    BackendNeeds,
    default_block_size,
    get_backend,
    is_quantized,
    smallest_kernel_block_size,
    supports_block_size,
)
from kvplan.specs import KVCacheLayout


def can_run(name: str, needs: BackendNeeds, capability: tuple[int, int]) -> bool:
    """Whether vLLM would accept a backend for a layer on a GPU."""
    backend = ATTENTION_BACKENDS[name]
    dtypes = backend.kv_cache_dtypes
    return (
        (not dtypes or needs.kv_cache_dtype in dtypes)
        and (needs.dtype != "float32" or backend.attends_float32)
        and (not backend.head_sizes or needs.head_size in backend.head_sizes)
        and (not needs.uses_dcp or backend.supports_dcp)
        and (backend.is_mla, backend.is_sparse) == (needs.uses_mla, needs.is_sparse)
        and (not backend.runs_on or capability[0] in backend.runs_on)
        and (backend.runs is None or backend.runs(needs, capability))
    )


def check_triton_dtype(name: str, kv_cache_dtype: str, capability: tuple[int, int]) -> None:
    """Refuse a cache dtype that a chosen Triton backend cannot read on a GPU, as vLLM does.

    vLLM looks at this once the backend is chosen, so no other backend is taken instead.
    Mirrors vllm/v1/attention/backends/triton_attn.py::TritonAttentionImpl and
    vllm/v1/attention/backends/mla/triton_mla.py::TritonMLAImpl (0.33).

    Raises:
        ModelError: If vLLM would refuse it.
    """
    if not get_backend(name).is_triton:
        return
    if kv_cache_dtype.startswith("fp8"):
        needed = (8, 9)
    elif kv_cache_dtype == "bfloat16":
        needed = (8, 0)
    else:
        return
    if capability < needed:
        instead = "bfloat16" if capability >= (8, 0) else "float16"
        raise ModelError(
            f"kv_cache_dtype {kv_cache_dtype!r} needs compute capability {needed[0]}.{needed[1]} "
            f"or later with attention backend {name}, which vLLM takes for this model; the GPU's "
            f"is {capability[0]}.{capability[1]}: give --kv-cache-dtype {instead}"
        )


def _candidates(needs: BackendNeeds, capability: tuple[int, int]) -> list[str]:
    major = capability[0]
    if needs.uses_mla:
        if major == 10:
            if is_quantized(needs.kv_cache_dtype) or needs.num_heads <= 16:
                sparse = ["FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE"]
            else:
                sparse = ["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"]
            return [
                "FLASHINFER_MLA",
                "TOKENSPEED_MLA",
                "CUTLASS_MLA",
                "FLASH_ATTN_MLA",
                "FLASHMLA",
                "TRITON_MLA",
                *sparse,
            ]
        if major == 12:
            return ["TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120"]
        sparse = ["FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
        sparse.insert(0 if needs.head_size == 512 else 2, "FLASHINFER_MLA_SPARSE_SM90")
        return ["FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA", *sparse]
    special = ["TURBOQUANT", "ULTRAQUANT", "ROCM_OCTAVE"]
    if major == 10:
        first = ["TRITON_FLASHINFER"] if needs.mm_prefix else []
        return [*first, "FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", *special]
    first = ["TRITON_FLASH_ATTN"] if major == 9 and needs.mm_prefix else []
    return [*first, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", *special]


def choose_backend(
    needs: BackendNeeds, capability: tuple[int, int], wanted: str | None = None
) -> str:
    """Name of the backend for a layer.

    Raises:
        ModelError: If the wanted backend, or every backend, cannot run the layer.
    """
    if wanted is not None:
        try:
            backend = get_backend(wanted)
        except ValueError as error:
            raise ModelError(str(error)) from None
        if not backend.is_selectable:
            raise ModelError(f"{wanted} belongs to a layer and cannot be chosen")
        if backend.is_mla != needs.uses_mla or backend.is_sparse != needs.is_sparse:
            kind = ("sparse " if needs.is_sparse else "") + ("MLA" if needs.uses_mla else "non-MLA")
            raise ModelError(f"attention backend {wanted} does not run this model's {kind} layers")
        if backend.head_sizes and needs.head_size not in backend.head_sizes:
            raise ModelError(
                f"attention backend {wanted} does not take head size {needs.head_size}; it takes "
                f"{', '.join(map(str, backend.head_sizes))}"
            )
        if backend.kv_cache_dtypes and needs.kv_cache_dtype not in backend.kv_cache_dtypes:
            raise ModelError(
                f"attention backend {wanted} does not take kv_cache_dtype "
                f"{needs.kv_cache_dtype!r}; it takes {', '.join(backend.kv_cache_dtypes)}"
            )
        if needs.uses_dcp and not backend.supports_dcp:
            raise ModelError(f"attention backend {wanted} does not do decode context parallelism")
        if not can_run(wanted, needs, capability):
            raise ModelError(
                f"attention backend {wanted} does not run this model's layers on compute "
                f"capability {capability[0]}.{capability[1]} with kv_cache_dtype "
                f"{needs.kv_cache_dtype!r}; leave --attention-backend out for vLLM's choice"
            )
        return wanted
    for name in _candidates(needs, capability):
        if can_run(name, needs, capability):
            variant = ATTENTION_BACKENDS[name].asymmetric if needs.asymmetric else None
            return variant or name
    raise ModelError(
        f"no attention backend takes head size {needs.head_size} with kv_cache_dtype "
        f"{needs.kv_cache_dtype!r} in dtype {needs.dtype} on compute capability "
        f"{capability[0]}.{capability[1]}"
        f"{' with decode context parallelism' if needs.uses_dcp else ''}"
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


_ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}
_ALL = tuple(KVCacheLayout.__members__)
_PREFERENCE = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")


def supported_layouts(declared: Sequence[tuple[str, ...]]) -> list[str]:
    """Layouts that every backend takes, most preferred first.

    Args:
        declared: Layouts of every backend; an empty tuple takes any.

    Mirrors vllm/v1/attention/backends/utils.py::get_supported_kv_cache_layouts (0.33).
    """
    lists = [layouts for layouts in declared if layouts] or [_PREFERENCE]
    if all(layouts == lists[0] for layouts in lists):
        return list(lists[0])
    votes = Counter(layouts[0] for layouts in lists)
    common = set(lists[0]).intersection(*map(set, lists[1:]))
    candidates = sorted((n for n in _ALL if n in common), key=lambda n: -votes[n])
    if not candidates:
        raise ModelError(f"no KV cache layout is in every backend's set: {lists}")
    return candidates


def resolve_layout(candidates: Sequence[str], specs: Iterable[Any], wanted: str | None) -> str:
    """The layout of the whole model.

    Mirrors vllm/v1/attention/backends/utils.py::resolve_kv_cache_layout (0.33).

    Raises:
        ModelError: If the wanted layout, or every layout, cannot express the model.
    """
    specs = list(specs)
    candidates = list(candidates)
    shapes = {
        (
            getattr(s, "num_head_slots", None) or getattr(s, "num_kv_heads", 1),
            s.num_states,
            s.page_size_bytes,
        )
        for s in specs
    }
    if len(shapes) > 1:
        candidates = [name for name in candidates if KVCacheLayout[name].is_block_compact]
    attention = [s for s in specs if hasattr(s, "num_kv_heads")]
    sharding = {s.dcp_sharded for s in attention if type(s).__name__ != "CircularBufferSpec"}
    if len(sharding) > 1 and len({s.page_size_bytes for s in specs}) > 1:
        candidates = [name for name in candidates if KVCacheLayout[name].is_block_outermost]
    if not candidates:
        raise ModelError("the model's layers need a layout that its attention backends do not take")
    if wanted is None:
        return candidates[0]
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in _ALL:
        raise ModelError(f"unknown KV cache layout {wanted!r}; known: {', '.join(_ALL)}")
    if wanted not in candidates:
        raise ModelError(
            f"KV cache layout {wanted} cannot express this model; layouts that can: "
            f"{', '.join(candidates)}"
        )
    return wanted
