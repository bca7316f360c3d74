"""``--kv-cache-dtype`` strings: their quantization mode and their storage dtype."""

from __future__ import annotations

from kvplan import InvalidArgument
from kvplan.specs import KVQuantMode

#: Storage dtype of every ``--kv-cache-dtype`` value but "auto", which takes the model's.
#: Mirrors vllm/utils/torch_utils.py::STR_DTYPE_TO_TORCH_DTYPE (0.33).
CACHE_DTYPE_STORAGE = {
    "float32": "float32",
    "float": "float32",
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "fp8": "uint8",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
    "fp8_inc": "float8_e4m3fn",
    "fp8_ds_mla": "uint8",
    "nvfp4_ds_mla": "uint8",
    "turboquant_k8v4": "uint8",
    "turboquant_4bit_nc": "uint8",
    "turboquant_k3v4_nc": "uint8",
    "turboquant_3bit_nc": "uint8",
    "octave_k3v4": "uint8",
    "octave_k3v3": "uint8",
    "octave_k3v3_compact": "uint8",
    "ultraquant_4bit": "uint8",
    "int4_per_token_head": "uint8",
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "uint8",
    "nvfp4": "uint8",
    "nvfp4_4over6": "uint8",
}

#: Bytes of one element.
DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

#: The values that vLLM's ``--kv-cache-dtype`` accepts.
KV_CACHE_DTYPES = (
    "auto",
    *(name for name in CACHE_DTYPE_STORAGE if name not in ("float32", "float", "half")),
)


def get_kv_quant_mode(kv_cache_dtype: str) -> KVQuantMode:
    """Quantization mode of a ``--kv-cache-dtype`` string; unknown strings are not quantized.

    Mirrors vllm/v1/kv_cache_interface.py::get_kv_quant_mode (0.33).
    """
    if kv_cache_dtype == "nvfp4_ds_mla":
        return KVQuantMode.NVFP4_DS_MLA
    if kv_cache_dtype.startswith("nvfp4"):
        return KVQuantMode.NVFP4
    if kv_cache_dtype.startswith(("turboquant_", "octave_")) or kv_cache_dtype in (
        "int4_per_token_head",
        "int8_per_token_head",
        "fp8_per_token_head",
        "ultraquant_4bit",
    ):
        try:
            return getattr(KVQuantMode, kv_cache_dtype.upper())
        except AttributeError:
            raise KeyError(kv_cache_dtype.upper()) from None
    if kv_cache_dtype.startswith("fp8"):
        return KVQuantMode.FP8_PER_TENSOR
    return KVQuantMode.NONE


def is_quantized(kv_cache_dtype: str) -> bool:
    """Whether a ``--kv-cache-dtype`` stores quantized values."""
    return get_kv_quant_mode(kv_cache_dtype) != KVQuantMode.NONE


def storage_dtype(kv_cache_dtype: str, model_dtype: str) -> str:
    """Dtype that a KV cache of this ``--kv-cache-dtype`` is stored in.

    Raises:
        ValueError: If the string is not a KV cache dtype that vLLM knows.
    """
    if kv_cache_dtype == "auto":
        return model_dtype
    if kv_cache_dtype not in CACHE_DTYPE_STORAGE:
        raise InvalidArgument(
            f"unknown kv_cache_dtype {kv_cache_dtype!r}; known: {', '.join(KV_CACHE_DTYPES)}"
        )
    return CACHE_DTYPE_STORAGE[kv_cache_dtype]
