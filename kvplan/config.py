"""The planner's configuration, and how it is read off anything shaped like a ``VllmConfig``."""

from __future__ import annotations

from typing import Any

from kvplan._core import PlanningConfig

__all__ = ["PlanningConfig", "as_planning_config"]


def as_planning_config(vllm_config: Any, **overrides: Any) -> PlanningConfig:
    """Read a :class:`PlanningConfig` off a ``VllmConfig`` or an object of its shape.

    Only the attributes that vLLM's own planner reads are touched, and none is changed. An attribute
    that is missing keeps its default, except ``model_config.max_model_len``. ``overrides`` win.

    Raises:
        ValueError: HiSparse is configured; its planning is vLLM's.
        AttributeError: ``model_config.max_model_len`` is missing.
    """
    if isinstance(vllm_config, PlanningConfig):
        return vllm_config.replace(**overrides) if overrides else vllm_config
    attention_config = getattr(vllm_config, "attention_config", None)
    if getattr(attention_config, "hisparse_config", None) is not None:
        raise ValueError("attention_config.hisparse_config is set: HiSparse is planned by vLLM")

    model = vllm_config.model_config
    fields: dict[str, Any] = {
        "max_model_len": model.max_model_len,
        "auto_fit": getattr(model, "original_max_model_len", None) == -1,
        "model_type": getattr(getattr(model, "hf_config", None), "model_type", None) or "",
        "has_kv_connector": getattr(vllm_config, "kv_transfer_config", None) is not None,
    }
    sources = (
        (vllm_config, ("max_in_flight_tokens", "num_prefill_lookahead_tokens")),
        (
            getattr(vllm_config, "cache_config", None),
            (
                "num_gpu_blocks_override",
                "mamba_cache_mode",
                "block_size",
                "enable_prefix_caching",
                "prefix_match_unit",
                "prefix_cache_retention_interval",
            ),
        ),
        (
            getattr(vllm_config, "parallel_config", None),
            ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"),
        ),
        (
            getattr(vllm_config, "scheduler_config", None),
            ("disable_hybrid_kv_cache_manager", "max_num_encoder_input_tokens"),
        ),
        (getattr(vllm_config, "device_config", None), ("device_type",)),
    )
    for source, names in sources:
        for name in names:
            if hasattr(source, name):
                fields[name] = getattr(source, name)
    # Before the engine resolves it, block_size is None; the default then stands in.
    if fields.get("block_size", 0) is None:
        del fields["block_size"]
    if hasattr(vllm_config, "cache_config"):
        layout = getattr(vllm_config.cache_config, "get_resolved_kv_cache_layout", None)
        if layout is not None:
            fields["kv_cache_layout"] = layout()
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None:
        fields["speculative_method"] = speculative.method
        fields["use_eagle"] = bool(speculative.use_eagle())
        fields["use_eagle_block_drop"] = bool(speculative.use_eagle_block_drop())
    fields.update(overrides)
    return PlanningConfig(**fields)
