"""Packed KV cache bytes, computed by hand; tests/vllm033 compares every backend with vLLM's."""

import pytest

from kvplan import specs
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

MODE = specs.KVQuantMode


def full(mode=MODE.NONE, **changes):
    fields = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "uint8"}
    return specs.FullAttentionSpec(**fields | changes, kv_quant_mode=mode)


def mla(mode=MODE.NONE, **changes):
    fields = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}
    return specs.MLAAttentionSpec(**fields | changes, kv_quant_mode=mode)


BF16 = {"dtype": "bfloat16"}
RECORDS = {"dtype": "uint8", "state_content_bytes": 656}
TWO_SLOTS = {
    "num_head_slots": 2,
    "state_content_bytes": 8 * 128 * 2,
    "page_size_bytes": full(**BF16).page_size_bytes,
}


@pytest.mark.parametrize(
    ("backend", "spec", "options", "expected"),
    [
        # Half a byte an element and a scale for sixteen.
        (
            "FLASHINFER",
            full(MODE.NVFP4),
            {},
            {"num_head_slots": 16, "state_content_bytes": 72, "page_size_bytes": 16 * 16 * 72},
        ),
        # Two fp32 scales for each token and head.
        (
            "TRITON_ATTN",
            full(MODE.INT8_PER_TOKEN_HEAD, dtype="int8"),
            {},
            {"state_content_bytes": 128 + 128 + 8},
        ),
        ("TRITON_ATTN", full(MODE.FP8_PER_TOKEN_HEAD), {}, {"state_content_bytes": 128 + 128 + 8}),
        ("TRITON_ATTN", full(MODE.INT4_PER_TOKEN_HEAD), {}, {"state_content_bytes": 64 + 64 + 8}),
        # One pair of them for each latent.
        (
            "TRITON_MLA",
            mla(MODE.INT8_PER_TOKEN_HEAD, dtype="int8"),
            {},
            {"state_content_bytes": 576 + 8},
        ),
        (
            "TRITON_MLA",
            mla(MODE.INT4_PER_TOKEN_HEAD, dtype="uint8"),
            {},
            {"state_content_bytes": 288 + 8},
        ),
        ("ROCM_ATTN", full(**BF16), {}, TWO_SLOTS),
        ("ROCM_SEGMENTED_ATTN", full(**BF16), {}, TWO_SLOTS),
        ("B12X", full(**BF16), {}, TWO_SLOTS),
        ("ROCM_AITER_FA", full(**BF16), {"shuffle_kv_cache": True}, {"num_head_slots": 2}),
        # Blocks of sparse MLA are whole rows apart; of records, whole kernel blocks.
        ("FLASH_ATTN_MLA_SPARSE", mla(), {}, {"block_stride_alignment": 1152}),
        ("XPU_MLA_SPARSE", mla(), {}, {"block_stride_alignment": 1152}),
        ("FLASHINFER_MLA_SPARSE", mla(), {}, {"block_stride_alignment": 32 * 1152}),
        ("FLASHINFER_MLA_SPARSE_SM120", mla(), {}, {"block_stride_alignment": 64 * 1152}),
        ("FLASHMLA_SPARSE", mla(), {}, {"block_stride_alignment": 1152}),
        (
            "FLASHMLA_SPARSE",
            mla(MODE.FP8_PER_TENSOR, **RECORDS),
            {},
            {"block_stride_alignment": specs.MultipleOf(64)},
        ),
        (
            "FLASHMLA_SPARSE",
            mla(MODE.FP8_PER_TENSOR, **RECORDS),
            {"device_capability": (10, 0)},
            {"block_stride_alignment": 656},
        ),
    ],
)
def test_what_a_backend_makes_of_a_spec(backend, spec, options, expected):
    packed = customize_spec(backend, spec, **options)
    assert {name: getattr(packed, name) for name in expected} == expected


@pytest.mark.parametrize(
    "spec", [full(), full(**BF16), full(MODE.NVFP4, state_content_bytes=99)], ids=str
)
def test_what_a_backend_leaves_alone(spec):
    for backend in ("FLASH_ATTN", "ROCM_AITER_FA", "FLASHINFER"):
        assert customize_spec(backend, spec) == spec
    assert customize_attention_spec("FLASH_ATTN", spec).block_stride_alignment is None
    fixed = customize_attention_spec("FLASHMLA", mla()).block_stride_alignment
    assert fixed == specs.MultipleOf(64), "fixed kernel blocks become a stride alignment"


