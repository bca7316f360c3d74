"""Which attention backend vLLM takes on a CUDA GPU when the user names none.

Mirrors vllm/platforms/cuda.py::CudaPlatformBase.get_attn_backend_cls (0.33), as far as the choice
changes a KV cache. FlashAttention 4 is taken as absent, FlashInfer as present.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.offline.models.errors import ModelError
from kvplan.offline.packing import ATTENTION_BACKENDS, get_backend, get_kv_quant_mode
from kvplan.specs import KVQuantMode


@dataclass(frozen=True, kw_only=True)
class BackendNeeds:
    """What a layer asks of its backend.

    Attributes:
        head_size: Elements of a head (of the latent and rotary key for MLA).
        kv_cache_dtype: ``--kv-cache-dtype`` of the layer.
        uses_mla: Whether it is multi-head latent attention.
        is_sparse: Whether an indexer selects the tokens.
        has_sinks: Whether it has attention sinks.
        mm_prefix: Whether image positions are attended in both directions.
        asymmetric: Whether key and value heads differ in size.
        num_heads: Attention heads of one TP rank.
        uses_dcp: Whether ranks share each sequence's tokens.
        dtype: The model's activation dtype.
    """

    head_size: int
    kv_cache_dtype: str = "auto"
    uses_mla: bool = False
    is_sparse: bool = False
    has_sinks: bool = False
    mm_prefix: bool = False
    asymmetric: bool = False
    num_heads: int = 1
    uses_dcp: bool = False
    dtype: str = "bfloat16"


#: Backends on CUDA that attend in float32, too.
_WITH_FLOAT32 = frozenset({"TRITON_ATTN", "TRITON_ATTN_DIFFKV", "FLEX_ATTENTION"})


def is_quantized(kv_cache_dtype: str) -> bool:
    """Whether a ``--kv-cache-dtype`` stores quantized values."""
    return get_kv_quant_mode(kv_cache_dtype) != KVQuantMode.NONE


def can_run(name: str, needs: BackendNeeds, capability: tuple[int, int]) -> bool:
    """Whether vLLM would accept a backend for a layer on a GPU."""
    backend = ATTENTION_BACKENDS[name]
    dtypes, major = backend.kv_cache_dtypes, capability[0]
    if dtypes and needs.kv_cache_dtype not in dtypes:
        return False
    if needs.dtype == "float32" and name not in _WITH_FLOAT32:
        return False
    if backend.head_sizes and needs.head_size not in backend.head_sizes:
        return False
    if needs.uses_dcp and not backend.supports_dcp:
        return False
    if backend.is_mla != needs.uses_mla or backend.is_sparse != needs.is_sparse:
        return False
    quantized = is_quantized(needs.kv_cache_dtype)
    match name:
        case "FLASH_ATTN":
            if needs.head_size % 8 or needs.head_size > 256 or needs.mm_prefix or major < 8:
                return False
            if needs.has_sinks and major < 9:
                return False
            return not quantized or major == 9
        case "TRITON_FLASH_ATTN":
            return needs.mm_prefix and not quantized and not needs.has_sinks
        case "FLASHINFER" | "TRITON_FLASHINFER":
            if needs.head_size not in (64, 128, 256, 512) or not (8, 0) <= capability <= (12, 1):
                return False
            if needs.has_sinks and major != 10:
                return False
            return needs.mm_prefix == (name == "TRITON_FLASHINFER")
        case "FLEX_ATTENTION":
            return not needs.has_sinks
        case "FLASH_ATTN_MLA" | "FLASH_ATTN_MLA_SPARSE" | "FLASHINFER_MLA_SPARSE_SM90":
            return major == 9
        case "FLASHMLA" | "FLASHMLA_SPARSE":
            return major in (9, 10)
        case "FLASHINFER_MLA" | "TOKENSPEED_MLA" | "CUTLASS_MLA" | "FLASHINFER_MLA_SPARSE":
            return major == 10
        case "FLASHINFER_MLA_SPARSE_SM120":
            return major == 12
    return True


#: Backends whose kernels are written in Triton, which compiles a dtype only where the GPU has it.
_TRITON = frozenset({"TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_MLA"})


def check_triton_dtype(name: str, kv_cache_dtype: str, capability: tuple[int, int]) -> None:
    """Refuse a cache dtype that a chosen Triton backend cannot read on a GPU, as vLLM does.

    vLLM looks at this once the backend is chosen, so no other backend is taken instead.
    Mirrors vllm/v1/attention/backends/triton_attn.py::TritonAttentionImpl and
    vllm/v1/attention/backends/mla/triton_mla.py::TritonMLAImpl (0.33).

    Raises:
        ModelError: If vLLM would refuse it.
    """
    if name not in _TRITON:
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
            return (
                f"{name}_DIFFKV"
                if needs.asymmetric
                and name
                in (
                    "FLASH_ATTN",
                    "TRITON_ATTN",
                )
                else name
            )
    raise ModelError(
        f"no attention backend takes head size {needs.head_size} with kv_cache_dtype "
        f"{needs.kv_cache_dtype!r} in dtype {needs.dtype} on compute capability "
        f"{capability[0]}.{capability[1]}"
        f"{' with decode context parallelism' if needs.uses_dcp else ''}"
    )
