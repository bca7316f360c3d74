"""How many bits a weight has in a quantized checkpoint, by its config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kvplan.offline.budget.parameters import Parameter

#: Modules that quantization leaves alone, whatever the method.
_NEVER = re.compile(
    r"embed|lm_head|norm|\.gate\.|weights_proj|conv1d|vision|multi_modal|A_log|\.bias"
)
_EXPERTS = re.compile(r"\.experts\.")


def quantized(
    parameters: Iterable[Parameter], config: Mapping[str, Any], capability: tuple[int, ...] = (9, 0)
) -> list[Parameter]:
    """The same tensors with the bits that a ``quantization_config`` gives them, scales included.

    A method that is not known here leaves the model's own dtype. Kernels for mxfp4 experts pad
    them, Triton's (Hopper's) in width alone. Mirrors vllm/model_executor/layers/fused_moe/oracle/
    mxfp4.py::mxfp4_round_up_hidden_size_and_intermediate_size (0.33).
    """
    bits = weight_bits(config)
    ignored = [
        entry.removeprefix("re:")
        if entry.startswith("re:")
        else re.escape(entry).replace(r"\*", ".*")
        for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
        for entry in config.get(key) or ()
        if isinstance(entry, str)
    ]
    only_experts = config.get("quant_method") in ("mxfp4", "gpt_oss_mxfp4") or (
        config.get("quant_method") == "compressed-tensors" and "config_groups" not in config
    )

    def is_quantized(name: str) -> bool:
        if _NEVER.search(name) or (only_experts and not _EXPERTS.search(name)):
            return False
        return not any(re.search(pattern, name) for pattern in ignored)

    expert_bits = {"fp4": 4 + 8 / 32}.get(str(config.get("expert_dtype")), bits)
    padding = (1, 1)
    if only_experts and bits == 4 + 8 / 32:
        padding = (64, 1) if capability[0] == 9 else (128, 256)
    return [
        replace(
            p,
            bits=expert_bits if _EXPERTS.search(p.name) else bits,
            padded_to=padding[0],
            hidden_padded_to=padding[1],
        )
        if bits is not None and p.bits is None and is_quantized(p.name)
        else p
        for p in parameters
    ]


def weight_bits(config: Mapping[str, Any]) -> float | None:
    """Bits of a quantized weight with its share of scales and zero points, or None."""
    method = str(config.get("quant_method", "")).lower()
    match method:
        case "fp8" | "fbgemm_fp8":
            block = config.get("weight_block_size")
            return 8 + (32 / (block[0] * block[1]) if block else 0)
        case "mxfp4" | "gpt_oss_mxfp4":
            return 4 + 8 / 32
        case "awq" | "gptq" | "awq_marlin" | "gptq_marlin" | "auto-round":
            bits, group = config.get("bits", config.get("w_bit", 4)), config.get("group_size", 128)
            group = group if isinstance(group, int) and group > 0 else 4096
            zero = 0 if config.get("sym", method.startswith("awq") is False) else bits
            return bits + (16 + zero) / group
        case "bitsandbytes":
            return 4 + 16 / 64 if config.get("load_in_4bit") else 8
        case "modelopt" | "modelopt_fp4":
            nested = config.get("quantization")
            source = nested if isinstance(nested, dict) else config
            algorithm = str(source.get("quant_algo") or "")
            if "W4" in algorithm:
                return 4 + 16 / (source.get("group_size") or 128)
            return 4 + 8 / 16 if "FP4" in algorithm or method == "modelopt_fp4" else 8
        case "compressed-tensors":
            return _compressed(config)
    return None


def _compressed(config: Mapping[str, Any]) -> float:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return 4 + 16 / 32 if config.get("format") == "pack-quantized" else 8
    weights = next(iter(groups.values())).get("weights") or {}
    bits, group = weights.get("num_bits", 8), weights.get("group_size") or 0
    if weights.get("type") == "float" and bits == 4:
        return 4 + 8 / 16
    return bits + (16 / group if group > 0 else 0)