@pytest.mark.parametrize(
    ("backend", "spec", "message"),
    [
        (
            "FLASHINFER",
            full(MODE.NVFP4, head_size_v=64),
            r"head_size \(128\) must equal head_size_v \(64\)",
        ),
        ("ROCM_OCTAVE", full(MODE.OCTAVE_K3V3), "needs rope_dim"),
        ("ROCM_AITER_FA", full(block_size=24), "multiple of 16; got 24"),
        (
            "TRITON_FLASH_ATTN",
            full(MODE.INT8_PER_TOKEN_HEAD),
            "TRITON_ATTN and FLASH_ATTN on one cache",
        ),
        ("flash_atn", full(), r"'flash_atn' \(did you mean FLASH_ATTN\?\)"),
    ],
)
def test_what_a_backend_refuses(backend, spec, message):
    with pytest.raises(ValueError, match=message):
        customize_spec(backend, spec)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (nvfp4_slot_bytes, (128,), 64 + 8),
        (turboquant_slot_bytes, ("turboquant_k8v4", 128), 128 + 64 + 4),
        (turboquant_slot_bytes, ("turboquant_4bit_nc", 128), 64 + 2 + 64 + 4),
        (turboquant_slot_bytes, ("turboquant_k3v4_nc", 128), 48 + 2 + 64 + 4),
        (turboquant_slot_bytes, ("turboquant_3bit_nc", 128), 48 + 2 + 48 + 4),
        # keys ceil(100 * 3 / 8) + 2 = 40; values ceil(100 * 3 / 8) + 4 = 42
        (turboquant_slot_bytes, ("turboquant_3bit_nc", 100), 82),
        # keys 99; values 50 + 4: 153 rounds up to an even number
        (turboquant_slot_bytes, ("turboquant_k8v4", 99), 154),
        (ultraquant_slot_bytes, (128,), 136),
        (ultraquant_slot_bytes, (256,), 272),
        # K: 64 * 4 / 8 + 192 * 3 / 8 = 104; V: 128; 5 scales of 2 bytes: 242 rounds to 248
        (octave_slot_bytes, ("octave_k3v4", 256, 64), 248),
        # K: 104; V: 96; scales 10: 210 rounds to 216
        (octave_slot_bytes, ("octave_k3v3", 256, 64), 216),
        # K: 96; V: 96; scales 4: 196
        (octave_slot_bytes, ("octave_k3v3_compact", 256, 64), 196),
        # fp8: 512 latent bytes, 4 fp32 scales, 64 bf16 rotary elements
        (DS_MLA_RECORD_BYTES.get, ("fp8_ds_mla",), 512 + 16 + 128),
        # nvfp4: 256 + 32 for the latent, 64 fp8 rotary elements
        (DS_MLA_RECORD_BYTES.get, ("nvfp4_ds_mla",), 288 + 64),
        (storage_dtype, ("auto", "bfloat16"), "bfloat16"),
        (storage_dtype, ("int8_per_token_head", "bfloat16"), "int8"),
        (get_kv_quant_mode, ("auto",), MODE.NONE),
        (get_kv_quant_mode, ("nvfp4_4over6",), MODE.NVFP4),
        (get_kv_quant_mode, ("nvfp4_ds_mla",), MODE.NVFP4_DS_MLA),
    ],
)
def test_bytes_dtypes_and_modes(function, arguments, expected):
    assert function(*arguments) == expected
    if function is turboquant_slot_bytes and arguments[1] == 128:
        spec = customize_spec("TURBOQUANT", full(get_kv_quant_mode(arguments[0])))
        assert spec.state_content_bytes == expected


def test_numbers_that_have_no_format():
    assert DEEPSEEK_V4_RECORD_BYTES == 448 + 128 + 8
    with pytest.raises(ValueError, match="multiple of 32; got 100"):
        ultraquant_slot_bytes(100)
    with pytest.raises(ValueError, match="unknown kv_cache_dtype 'fp9'"):
        storage_dtype("fp9", "bfloat16")


def test_block_sizes():
    for name, size in (("FLASH_ATTN", 16), ("FLASHMLA", 64), ("ULTRAQUANT", 64)):
        assert default_block_size(get_backend(name)) == size
    for name, size, taken in (("FLASHMLA", 128, True), ("FLASHMLA", 48, False), ("CPU_MLA", 32, 0)):
        assert supports_block_size(get_backend(name), size) == taken
    sizes = supported_kernel_block_sizes(
        "FLASHINFER", device_capability=(10, 0), uses_trtllm_attention=True
    )
    assert sizes == (16, 32, 64, 128, 256, 512, 1024)
    assert "DEEPSEEK_V32_INDEXER" in ATTENTION_BACKENDS
