# ruff: noqa: E402 - imports follow importorskip
"""Packed KV cache bytes, computed by hand."""

from __future__ import annotations

import pytest

specs = pytest.importorskip("kvplan.specs")

from kvplan.offline.packing import (
    ATTENTION_BACKENDS,
    DEEPSEEK_V4_RECORD_BYTES,
    DS_MLA_RECORD_BYTES,
    customize_attention_spec,
    customize_spec,
    default_block_size,
    get_backend,
    get_kv_quant_mode,
    nvfp4_slot_bytes,
    octave_slot_bytes,
    storage_dtype,
    supported_kernel_block_sizes,
    supports_block_size,
    turboquant_slot_bytes,
    ultraquant_slot_bytes,
)


def full(**changes):
    fields = {
        "block_size": 16,
        "num_kv_heads": 8,
        "head_size": 128,
        "dtype": "uint8",
        "kv_quant_mode": specs.KVQuantMode.NONE,
    }
    return specs.FullAttentionSpec(**{**fields, **changes})


def mla(**changes):
    fields = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}
    return specs.MLAAttentionSpec(**{**fields, **changes})


def test_nvfp4_is_half_a_byte_and_a_scale_per_sixteen():
    assert nvfp4_slot_bytes(128) == 64 + 8
    spec = customize_spec("FLASHINFER", full(kv_quant_mode=specs.KVQuantMode.NVFP4))
    assert (spec.num_head_slots, spec.state_content_bytes) == (16, 72)
    assert spec.page_size_bytes == 16 * 16 * 72


def test_nvfp4_needs_equal_heads():
    with pytest.raises(ValueError, match=r"head_size \(128\) must equal head_size_v \(64\)"):
        customize_spec("FLASHINFER", full(head_size_v=64, kv_quant_mode=specs.KVQuantMode.NVFP4))


@pytest.mark.parametrize(
    ("mode", "dtype", "expected"),
    [
        ("INT8_PER_TOKEN_HEAD", "int8", 128 + 128 + 8),
        ("FP8_PER_TOKEN_HEAD", "uint8", 128 + 128 + 8),
        ("INT4_PER_TOKEN_HEAD", "uint8", 64 + 64 + 8),
    ],
)
def test_triton_keeps_two_fp32_scales_per_token_and_head(mode, dtype, expected):
    spec = full(dtype=dtype, kv_quant_mode=getattr(specs.KVQuantMode, mode))
    assert customize_spec("TRITON_ATTN", spec).state_content_bytes == expected


def test_mla_keeps_one_scale_pair_per_latent():
    spec = mla(dtype="int8", kv_quant_mode=specs.KVQuantMode.INT8_PER_TOKEN_HEAD)
    assert customize_spec("TRITON_MLA", spec).state_content_bytes == 576 + 8
    spec = mla(dtype="uint8", kv_quant_mode=specs.KVQuantMode.INT4_PER_TOKEN_HEAD)
    assert customize_spec("TRITON_MLA", spec).state_content_bytes == 288 + 8


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # fp8 keys 128; values 64 + 4
        ("turboquant_k8v4", 196),
        # keys 64 + 2; values 64 + 4
        ("turboquant_4bit_nc", 134),
        # keys 48 + 2; values 64 + 4
        ("turboquant_k3v4_nc", 118),
        # keys 48 + 2; values 48 + 4
        ("turboquant_3bit_nc", 102),
    ],
)
def test_turboquant_slots(preset, expected):
    assert turboquant_slot_bytes(preset, 128) == expected
    mode = get_kv_quant_mode(preset)
    assert customize_spec("TURBOQUANT", full(kv_quant_mode=mode)).state_content_bytes == expected


def test_turboquant_slots_are_even():
    # keys ceil(100 * 3 / 8) + 2 = 40; values ceil(100 * 3 / 8) + 4 = 42
    assert turboquant_slot_bytes("turboquant_3bit_nc", 100) == 82
    # keys 99; values 50 + 4: 153 rounds up
    assert turboquant_slot_bytes("turboquant_k8v4", 99) == 154


def test_ultraquant_slots():
    assert ultraquant_slot_bytes(128) == 136
    assert ultraquant_slot_bytes(256) == 272
    with pytest.raises(ValueError, match="multiple of 32; got 100"):
        ultraquant_slot_bytes(100)


def test_octave_slots():
    # K: 64 * 4 / 8 + 192 * 3 / 8 = 104; V: 128; 5 scales of 2 bytes: 242 rounds to 248
    assert octave_slot_bytes("octave_k3v4", 256, 64) == 248
    # K: 104; V: 96; scales 10: 210 rounds to 216
    assert octave_slot_bytes("octave_k3v3", 256, 64) == 216
    # K: 96; V: 96; scales 4: 196
    assert octave_slot_bytes("octave_k3v3_compact", 256, 64) == 196
    with pytest.raises(ValueError, match="needs rope_dim"):
        customize_spec("ROCM_OCTAVE", full(kv_quant_mode=specs.KVQuantMode.OCTAVE_K3V3))


