"""The KV cache dtype that a quantized checkpoint asks for."""

from __future__ import annotations

from typing import Any

from kvplan.offline.models.config_view import ConfigView

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
