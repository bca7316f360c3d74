"""How each attention backend packs a layer's KV cache: vLLM's ``customize_spec`` as data."""

from __future__ import annotations

from typing import TypeVar

from kvplan import InvalidArgument
from kvplan.offline.packing.backends import get_backend, supported_kernel_block_sizes
from kvplan.offline.packing.formats import (
    mla_per_token_head_bytes,
    nvfp4_slot_bytes,
    octave_slot_bytes,
    per_token_head_bytes,
    turboquant_slot_bytes,
    ultraquant_slot_bytes,
)
from kvplan.offline.packing.quant_mode import DTYPE_BYTES
from kvplan.specs import AttentionSpec, KVQuantMode, MultipleOf

SpecT = TypeVar("SpecT", bound=AttentionSpec)

_PER_TOKEN_HEAD = (
    KVQuantMode.INT8_PER_TOKEN_HEAD,
    KVQuantMode.FP8_PER_TOKEN_HEAD,
    KVQuantMode.INT4_PER_TOKEN_HEAD,
)
_TURBOQUANT = (
    KVQuantMode.TURBOQUANT_K8V4,
    KVQuantMode.TURBOQUANT_4BIT_NC,
    KVQuantMode.TURBOQUANT_K3V4_NC,
    KVQuantMode.TURBOQUANT_3BIT_NC,
)
_OCTAVE = (
    KVQuantMode.OCTAVE_K3V4,
    KVQuantMode.OCTAVE_K3V3,
    KVQuantMode.OCTAVE_K3V3_COMPACT,
)


def _itemsize(spec: AttentionSpec) -> int:
    return DTYPE_BYTES[str(spec.dtype)]


def _symmetric_head_size(backend: str, spec: AttentionSpec) -> int:
    if spec.head_size != spec.head_size_v:
        raise InvalidArgument(
            f"{backend} stores K and V as two planes of one size, so head_size "
            f"({spec.head_size}) must equal head_size_v ({spec.head_size_v})"
        )
    return spec.head_size


def _two_head_slots(backend: str, spec: SpecT) -> SpecT:
    head_size = _symmetric_head_size(backend, spec)
    return spec.replace(
        num_head_slots=2, state_content_bytes=spec.num_kv_heads * head_size * _itemsize(spec)
    )


def customize_spec(
    backend: str,
    spec: SpecT,
    *,
    device_capability: tuple[int, int] = (9, 0),
    rope_dim: int | None = None,
    shuffle_kv_cache: bool = False,
) -> SpecT:
    """The layer's spec as its backend packs it; other specs come back unchanged.

    Args:
        backend: Name of the attention backend as ``--attention-backend`` spells it.
        spec: An attention spec.
        device_capability: CUDA compute capability, where the packing depends on it.
        rope_dim: Rotary elements of a head; needed by the Octave formats.
        shuffle_kv_cache: Whether ``VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT`` is set (ROCM_AITER_FA).

    Raises:
        ValueError: If the backend is unknown or cannot pack this spec.

    Mirrors AttentionBackend.customize_spec of each backend class (vLLM 0.33).
    """
    row, mode = get_backend(backend), spec.kv_quant_mode
    if row.parts:
        first, second = (customize_spec(part, spec) for part in row.parts)
        if first != second:
            raise InvalidArgument(
                f"{backend} runs {' and '.join(row.parts)} on one cache, which pack {mode.name} "
                "differently"
            )
        return first
    if backend == "FLASHMLA_SPARSE":
        # Off Blackwell the quantized kernel reads 64-token pages.
        if mode != KVQuantMode.NONE and device_capability[0] != 10:
            return spec.replace(block_stride_alignment=MultipleOf(64))
        return spec.replace(block_stride_alignment=spec.state_content_size_bytes)
    if row.stride is not None:
        stride = row.stride
        if isinstance(stride, int):
            stride *= spec.state_content_size_bytes
        return spec.replace(block_stride_alignment=stride)
    if spec.block_size != 1 and spec.block_size % row.block_multiple:
        raise InvalidArgument(
            f"{backend} needs a block size that is a multiple of {row.block_multiple}; got "
            f"{spec.block_size}"
        )
    if spec.state_content_bytes is not None:
        return spec
    if row.has_two_head_slots or (backend == "ROCM_AITER_FA" and shuffle_kv_cache):
        return _two_head_slots(backend, spec)
    if backend == "FLASHINFER" and mode == KVQuantMode.NVFP4:
        _symmetric_head_size(backend, spec)
        return spec.replace(
            num_head_slots=2 * spec.num_kv_heads,
            state_content_bytes=nvfp4_slot_bytes(spec.head_size) * _itemsize(spec),
        )
    is_int4 = mode == KVQuantMode.INT4_PER_TOKEN_HEAD
    if row.is_triton and not row.is_mla and mode in _PER_TOKEN_HEAD:
        return spec.replace(
            state_content_bytes=per_token_head_bytes(
                spec.head_size, spec.head_size_v, _itemsize(spec), int4=is_int4
            )
        )
    if row.is_mla and not row.is_sparse and mode in _PER_TOKEN_HEAD:
        return spec.replace(
            state_content_bytes=mla_per_token_head_bytes(
                spec.head_size, _itemsize(spec), int4=is_int4
            )
        )
    if backend == "TURBOQUANT" and mode in _TURBOQUANT:
        return spec.replace(
            state_content_bytes=turboquant_slot_bytes(mode.name.lower(), spec.head_size)
        )
    if backend == "ULTRAQUANT" and mode == KVQuantMode.ULTRAQUANT_4BIT:
        return spec.replace(state_content_bytes=ultraquant_slot_bytes(spec.head_size))
    if backend == "ROCM_OCTAVE" and mode in _OCTAVE:
        if rope_dim is None:
            raise InvalidArgument(
                "ROCM_OCTAVE needs rope_dim, the model's rotary elements per head"
            )
        name = ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact")[_OCTAVE.index(mode)]
        return spec.replace(state_content_bytes=octave_slot_bytes(name, spec.head_size, rope_dim))
    return spec


def customize_attention_spec(
    backend: str,
    spec: SpecT,
    *,
    device_capability: tuple[int, int] = (9, 0),
    rope_dim: int | None = None,
    uses_trtllm_attention: bool = False,
) -> SpecT:
    """``customize_spec``, and whole kernel blocks for backends that take fixed sizes only.

    Mirrors vllm/v1/worker/utils.py::customize_attention_spec (0.33).
    """
    spec = customize_spec(backend, spec, device_capability=device_capability, rope_dim=rope_dim)
    sizes = supported_kernel_block_sizes(
        backend,
        device_capability=device_capability,
        is_quantized=spec.kv_quant_mode != KVQuantMode.NONE,
        uses_trtllm_attention=uses_trtllm_attention,
    )
    fixed = [size for size in sizes if isinstance(size, int)]
    if spec.block_stride_alignment is None and len(fixed) == len(sizes):
        spec = spec.replace(block_stride_alignment=MultipleOf(max(fixed)))
    return spec