def test_ds_mla_records():
    # fp8: 512 latent bytes, 4 fp32 scales, 64 bf16 rotary elements
    assert DS_MLA_RECORD_BYTES["fp8_ds_mla"] == 512 + 16 + 128
    # nvfp4: 256 + 32 for the latent, 64 fp8 rotary elements
    assert DS_MLA_RECORD_BYTES["nvfp4_ds_mla"] == 288 + 64
    assert DEEPSEEK_V4_RECORD_BYTES == 448 + 128 + 8


@pytest.mark.parametrize("backend", ["ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "B12X"])
def test_two_head_slots(backend):
    spec = customize_spec(backend, full(dtype="bfloat16"))
    assert (spec.num_head_slots, spec.state_content_bytes) == (2, 8 * 128 * 2)
    assert spec.page_size_bytes == full(dtype="bfloat16").page_size_bytes


def test_aiter_takes_two_slots_only_when_shuffled():
    spec = full(dtype="bfloat16")
    assert customize_spec("ROCM_AITER_FA", spec) == spec
    shuffled = customize_spec("ROCM_AITER_FA", spec, shuffle_kv_cache=True)
    assert shuffled.num_head_slots == 2
    with pytest.raises(ValueError, match="multiple of 16; got 24"):
        customize_spec("ROCM_AITER_FA", full(block_size=24))


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("FLASH_ATTN_MLA_SPARSE", 1152),
        ("XPU_MLA_SPARSE", 1152),
        ("FLASHINFER_MLA_SPARSE", 32 * 1152),
        ("FLASHINFER_MLA_SPARSE_SM120", 64 * 1152),
        ("FLASHMLA_SPARSE", 1152),
    ],
)
def test_sparse_mla_blocks_are_whole_rows_apart(backend, expected):
    assert customize_spec(backend, mla()).block_stride_alignment == expected


def test_quantized_sparse_mla_keeps_whole_kernel_blocks():
    mode = specs.KVQuantMode.FP8_PER_TENSOR
    spec = mla(dtype="uint8", state_content_bytes=656, kv_quant_mode=mode)
    hopper = customize_spec("FLASHMLA_SPARSE", spec)
    assert hopper.block_stride_alignment == specs.MultipleOf(64)
    blackwell = customize_spec("FLASHMLA_SPARSE", spec, device_capability=(10, 0))
    assert blackwell.block_stride_alignment == 656


def test_fixed_kernel_blocks_become_a_stride_alignment():
    assert customize_attention_spec("FLASHMLA", mla()).block_stride_alignment == (
        specs.MultipleOf(64)
    )
    assert customize_attention_spec("FLASH_ATTN", full()).block_stride_alignment is None


def test_specs_that_are_packed_already_stay_as_they_are():
    spec = full(state_content_bytes=99, kv_quant_mode=specs.KVQuantMode.NVFP4)
    assert customize_spec("FLASHINFER", spec) == spec
    assert customize_spec("FLASH_ATTN", full()) == full()


def test_composites_refuse_what_their_parts_pack_differently():
    spec = full(kv_quant_mode=specs.KVQuantMode.INT8_PER_TOKEN_HEAD)
    with pytest.raises(ValueError, match="TRITON_ATTN and FLASH_ATTN on one cache"):
        customize_spec("TRITON_FLASH_ATTN", spec)


def test_block_sizes():
    assert default_block_size(get_backend("FLASH_ATTN")) == 16
    assert default_block_size(get_backend("FLASHMLA")) == 64
    assert default_block_size(get_backend("ULTRAQUANT")) == 64
    assert supports_block_size(get_backend("FLASHMLA"), 128)
    assert not supports_block_size(get_backend("FLASHMLA"), 48)
    assert not supports_block_size(get_backend("CPU_MLA"), 32)
    sizes = supported_kernel_block_sizes(
        "FLASHINFER", device_capability=(10, 0), uses_trtllm_attention=True
    )
    assert sizes == (16, 32, 64, 128, 256, 512, 1024)


def test_unknown_backends_are_named_with_a_suggestion():
    with pytest.raises(ValueError, match=r"'flash_atn' \(did you mean FLASH_ATTN\?\)"):
        get_backend("flash_atn")
    assert "DEEPSEEK_V32_INDEXER" in ATTENTION_BACKENDS


def test_dtypes():
    assert storage_dtype("auto", "bfloat16") == "bfloat16"
    assert storage_dtype("int8_per_token_head", "bfloat16") == "int8"
    assert get_kv_quant_mode("auto") == specs.KVQuantMode.NONE
    assert get_kv_quant_mode("nvfp4_4over6") == specs.KVQuantMode.NVFP4
    assert get_kv_quant_mode("nvfp4_ds_mla") == specs.KVQuantMode.NVFP4_DS_MLA
    with pytest.raises(ValueError, match="unknown kv_cache_dtype 'fp9'"):
        storage_dtype("fp9", "bfloat16")
