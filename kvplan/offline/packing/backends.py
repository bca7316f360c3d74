"""Attention backends by the names of vLLM's ``--attention-backend``, as far as planning needs them.

Mirrors the classes behind vllm/v1/attention/backends/registry.py::AttentionBackendEnum (0.33).
Kernel block sizes are tokens; an ``int`` is the only size of its kind, a ``MultipleOf`` accepts
every multiple. Layouts are in order of preference, and empty where the kernels take any.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from kvplan import InvalidArgument
from kvplan.offline.packing.quant_mode import is_quantized
from kvplan.specs import MultipleOf

_PLAIN = ("auto", "float16", "bfloat16")
_FP8 = ("fp8", "fp8_e4m3")
_PER_TOKEN_HEAD = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")
_DSV4 = ("BLHNC", "BLNHC")
_ANY_LAYOUT = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")


BlockSizes = tuple[int | MultipleOf, ...]


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

    @property
    def is_quantized(self) -> bool:
        """Whether the layer's cache stores quantized values."""
        return is_quantized(self.kv_cache_dtype)


def _flash_attention_runs(needs: BackendNeeds, capability: tuple[int, int]) -> bool:
    major = capability[0]
    if needs.head_size % 8 or needs.head_size > 256 or needs.mm_prefix or major < 8:
        return False
    if needs.has_sinks and major < 9:
        return False
    return not needs.is_quantized or major == 9


