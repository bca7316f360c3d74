"""What a user says about a deployment, in vLLM's words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.offline.models.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Engine options that change which KV caches a model registers.

    Attributes:
        tensor_parallel_size: Ranks that share each layer.
        pipeline_parallel_size: Stages of consecutive layers.
        decode_context_parallel_size: Ranks that share each sequence's tokens; divides TP.
        block_size: Tokens of a block, or None for what vLLM would take.
        kv_cache_dtype: ``--kv-cache-dtype``.
        dtype: ``--dtype``: the model's activation dtype, or "auto".
        attention_backend: ``--attention-backend``, or None for vLLM's choice.
        speculative_config: ``--speculative-config`` as a mapping. A drafter with a config of its
            own is given by ``model``, a built-in name, a config.json or a directory.
        max_model_len: Longest request in tokens; -1 or "auto" fits it to memory, None takes the
            model's.
        max_num_batched_tokens: Tokens of one step. vLLM's server default on 80 GB GPUs is 8192.
        enable_prefix_caching: ``--enable-prefix-caching``, or None for the model's default.
        async_scheduling: Whether a step is scheduled while the one before it runs.
        kv_cache_layout: ``VLLM_KV_CACHE_LAYOUT``, or None for what the backends prefer.
        kv_cache_dtype_skip_layers: Layers kept unquantized, as indices or "sliding_window".
        mamba_cache_dtype: Dtype of convolution states, or "auto".
        mamba_ssm_cache_dtype: Dtype of recurrent states, or "auto".
        mamba_block_size: Tokens between cached states, or None.
        disable_hybrid_kv_cache_manager: ``--disable-hybrid-kv-cache-manager``.
        device_capability: CUDA compute capability of the GPU.
        pipeline_layer_partition: ``VLLM_PP_LAYER_PARTITION``: layers of each stage.
        hf_overrides: Config keys to replace before anything is read.
        deepseek_v41_reported_blocks: Use the block sizes that early DeepSeek-V4.1 deployments
            logged (64 states in every block, no compressor ring) instead of 0.33.0's.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    attention_backend: str | None = None
    speculative_config: Mapping[str, Any] | None = None
    max_model_len: int | str | None = None
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool | None = None
    async_scheduling: bool = True
    kv_cache_layout: str | None = None
    kv_cache_dtype_skip_layers: Sequence[str] = ()
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_block_size: int | None = None
    disable_hybrid_kv_cache_manager: bool = False
    device_capability: tuple[int, int] = (9, 0)
    pipeline_layer_partition: Sequence[int] | None = None
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    deepseek_v41_reported_blocks: bool = False

    def __post_init__(self) -> None:
        """Check every number at once, so nothing later meets a zero or a negative."""
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "decode_context_parallel_size",
            "max_num_batched_tokens",
        ):
            _positive(name, getattr(self, name))
        for name in ("block_size", "mamba_block_size"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        length = self.max_model_len
        if length is not None and length not in (-1, "auto"):
            _positive("max_model_len", length)
        if self.tensor_parallel_size % self.decode_context_parallel_size:
            raise ModelError(
                f"tensor_parallel_size ({self.tensor_parallel_size}) must be divisible by "
                f"decode_context_parallel_size ({self.decode_context_parallel_size})"
            )

    @property
    def auto_fit(self) -> bool:
        """Whether the context length is fitted to memory."""
        return self.max_model_len in (-1, "auto")

    @property
    def max_concurrent_batches(self) -> int:
        """Batches in flight at once.

        Mirrors vllm/config/vllm.py::VllmConfig.max_concurrent_batches (0.33, V2 model runner).
        """
        return self.pipeline_parallel_size + (1 if self.async_scheduling else 0)

    @property
    def num_speculative_tokens(self) -> int:
        """Drafted tokens of a step."""
        if self.speculative_config is None:
            return 0
        value = self.speculative_config.get("num_speculative_tokens", 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ModelError(
                f"speculative_config.num_speculative_tokens must be a whole number; got {value!r}"
            )
        return value

    def replace(self, **changes: Any) -> ModelOptions:
        """A copy with some options changed."""
        return dataclasses.replace(self, **changes)


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name} must be a whole number of at least 1; got {value!r}")
