"""Which attention backend vLLM takes on a CUDA GPU when the user names none.

Mirrors vllm/platforms/cuda.py::CudaPlatformBase.get_attn_backend_cls (0.33), as far as the choice
changes a KV cache. FlashAttention 4 is taken as absent, FlashInfer as present.
"""

from __future__ import annotations

from kvplan.offline.models.errors import ModelError
from kvplan.offline.packing import ATTENTION_BACKENDS, BackendNeeds, get_backend, is_quantized


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
