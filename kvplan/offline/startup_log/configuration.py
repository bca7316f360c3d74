"""The ``vllm serve`` line that would make a start again, from what its log prints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kvplan.offline.serve_line import Argument, ServeLine, option_table
from kvplan.offline.startup_log.facts import Start

#: Options that the engine's configuration names as vLLM's line does.
_CONFIG_KEYS = (
    "revision", "dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "quantization", "enforce_eager", "kv_cache_dtype",
    "enable_prefix_caching",
)  # fmt: skip
_SPECULATIVE = re.compile(
    r"SpeculativeConfig\(method='(\w+)', model='?([^',]*)'?, num_spec_tokens=(\d+)"
)
_TELLS_NOTHING = (None, "None", "auto", "")
#: What vLLM prints in place of a secret.
_REDACTED = "***"


def reconstructed_line(start: Start) -> ServeLine:
    """The line: the arguments that were given, then what the engine's configuration adds.

    Its length and utilization are those that the log prints, so that a plan of it can be compared
    with the log.
    """
    given = dict(start.arguments)
    model = given.pop("model_tag", None) or given.pop("model", None) or start.config.get("model")
    given.pop("model", None)
    values = _from_config(start.config) | {k: v for k, v in given.items() if v is not None}
    if start.batched_tokens is not None:
        values.setdefault("max_num_batched_tokens", start.batched_tokens)
    length = start.config.get("max_seq_len")
    if length is not None and values.get("max_model_len") in (None, -1, "auto"):
        values["max_model_len"] = length
    utilization = next((r.utilization for r in start.workers if r.utilization is not None), None)
    if utilization is not None:
        values.setdefault("gpu_memory_utilization", utilization)
    arguments = [a for dest, value in values.items() if (a := _argument(dest, value)) is not None]
    return ServeLine(str(model) if model else None, tuple(arguments))


def _from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in _CONFIG_KEYS:
        value = config.get(key)
        if value not in _TELLS_NOTHING and value is not False and value != 1:
            found[key] = value
    if config.get("enable_prefix_caching") is False:
        found["enable_prefix_caching"] = False
    speculative = config.get("speculative_config")
    if isinstance(speculative, str) and (match := _SPECULATIVE.search(speculative)):
        method, model, tokens = match.groups()
        found["speculative_config"] = {"method": method, "num_speculative_tokens": int(tokens)}
        if model not in _TELLS_NOTHING:
            found["speculative_config"]["model"] = model
    return found


def _argument(dest: str, value: Any) -> Argument | None:
    """One option as it would be written; None where this version of vLLM has it no more."""
    name = f"--{dest.replace('_', '-')}"
    option = option_table().by_name.get(name)
    if option is None or value is None or value in (_REDACTED, [_REDACTED]):
        return None
    if option.kind == "flag":
        off = option.negative_names[0] if option.negative_names else ""
        word = name if value is True else off
        return Argument(option, value is True, (word,)) if word else None
    if isinstance(value, dict):
        return Argument(option, json.dumps(value), (name, json.dumps(value)))
    if option.kind == "values":
        texts = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
        return Argument(option, texts, (name, *texts))
    return Argument(option, str(value), (name, str(value)))
