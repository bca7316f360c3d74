"""vLLM's own objects for a request: specs, and the part of a `VllmConfig` that planning reads.

Importing this module imports vLLM's planner.
"""

from __future__ import annotations

import logging
import warnings
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

logging.getLogger("vllm").setLevel(logging.ERROR)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from vllm.v1 import kv_cache_interface as interface
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

# Importing vLLM sets its own.
logging.getLogger("vllm").setLevel(logging.ERROR)

CONFIG_DEFAULTS = {
    "auto_fit": False,
    "max_in_flight_tokens": 8192,
    "kv_cache_layout": "LBNHC",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "num_gpu_blocks_override": None,
    "mamba_cache_mode": "none",
    "disable_hybrid_kv_cache_manager": False,
    "max_num_encoder_input_tokens": 0,
    "num_prefill_lookahead_tokens": 0,
    "block_size": 16,
    "enable_prefix_caching": True,
    "prefix_match_unit": None,
    "prefix_cache_retention_interval": None,
    "device_type": "cuda",
    "speculative_method": None,
    "use_eagle": False,
    "use_eagle_block_drop": False,
    "model_type": "",
}


def make_spec(description: dict[str, Any]) -> Any:
    """A vLLM spec object from `{"kind": class name, field: value, ...}`."""
    fields = dict(description)
    cls = getattr(interface, fields.pop("kind"))
    if "dtype" in fields:
        fields["dtype"] = getattr(torch, fields["dtype"])
    if "dtypes" in fields:
        fields["dtypes"] = tuple(getattr(torch, name) for name in fields["dtypes"])
    if "shapes" in fields:
        fields["shapes"] = tuple(tuple(shape) for shape in fields["shapes"])
    if "mamba_type" in fields:
        fields["mamba_type"] = MambaAttentionBackendEnum[fields["mamba_type"].upper()]
    if isinstance(fields.get("tokens_per_state"), str):
        fields["tokens_per_state"] = Fraction(fields["tokens_per_state"])
    if isinstance(fields.get("block_stride_alignment"), dict):
        fields["block_stride_alignment"] = MultipleOf(
            fields["block_stride_alignment"]["multiple_of"]
        )
    if "kv_quant_mode" in fields:
        fields["kv_quant_mode"] = interface.KVQuantMode(fields["kv_quant_mode"])
    if "cache_role" in fields:
        fields["cache_role"] = interface.SparseCacheRole(fields["cache_role"])
    return cls(**fields)


def make_config(description: dict[str, Any]) -> SimpleNamespace:
    """The part of a `VllmConfig` that planning reads, from `PlanningConfig` keywords."""
    c = CONFIG_DEFAULTS | description
    layout = interface.KVCacheLayout[c["kv_cache_layout"]]
    speculative = None
    if c["speculative_method"] is not None:
        speculative = SimpleNamespace(
            method=c["speculative_method"],
            use_eagle=lambda: c["use_eagle"],
            use_eagle_block_drop=lambda: c["use_eagle_block_drop"],
        )
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=c["max_model_len"],
            original_max_model_len=-1 if c["auto_fit"] else c["max_model_len"],
            supports_kv_cache_grouping=False,
            hf_config=SimpleNamespace(model_type=c["model_type"]),
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=c["num_gpu_blocks_override"],
            mamba_cache_mode=c["mamba_cache_mode"],
            block_size=c["block_size"],
            enable_prefix_caching=c["enable_prefix_caching"],
            prefix_match_unit=c["prefix_match_unit"],
            prefix_cache_retention_interval=c["prefix_cache_retention_interval"],
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=c["tensor_parallel_size"],
            pipeline_parallel_size=c["pipeline_parallel_size"],
            decode_context_parallel_size=c["decode_context_parallel_size"],
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=c["disable_hybrid_kv_cache_manager"],
            max_num_encoder_input_tokens=c["max_num_encoder_input_tokens"],
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type=c["device_type"]),
        speculative_config=speculative,
        kv_transfer_config=None,
        num_prefill_lookahead_tokens=c["num_prefill_lookahead_tokens"],
        max_in_flight_tokens=c["max_in_flight_tokens"],
    )


def expand_workers(request: dict[str, Any]) -> list[list[tuple[str, int]]]:
    """Each worker's `(layer name, spec index)` pairs, with `same_layers_as` resolved."""
    workers = request["workers"]
    return [
        workers[w["same_layers_as"]]["layers"] if "same_layers_as" in w else w["layers"]
        for w in workers
    ]


def inputs(request: dict[str, Any]) -> tuple[SimpleNamespace, list[dict[str, Any]], list[int]]:
    """The config, specs per worker and memory per worker for a request."""
    specs = [make_spec(s) for s in request["specs"]]
    per_worker = [{name: specs[i] for name, i in layers} for layers in expand_workers(request)]
    memory = [w["available_memory"] for w in request["workers"]]
    return make_config(request["config"]), per_worker, memory
