"""Bytes of one packed KV cache cell: one (head slot, stored state) pair of a page.

Every function takes a head size in elements and returns bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan import InvalidArgument

_NVFP4_GROUP = 16
_FP32_BYTES = 4
_ULTRAQUANT_GROUP = 32
_OCTAVE_BLOCK = 64
_OCTAVE_WIDE_BITS = 4
_OCTAVE_NARROW_BITS = 3

#: Bytes per token of the MLA caches that hold one opaque record per token.
DS_MLA_RECORD_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}

#: DeepSeek-V4's record: 448 bytes of fp8 latent, 128 of bf16 RoPE, 8 of scales.
DEEPSEEK_V4_RECORD_BYTES = 584

#: Bytes a page of DeepSeek-V4 records is rounded up to.
DEEPSEEK_V4_PAGE_ALIGNMENT = 576


def _ceil_bytes(bits: int) -> int:
    return -(-bits // 8)


def nvfp4_slot_bytes(head_size: int) -> int:
    """One side (K or V) of an NVFP4 head: 4-bit data and an fp8 scale per 16 values.

    Mirrors vllm/utils/torch_utils.py::nvfp4_kv_cache_full_dim (0.33).
    """
    return head_size // 2 + head_size // _NVFP4_GROUP


def per_token_head_bytes(head_size: int, head_size_v: int, itemsize: int, *, int4: bool) -> int:
    """K and V of one head with their two inline fp32 scales; int4 halves the data.

    Mirrors vllm/v1/attention/backends/triton_attn.py::TritonAttentionBackend.customize_spec (0.33).
    """
    if int4:
        head_size, head_size_v = head_size // 2, head_size_v // 2
    return (head_size + head_size_v) * itemsize + 2 * _FP32_BYTES


def mla_per_token_head_bytes(head_size: int, itemsize: int, *, int4: bool) -> int:
    """One MLA latent with its inline fp32 scale pair; int4 halves the data.

    Mirrors vllm/model_executor/layers/attention/mla_attention.py::MLACommonBackend.customize_spec
    (0.33).
    """
    return (head_size // 2 if int4 else head_size) * itemsize + 2 * _FP32_BYTES


@dataclass(frozen=True)
class TurboQuantPreset:
    """Bits of a key and of a value element; 8-bit keys are plain fp8."""

    key_bits: int
    value_bits: int


TURBOQUANT_PRESETS = {
    "turboquant_k8v4": TurboQuantPreset(8, 4),
    "turboquant_4bit_nc": TurboQuantPreset(4, 4),
    "turboquant_k3v4_nc": TurboQuantPreset(3, 4),
    "turboquant_3bit_nc": TurboQuantPreset(3, 3),
}


def turboquant_slot_bytes(preset: str, head_size: int) -> int:
    """K and V of one head in one slot, rounded up to an even size.

    Quantized keys carry an fp16 norm, values an fp16 scale and zero point.
    Mirrors vllm/model_executor/layers/quantization/turboquant/config.py::TurboQuantConfig (0.33).

    Raises:
        ValueError: If the preset is unknown.
    """
    if preset not in TURBOQUANT_PRESETS:
        raise InvalidArgument(
            f"unknown TurboQuant preset {preset!r}; known: {', '.join(TURBOQUANT_PRESETS)}"
        )
    bits = TURBOQUANT_PRESETS[preset]
    key = head_size if bits.key_bits == 8 else _ceil_bytes(head_size * bits.key_bits) + 2
    slot = key + _ceil_bytes(head_size * bits.value_bits) + 4
    return slot + slot % 2


def ultraquant_slot_bytes(head_size: int) -> int:
    """FP4 codes of K and V with one E8M0 scale byte per 32 elements.

    Mirrors vllm/v1/attention/ops/ultraquant/format.py::slot_size (0.33).

    Raises:
        ValueError: If the head size is not a multiple of 32.
    """
    if head_size % _ULTRAQUANT_GROUP:
        raise InvalidArgument(
            f"ultraquant_4bit needs a head size that is a multiple of {_ULTRAQUANT_GROUP}; "
            f"got {head_size}"
        )
    return 2 * (head_size // 2 + head_size // _ULTRAQUANT_GROUP)


def octave_slot_bytes(cache_dtype: str, head_size: int, rope_dim: int) -> int:
    """Lloyd-Max codes of K and V of one head with fp16 scales, in one aligned slot.

    Args:
        cache_dtype: ``octave_k3v4``, ``octave_k3v3`` or ``octave_k3v3_compact``.
        head_size: Elements of a head, a multiple of 64.
        rope_dim: Rotary elements of a head, a multiple of 64: stored with 4 bits instead of 3
            unless the format is compact.

    Mirrors vllm/v1/attention/ops/rocm_octave.py::OctaveFormat.slot_bytes (0.33).

    Raises:
        ValueError: If the format is unknown or a size does not divide into its blocks.
    """
    formats = {
        "octave_k3v4": (4, False),
        "octave_k3v3": (3, False),
        "octave_k3v3_compact": (3, True),
    }
    if cache_dtype not in formats:
        raise InvalidArgument(f"unknown Octave format {cache_dtype!r}; known: {', '.join(formats)}")
    value_bits, compact = formats[cache_dtype]
    if head_size % _OCTAVE_BLOCK or rope_dim % _OCTAVE_BLOCK:
        raise InvalidArgument(
            f"{cache_dtype} needs the head size and the rotary size in multiples of "
            f"{_OCTAVE_BLOCK}; got {head_size} and {rope_dim}"
        )
    if compact and head_size & (head_size - 1):
        raise InvalidArgument(f"{cache_dtype} needs a power-of-two head size; got {head_size}")
    wide = 0 if compact else rope_dim
    codes = wide * _OCTAVE_WIDE_BITS // 8 + (head_size - wide) * _OCTAVE_NARROW_BITS // 8
    codes += head_size * value_bits // 8
    num_scales = 2 if compact else head_size // _OCTAVE_BLOCK + 1
    alignment = 4 if compact else 8
    return -(-(codes + 2 * num_scales) // alignment) * alignment
