"""The dtypes of a model on a CUDA GPU: what it runs in, and what a checkpoint's cache asks for."""

from __future__ import annotations

from typing import Any

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.options import ModelOptions

_DTYPES = ("float32", "float16", "bfloat16")
_OTHER_NAMES = {"half": "float16", "float": "float32"}

#: Model types that vLLM refuses to run in float16, for numerical reasons.
_WITHOUT_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})


def activation_dtype(root: ConfigView, text: ConfigView, options: ModelOptions) -> str:
    """The dtype that vLLM runs the model in.

    float32 checkpoints run in the GPU's preferred dtype, and so do those whose dtype the GPU or
    the model cannot compute in. A dtype that the user names is taken or refused.
    Mirrors vllm/config/model.py::_get_and_verify_dtype (0.33) and
    vllm/platforms/cuda.py::CudaPlatformBase.supported_dtypes and check_if_supports_dtype (0.33).

    Raises:
        ModelError: If a dtype is not known, or vLLM refuses the one that was named.
    """
    wanted = options.dtype.lower()
    if wanted != "auto":
        dtype = _OTHER_NAMES.get(wanted, wanted)
        if dtype not in _DTYPES:
            raise ModelError(f"unknown dtype {options.dtype!r}; known: auto, {', '.join(_DTYPES)}")
        _check_named(dtype, root.model_type, options.device_capability)
        return dtype
    supported = [
        dtype
        for dtype in _gpu_dtypes(options.device_capability)
        if not (dtype == "float16" and root.model_type in _WITHOUT_FLOAT16)
    ]
    declared = declared_dtype(root, text)
    return declared if declared != "float32" and declared in supported else supported[0]


def declared_dtype(root: ConfigView, text: ConfigView) -> str | None:
    """The checkpoint's dtype, or None where the config has none.

    vLLM then takes the widest one of the weights, which are not read here. Those of 16 bits keep
    caches of the same size, and float32 ones run in the dtype that the GPU prefers, which is what
    `activation_dtype` assumes.
    Mirrors vllm/transformers_utils/model_arch_config_convertor.py::
    ModelArchConfigConvertorBase.get_torch_dtype (0.33).

    Raises:
        ModelError: If the dtype is not known.
    """
    parts = [
        root.section(key)
        for key in ("vision_config", "encoder_config")
        if isinstance(root.values.get(key), dict)
    ]
    for view in (root, text, *parts):
        for key in ("dtype", "torch_dtype"):
            value = view.values.get(key)
            if isinstance(value, str):
                dtype = value.removeprefix("torch.")
                if dtype not in _DTYPES:
                    raise ModelError(
                        f"{view.where}.{key} is {value!r}; known: {', '.join(_DTYPES)}"
                    )
                return dtype
    return None


def _gpu_dtypes(capability: tuple[int, int]) -> tuple[str, ...]:
    """What a GPU computes in, the preferred first."""
    if capability >= (8, 0):
        return ("bfloat16", "float16", "float32")
    return ("float16", "float32") if capability >= (6, 0) else ("float32",)


def _check_named(dtype: str, model_type: str, capability: tuple[int, int]) -> None:
    if dtype == "float16" and model_type in _WITHOUT_FLOAT16:
        raise ModelError(
            f"vLLM does not run model type {model_type!r} in float16, which is numerically "
            "unstable there: give --dtype bfloat16 or float32"
        )
    if dtype == "bfloat16" and capability < (8, 0):
        raise ModelError(
            "dtype bfloat16 needs compute capability 8.0 or later; the GPU's is "
            f"{capability[0]}.{capability[1]}: give --dtype float16 or auto"
        )


_MODELOPT = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def checkpoint_cache_dtype(root: ConfigView, text: ConfigView) -> str:
    """What ``--kv-cache-dtype auto`` means for a checkpoint: "auto" unless it is quantized.

    Mirrors vllm/utils/torch_utils.py::get_kv_cache_quant_algo_string and the ``kv_cache_scheme`` of
    vllm/model_executor/layers/attention/attention.py::Attention (0.33).
    """
    for view in (root, text):
        quantization = view.values.get("quantization_config") or view.values.get(
            "compression_config"
        )
        if isinstance(quantization, dict):
            return _from_quantization(quantization)
    return "auto"


def _from_quantization(quantization: dict[str, Any]) -> str:
    method = str(quantization.get("quant_method", "")).lower().replace("_", "-")
    producer = quantization.get("producer")
    is_modelopt = method.startswith("modelopt") or (
        isinstance(producer, dict) and producer.get("name") == "modelopt"
    )
    if is_modelopt:
        inner = quantization.get("quantization")
        inner = inner if isinstance(inner, dict) else quantization
        algorithm = (
            inner.get("kv_cache_scheme")
            or quantization.get("kv_cache_scheme")
            or inner.get("kv_cache_quant_algo")
            or quantization.get("kv_cache_quant_algo")
        )
        if isinstance(algorithm, dict):
            algorithm = _modelopt_scheme(algorithm)
        return _MODELOPT.get(str(algorithm).lower(), "auto")
    if method == "compressed-tensors" and isinstance(quantization.get("kv_cache_scheme"), dict):
        return "fp8"
    return "auto"


def _modelopt_scheme(scheme: dict[str, Any]) -> str | None:
    if scheme.get("type") != "float":
        return None
    if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
        return "fp8"
    return "nvfp4" if scheme.get("num_bits") == 4 else None