def _flashinfer_runs(needs: BackendNeeds, capability: tuple[int, int]) -> bool:
    if needs.head_size not in (64, 128, 256, 512) or not (8, 0) <= capability <= (12, 1):
        return False
    return not needs.has_sinks or capability[0] == 10


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
        supports_dcp: Whether its kernels return what decode context parallelism combines.
        attends_float32: Whether it attends in float32, too, on CUDA.
        is_triton: Whether its kernels are in Triton, which has a dtype only where the GPU has it.
        asymmetric: The backend that stands in for it where key and value heads differ in size.
        runs_on: Major CUDA compute capabilities that it runs on; empty means any.
        runs: Whether it runs a layer on a GPU beyond that, or None for yes.
        sizes_here: Kernel block sizes that depend on the GPU or on the cache, given its major
            capability, whether the cache is quantized, and whether TensorRT-LLM's kernels run.
        blackwell_layouts: Layouts on compute capability 10 where they differ, or None.
        parts: Backends that it runs on one cache, which both have to pack alike.
        has_two_head_slots: Whether keys and values are two planes of all heads.
        stride: What blocks are aligned to: a multiple of bytes, or of as many stored states as the
            number says; None for nothing.
        block_multiple: Tokens that a block of more than one must be a multiple of.
    """

    name: str
    kernel_block_sizes: BlockSizes = (MultipleOf(1),)
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
    supports_dcp: bool = False
    attends_float32: bool = False
    is_triton: bool = False
    asymmetric: str | None = None
    runs_on: tuple[int, ...] = ()
    runs: Callable[[BackendNeeds, tuple[int, int]], bool] | None = None
    sizes_here: Callable[[int, bool, bool], BlockSizes] | None = None
    blackwell_layouts: tuple[str, ...] | None = None
    parts: tuple[str, ...] = ()
    has_two_head_slots: bool = False
    stride: MultipleOf | int | None = None
    block_multiple: int = 1


def _flash_like(name: str, dtypes: tuple[str, ...], **fields: object) -> AttentionBackend:
    return AttentionBackend(name, (MultipleOf(16),), dtypes, **fields)  # type: ignore[arg-type]


def _mla(
    name: str, sizes: tuple[int | MultipleOf, ...], dtypes: tuple[str, ...], **fields: object
) -> AttentionBackend:
    return AttentionBackend(name, sizes, dtypes, is_mla=True, **fields)  # type: ignore[arg-type]


def _layer(name: str, sizes: tuple[int | MultipleOf, ...], **fields: object) -> AttentionBackend:
    return AttentionBackend(name, sizes, is_selectable=False, **fields)  # type: ignore[arg-type]


def _dense_mla(
    name: str, sizes: BlockSizes, dtypes: tuple[str, ...], *majors: int
) -> AttentionBackend:
    """Latents of these sizes on GPUs of these major capabilities."""
    heads = (320, 512, 576)
    return _mla(name, sizes, dtypes, head_sizes=heads, supports_dcp=True, runs_on=majors)


def _dsv4(name: str, size: int, dtypes: tuple[str, ...], **fields: object) -> AttentionBackend:
    """The packed records of DeepSeek V4, in blocks of one size."""
    return _mla(name, (size,), dtypes, is_sparse=True, head_sizes=(512,), **fields)


def _msa(name: str) -> AttentionBackend:
    dtypes = ("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
    return AttentionBackend(name, (128,), dtypes, is_sparse=True, head_sizes=(128,))


_ROCM_HEADS = (32, 64, 80, 96, 128, 160, 192, 224, 256)

_BACKENDS = (
    _flash_like(
        "FLASH_ATTN",
        _PLAIN + _FP8,
        supports_dcp=True,
        asymmetric="FLASH_ATTN_DIFFKV",
        runs=_flash_attention_runs,
    ),
    _flash_like("FLASH_ATTN_DIFFKV", _PLAIN + _FP8, supports_dcp=True),
    _flash_like(
        "TRITON_ATTN",
        (*_PLAIN, *_FP8, "fp8_e5m2", *_PER_TOKEN_HEAD),
        attends_float32=True,
        is_triton=True,
        asymmetric="TRITON_ATTN_DIFFKV",
    ),
    _flash_like(
        "TRITON_ATTN_DIFFKV", ("auto", "bfloat16", *_FP8), attends_float32=True, is_triton=True
    ),
    _flash_like(
        "TRITON_FLASH_ATTN",
        _PLAIN,
        layouts=_ANY_LAYOUT,
        head_sizes=(256, 512),
        runs=lambda needs, _: needs.mm_prefix and not (needs.is_quantized or needs.has_sinks),
        parts=("TRITON_ATTN", "FLASH_ATTN"),
    ),
    AttentionBackend(
        "FLASHINFER",
        (16, 32, 64),
        (*_PLAIN, *_FP8, "fp8_e5m2", "nvfp4", "nvfp4_4over6"),
        supports_dcp=True,
        runs=lambda needs, gpu: not needs.mm_prefix and _flashinfer_runs(needs, gpu),
        sizes_here=lambda major, _, trtllm: (
            (16, 32, 64, 128, 256, 512, 1024) if trtllm and major == 10 else (16, 32, 64)
        ),
        blackwell_layouts=("LBHNC", "BLHNC"),
    ),
    AttentionBackend(
        "TRITON_FLASHINFER",
        (64,),
        _PLAIN,
        _ANY_LAYOUT,
        head_sizes=(256, 512),
        runs=lambda needs, gpu: needs.mm_prefix and _flashinfer_runs(needs, gpu),
        blackwell_layouts=("LBHNC", "BLHNC"),
        parts=("TRITON_ATTN", "FLASHINFER"),
    ),
    _flash_like(
        "FLEX_ATTENTION",
        _PLAIN,
        layouts=("LBNHC",),
        attends_float32=True,
        runs=lambda needs, _: not needs.has_sinks,
    ),
    AttentionBackend(
        "B12X",
        (64, 128),
        ("auto", "bfloat16", *_FP8),
        ("LBHNC", "BLHNC"),
        preferred_block_size=128,
        head_sizes=(64, 128, 192, 256),
        has_two_head_slots=True,
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
        has_two_head_slots=True,
    ),
    _flash_like(
        "ROCM_SEGMENTED_ATTN",
        _PLAIN + _FP8,
        layouts=("LHBNC", "LBHNC"),
        head_sizes=(64, 128, 256),
        has_two_head_slots=True,
    ),
    AttentionBackend(
        "ROCM_AITER_FA",
        (16, 32),
        (*_PLAIN, *_FP8, "fp8_e5m2"),
        ("LBHNC", "LHBNC"),
        head_sizes=(64, 128, 256),
        block_multiple=16,
    ),
    _flash_like(
        "ROCM_AITER_UNIFIED_ATTN",
        (*_PLAIN, *_FP8, "fp8_e5m2"),
        layouts=("LBHNC", "LHBNC"),
        preferred_block_size=64,
        block_multiple=16,
    ),
    AttentionBackend(
        "CPU_ATTN",
        (MultipleOf(32),),
        ("auto", *_FP8, "fp8_e5m2"),
        ("LBHNC",),
        head_sizes=(32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512),
    ),
    _dense_mla("FLASH_ATTN_MLA", (MultipleOf(16),), _PLAIN, 9),
    _mla("TRITON_MLA", (MultipleOf(16),), _PLAIN + _FP8, supports_dcp=True, is_triton=True),
    _dense_mla("FLASHMLA", (64,), _PLAIN + _FP8, 9, 10),
    _dense_mla("FLASHINFER_MLA", (32, 64), _PLAIN + _FP8, 10),
    _dense_mla("TOKENSPEED_MLA", (32, 64), _FP8, 10),
    _dense_mla("CUTLASS_MLA", (128,), _PLAIN + _FP8, 10),
    _mla("ROCM_AITER_MLA", (MultipleOf(1),), (*_PLAIN, *_FP8, "fp8_e5m2"), supports_dcp=True),
    _mla(
        "ROCM_AITER_TRITON_MLA", (MultipleOf(1),), (*_PLAIN, *_FP8, "fp8_e5m2"), supports_dcp=True
    ),
    _mla("CPU_MLA", (16,), ("auto",), head_sizes=(576,), exact_block_sizes=True),
    _mla("AMX_MLA", (MultipleOf(32),), _PLAIN, head_sizes=(576,)),
    _mla(
        "FLASH_ATTN_MLA_SPARSE", (MultipleOf(64),), _PLAIN, is_sparse=True, runs_on=(9,), stride=1
    ),
    _mla(
        "FLASH_ATTN_MLA_SPARSE_FA4",
        (MultipleOf(64),),
        ("auto", "bfloat16"),
        is_sparse=True,
        head_sizes=(576,),
        supports_dcp=True,
        stride=64,
    ),
    _mla(
        "FLASHMLA_SPARSE",
        (MultipleOf(64),),
        ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
        is_sparse=True,
        head_sizes=(576, 512),
        supports_dcp=True,
        runs_on=(9, 10),
        sizes_here=lambda major, quantized, _: (
            (64,) if quantized and major == 10 else (MultipleOf(64),)
        ),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE",
        (MultipleOf(32),),
        _PLAIN + _FP8,
        is_sparse=True,
        head_sizes=(512, 576),
        supports_dcp=True,
        runs_on=(10,),
        stride=32,
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_SM90",
        (MultipleOf(64),),
        ("auto", "bfloat16", *_FP8),
        is_sparse=True,
        head_sizes=(512, 576),
        runs_on=(9,),
        stride=1,
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_SM120",
        (MultipleOf(64),),
        ("auto", *_FP8, "fp8_ds_mla"),
        is_sparse=True,
        head_sizes=(512, 576),
        runs_on=(12,),
        stride=64,
    ),
    _mla(
        "ROCM_AITER_MLA_SPARSE",
        (1, MultipleOf(16)),
        _PLAIN + _FP8,
        layouts=("LBNHC", "LBHNC", "BLHNC"),
        is_sparse=True,
        stride=1,
    ),
    _mla("XPU_MLA_SPARSE", (MultipleOf(1),), _PLAIN, is_sparse=True, head_sizes=(576,), stride=1),
    _dsv4("FLASHMLA_SPARSE_DSV4", 256, ("auto", "fp8_ds_mla", "fp8")),
    _dsv4("ROCM_FLASHMLA_SPARSE_DSV4", 256, ("auto", "fp8_ds_mla", "fp8")),
    _mla(
        "ROCM_FLASHMLA_SPARSE_DSV41",
        (64, 128),
        ("auto", "fp8_ds_mla", "fp8"),
        is_sparse=True,
        head_sizes=(512,),
    ),
    _dsv4("FLASHINFER_MLA_SPARSE_DSV4", 256, ("auto", "bfloat16", *_FP8, "fp8_ds_mla")),
    _dsv4(
        "FLASHMLA_SPARSE_DSV41",
        64,
        ("auto", "fp8_ds_mla", "fp8"),
        sizes_here=lambda major, *_: (64 if major == 9 else 128,),
    ),
    _dsv4("FLASHINFER_MLA_SPARSE_DSV41", 128, ("auto", "bfloat16", *_FP8, "fp8_ds_mla")),
    _dsv4("FLASHMLA_MEGA_ATTN_DSV41", 128, ("auto", "fp8_ds_mla", "fp8", "nvfp4_ds_mla")),
    _msa("MINIMAX_M3_SPARSE"),
    _msa("CUTLASS_MSA"),
    _msa("TRITON_MSA"),
    _flash_like(
        "STEP5_DSA",
        ("auto", "bfloat16", *_FP8),
        layouts=("BLNHC",),
        is_sparse=True,
        stride=MultipleOf(8),
    ),
    _layer("DEEPSEEK_V32_INDEXER", (64,)),
    _layer("DEEPSEEK_V4_INDEXER", (256,), layouts=_DSV4),
    _layer(
        "DEEPSEEK_V41_INDEXER",
        (64,),
        layouts=_DSV4,
        sizes_here=lambda major, *_: (64 if major == 9 else 128,),
    ),
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
    if backend.sizes_here is None:
        return backend.kernel_block_sizes
    return backend.sizes_here(device_capability[0], is_quantized, uses_trtllm_attention)


def supported_layouts(name: str, device_capability: tuple[int, int] = (9, 0)) -> tuple[str, ...]:
    """KV cache layouts of a backend, most preferred first; empty where it takes any.

    Mirrors AttentionBackend.supported_kv_cache_layouts of the backends (0.33).
    """
    backend = get_backend(name)
    if backend.blackwell_layouts is not None and device_capability[0] == 10:
        return backend.blackwell_layouts
    return backend.layouts


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
