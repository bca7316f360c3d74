"""Attention backends by the names of vLLM's ``--attention-backend``, as far as planning needs them.

Mirrors the classes behind vllm/v1/attention/backends/registry.py::AttentionBackendEnum (0.33).
Kernel block sizes are tokens; an ``int`` is the only size of its kind, a ``MultipleOf`` accepts
every multiple. Layouts are in order of preference, and empty where the kernels take any.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kvplan import InvalidArgument
from kvplan.specs import MultipleOf

_PLAIN = ("auto", "float16", "bfloat16")
_FP8 = ("fp8", "fp8_e4m3")
_PER_TOKEN_HEAD = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")
_DSV4 = ("BLHNC", "BLNHC")
_ANY_LAYOUT = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")
_BLACKWELL_FLASHINFER = ("LBHNC", "BLHNC")


@dataclass(frozen=True)
class AttentionBackend:
    """What a backend declares about its KV cache.

    Attributes:
        name: The name in ``--attention-backend``, or of a layer's own backend.
        kernel_block_sizes: Sizes its kernels take, in tokens, on compute capability 9.0.
        kv_cache_dtypes: ``--kv-cache-dtype`` values it takes; empty means any.
        layouts: KV cache layouts it takes, most preferred first; empty means any.
        preferred_block_size: Block size when the default of 16 does not fit, or None for the rule
            of the base class.
        is_mla: Whether it runs multi-head latent attention.
        is_sparse: Whether it runs sparse attention with an indexer.
        head_sizes: Head sizes it takes; empty means any.
        is_state: Whether it keeps a recurrent state instead of keys and values.
        is_selectable: Whether a user can choose it; the others belong to a layer.
        exact_block_sizes: Whether a block must be one of the sizes, not a multiple of one.
        published_name: What vLLM calls it where two of its backends have one name, or None.
    """

    name: str
    kernel_block_sizes: tuple[int | MultipleOf, ...] = (MultipleOf(1),)
    kv_cache_dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    preferred_block_size: int | None = None
    is_mla: bool = False
    is_sparse: bool = False
    head_sizes: tuple[int, ...] = ()
    is_state: bool = False
    is_selectable: bool = True
    exact_block_sizes: bool = False
    published_name: str | None = None

    @property
    def supports_dcp(self) -> bool:
        """Whether its kernels return what decode context parallelism combines."""
        return self.name in _WITH_DCP


def _flash_like(name: str, dtypes: tuple[str, ...], **fields: object) -> AttentionBackend:
    return AttentionBackend(name, (MultipleOf(16),), dtypes, **fields)  # type: ignore[arg-type]


def _mla(
    name: str, sizes: tuple[int | MultipleOf, ...], dtypes: tuple[str, ...], **fields: object
) -> AttentionBackend:
    return AttentionBackend(name, sizes, dtypes, is_mla=True, **fields)  # type: ignore[arg-type]


def _layer(name: str, sizes: tuple[int | MultipleOf, ...], **fields: object) -> AttentionBackend:
    return AttentionBackend(name, sizes, is_selectable=False, **fields)  # type: ignore[arg-type]


_WITH_DCP = frozenset(
    (
        "FLASH_ATTN",
        "FLASH_ATTN_DIFFKV",
        "FLASHINFER",
        "FLASHINFER_MLA",
        "TOKENSPEED_MLA",
        "FLASHINFER_MLA_SPARSE",
        "TRITON_MLA",
        "CUTLASS_MLA",
        "FLASHMLA",
        "FLASHMLA_SPARSE",
        "FLASH_ATTN_MLA",
        "FLASH_ATTN_MLA_SPARSE_FA4",
        "ROCM_AITER_MLA",
        "ROCM_AITER_TRITON_MLA",
    )
)
_ROCM_HEADS = (32, 64, 80, 96, 128, 160, 192, 224, 256)
_MSA = ("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")

_BACKENDS = (
    _flash_like("FLASH_ATTN", _PLAIN + _FP8),
    _flash_like("FLASH_ATTN_DIFFKV", _PLAIN + _FP8),
    _flash_like("TRITON_ATTN", (*_PLAIN, *_FP8, "fp8_e5m2", *_PER_TOKEN_HEAD)),
    _flash_like("TRITON_ATTN_DIFFKV", ("auto", "bfloat16", *_FP8)),
    _flash_like(
        "TRITON_FLASH_ATTN",
        _PLAIN,
        layouts=_ANY_LAYOUT,
        head_sizes=(256, 512),
    ),
    AttentionBackend(
        "FLASHINFER", (16, 32, 64), (*_PLAIN, *_FP8, "fp8_e5m2", "nvfp4", "nvfp4_4over6")
    ),
    AttentionBackend("TRITON_FLASHINFER", (64,), _PLAIN, _ANY_LAYOUT, head_sizes=(256, 512)),
    _flash_like("FLEX_ATTENTION", _PLAIN, layouts=("LBNHC",)),
    AttentionBackend(
        "B12X",
        (64, 128),
        ("auto", "bfloat16", *_FP8),
        ("LBHNC", "BLHNC"),
        preferred_block_size=128,
        head_sizes=(64, 128, 192, 256),
    ),
    AttentionBackend(
        "HPC_ATTN", (64,), ("auto", "bfloat16", "fp8_e4m3"), ("LBNHC",), head_sizes=(128,)
    ),
    AttentionBackend(
        "TURBOQUANT",
        (16, 32, 64, 128),
        ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
        ("LBNHC",),
    ),
    AttentionBackend(
        "ULTRAQUANT",
        (16, 32, 64, 128),
        ("ultraquant_4bit",),
        ("LBNHC",),
        preferred_block_size=64,
    ),
    _flash_like(
        "ROCM_OCTAVE",
        ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"),
        layouts=("LBHNC", "LBNHC"),
        head_sizes=(256,),
    ),
    _flash_like(
        "ROCM_ATTN",
        (*_PLAIN, *_FP8, "fp8_e5m2"),
        layouts=("LHBNC", "LBHNC"),
        head_sizes=_ROCM_HEADS,
    ),
    _flash_like(
        "ROCM_SEGMENTED_ATTN",
        _PLAIN + _FP8,
        layouts=("LHBNC", "LBHNC"),
        head_sizes=(64, 128, 256),
    ),
    AttentionBackend(
        "ROCM_AITER_FA",
        (16, 32),
        (*_PLAIN, *_FP8, "fp8_e5m2"),
        ("LBHNC", "LHBNC"),
        head_sizes=(64, 128, 256),
    ),
    _flash_like(
        "ROCM_AITER_UNIFIED_ATTN",
        (*_PLAIN, *_FP8, "fp8_e5m2"),
        layouts=("LBHNC", "LHBNC"),
        preferred_block_size=64,
    ),
    AttentionBackend(
        "CPU_ATTN",
        (MultipleOf(32),),
        ("auto", *_FP8, "fp8_e5m2"),
        ("LBHNC",),
        head_sizes=(32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512),
    ),
    _mla("FLASH_ATTN_MLA", (MultipleOf(16),), _PLAIN, head_sizes=(320, 512, 576)),
    _mla("TRITON_MLA", (MultipleOf(16),), _PLAIN + _FP8),
    _mla("FLASHMLA", (64,), _PLAIN + _FP8, head_sizes=(320, 512, 576)),
    _mla("FLASHINFER_MLA", (32, 64), _PLAIN + _FP8, head_sizes=(320, 512, 576)),
    _mla("TOKENSPEED_MLA", (32, 64), _FP8, head_sizes=(320, 512, 576)),
    _mla("CUTLASS_MLA", (128,), _PLAIN + _FP8, head_sizes=(320, 512, 576)),
    _mla("ROCM_AITER_MLA", (MultipleOf(1),), (*_PLAIN, *_FP8, "fp8_e5m2")),
    _mla("ROCM_AITER_TRITON_MLA", (MultipleOf(1),), (*_PLAIN, *_FP8, "fp8_e5m2")),
    _mla("CPU_MLA", (16,), ("auto",), head_sizes=(576,), exact_block_sizes=True),
    _mla("AMX_MLA", (MultipleOf(32),), _PLAIN, head_sizes=(576,)),
    _mla("FLASH_ATTN_MLA_SPARSE", (MultipleOf(64),), _PLAIN, is_sparse=True),
    _mla(
        "FLASH_ATTN_MLA_SPARSE_FA4",
        (MultipleOf(64),),
        ("auto", "bfloat16"),
        is_sparse=True,
        head_sizes=(576,),
    ),
    _mla(
        "FLASHMLA_SPARSE",
        (MultipleOf(64),),
        ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
        is_sparse=True,
        head_sizes=(576, 512),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE",
        (MultipleOf(32),),
        _PLAIN + _FP8,
        is_sparse=True,
        head_sizes=(512, 576),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_SM90",
        (MultipleOf(64),),
        ("auto", "bfloat16", *_FP8),
        is_sparse=True,
        head_sizes=(512, 576),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_SM120",
        (MultipleOf(64),),
        ("auto", *_FP8, "fp8_ds_mla"),
        is_sparse=True,
        head_sizes=(512, 576),
    ),
    _mla(
        "ROCM_AITER_MLA_SPARSE",
        (1, MultipleOf(16)),
        _PLAIN + _FP8,
        layouts=("LBNHC", "LBHNC", "BLHNC"),
        is_sparse=True,
    ),
    _mla("XPU_MLA_SPARSE", (MultipleOf(1),), _PLAIN, is_sparse=True, head_sizes=(576,)),
    _mla(
        "FLASHMLA_SPARSE_DSV4",
        (256,),
        ("auto", "fp8_ds_mla", "fp8"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _mla(
        "ROCM_FLASHMLA_SPARSE_DSV4",
        (256,),
        ("auto", "fp8_ds_mla", "fp8"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _mla(
        "ROCM_FLASHMLA_SPARSE_DSV41",
        (64, 128),
        ("auto", "fp8_ds_mla", "fp8"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_DSV4",
        (256,),
        ("auto", "bfloat16", *_FP8, "fp8_ds_mla"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _mla(
        "FLASHMLA_SPARSE_DSV41",
        (64,),
        ("auto", "fp8_ds_mla", "fp8"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_DSV41",
        (128,),
        ("auto", "bfloat16", *_FP8, "fp8_ds_mla"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _mla(
        "FLASHMLA_MEGA_ATTN_DSV41",
        (128,),
        ("auto", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    AttentionBackend("MINIMAX_M3_SPARSE", (128,), _MSA, is_sparse=True, head_sizes=(128,)),
    AttentionBackend("CUTLASS_MSA", (128,), _MSA, is_sparse=True, head_sizes=(128,)),
    AttentionBackend("TRITON_MSA", (128,), _MSA, is_sparse=True, head_sizes=(128,)),
    _flash_like("STEP5_DSA", ("auto", "bfloat16", *_FP8), layouts=("BLNHC",), is_sparse=True),
    _layer("DEEPSEEK_V32_INDEXER", (64,)),
    _layer("DEEPSEEK_V4_INDEXER", (256,), layouts=_DSV4),
    _layer("DEEPSEEK_V41_INDEXER", (64,), layouts=_DSV4),
    _layer("DEEPSEEK_SPARSE_SWA", (MultipleOf(32),), preferred_block_size=256),
    _layer("CompressorBackend", (MultipleOf(1),)),
    _layer("GLM5_NEXT_INDEXER", (128, 256), published_name="DEEPSEEK_V32_INDEXER"),
    _layer("KPOOL_TAIL", (MultipleOf(1),), layouts=("BLHNC",)),
    _layer("MINIMAX_M3_SPARSE_INDEXER", (128,)),
    _layer("INKLING_SCONV_SWA", (MultipleOf(1),)),
    _layer("QWEN4_EXP_EXP_QSA_STATE", (MultipleOf(1),), layouts=("BLNHC", "BLHNC")),
    _layer("QWEN4_EXP_QSA_TRITON", (MultipleOf(16),)),
    _layer("PLE_SHORT_CONV_ATTN", (MultipleOf(1),), is_state=True),
    _layer("MAMBA1_ATTN", (MultipleOf(1),), is_state=True),
    _layer("MAMBA2_ATTN", (MultipleOf(1),), is_state=True),
    _layer("SHORT_CONV_ATTN", (MultipleOf(1),), is_state=True),
    _layer("BAILING_LINEAR_ATTN", (MultipleOf(1),), is_state=True),
    _layer("KIMI_K3_KDA", (MultipleOf(1),), is_state=True),
    _layer("GDN_ATTN", (MultipleOf(1),), is_state=True),
)

#: Every backend that kvplan knows, by name.
ATTENTION_BACKENDS: dict[str, AttentionBackend] = {backend.name: backend for backend in _BACKENDS}


def get_backend(name: str) -> AttentionBackend:
    """Look a backend up by its vLLM name.

    Raises:
        ValueError: If no backend has this name; the message suggests the nearest one.
    """
    try:
        return ATTENTION_BACKENDS[name]
    except KeyError:
        known = [b.name for b in _BACKENDS if b.is_selectable]
        near = difflib.get_close_matches(name.upper(), known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidArgument(
            f"unknown attention backend {name!r}{hint}; known: {', '.join(known)}"
        ) from None


def supported_kernel_block_sizes(
    name: str,
    *,
    device_capability: tuple[int, int] = (9, 0),
    is_quantized: bool = False,
    uses_trtllm_attention: bool = False,
) -> tuple[int | MultipleOf, ...]:
    """Kernel block sizes in tokens, where they depend on the GPU or on the cache.

    Args:
        name: Name of the backend.
        device_capability: CUDA compute capability.
        is_quantized: Whether the layer's cache is quantized.
        uses_trtllm_attention: Whether FlashInfer runs the model's grouped-query attention with the
            TensorRT-LLM kernels (Blackwell only).

    Mirrors AttentionBackend.get_supported_kernel_block_sizes of the backends (0.33).
    """
    backend = get_backend(name)
    major = device_capability[0]
    if name == "FLASHMLA_SPARSE" and is_quantized and major == 10:
        return (64,)
    if name in ("FLASHMLA_SPARSE_DSV41", "DEEPSEEK_V41_INDEXER"):
        return (64 if major == 9 else 128,)
    if name == "FLASHINFER" and uses_trtllm_attention and major == 10:
        return (*backend.kernel_block_sizes, 128, 256, 512, 1024)
    return backend.kernel_block_sizes


def supported_layouts(name: str, device_capability: tuple[int, int] = (9, 0)) -> tuple[str, ...]:
    """KV cache layouts of a backend, most preferred first; empty where it takes any.

    Mirrors AttentionBackend.supported_kv_cache_layouts of the backends (0.33).
    """
    if name in ("FLASHINFER", "TRITON_FLASHINFER") and device_capability[0] == 10:
        return _BLACKWELL_FLASHINFER
    return get_backend(name).layouts


def smallest_kernel_block_size(sizes: tuple[int | MultipleOf, ...]) -> int:
    """The smallest size of a declaration, counting ``MultipleOf(n)`` as n."""
    return min(size if isinstance(size, int) else size.base for size in sizes)


def supports_block_size(
    backend: AttentionBackend, block_size: int, sizes: tuple[int | MultipleOf, ...] | None = None
) -> bool:
    """Whether blocks of this many tokens can be split into the backend's kernel blocks.

    Mirrors vllm/v1/attention/backend.py::AttentionBackend.supports_block_size (0.33).
    """
    sizes = backend.kernel_block_sizes if sizes is None else sizes
    if backend.exact_block_sizes:
        return block_size in sizes
    return any(block_size % (s if isinstance(s, int) else s.base) == 0 for s in sizes)


def default_block_size(
    backend: AttentionBackend, default: int = 16, sizes: tuple[int | MultipleOf, ...] | None = None
) -> int:
    """Block size in tokens that vLLM takes when the user names none.

    Mirrors vllm/v1/attention/backend.py::AttentionBackend.get_preferred_block_size (0.33).
    """
    if backend.preferred_block_size is not None:
        return backend.preferred_block_size
    sizes = backend.kernel_block_sizes if sizes is None else sizes
    if supports_block_size(backend, default, sizes):
        return default
    return smallest_kernel_block_size(sizes)
