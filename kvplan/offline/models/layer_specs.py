"""One layer's KV cache spec, once backends and block sizes are resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan import specs
from kvplan.offline.models.backend_choice import sliding_block_size
from kvplan.offline.models.layers import AttentionLayer, CustomLayer, Layer, MLALayer, StateLayer
from kvplan.offline.models.parallel import check_query_groups, local_kv_heads
from kvplan.offline.packing import (
    ATTENTION_BACKENDS,
    DS_MLA_RECORD_BYTES,
    customize_attention_spec,
    customize_spec,
    get_kv_quant_mode,
    storage_dtype,
)

if TYPE_CHECKING:
    from kvplan.offline.models.resolve import Resolution


def spec_of(resolution: Resolution, layer: Layer) -> Any:
    """The spec that vLLM registers for a layer."""
    if isinstance(layer, StateLayer):
        spec = _state_spec(resolution, layer)
    elif isinstance(layer, CustomLayer) and layer.is_final:
        spec = layer.build(resolution)
    else:
        spec = customize_attention_spec(
            resolution.backend_of(layer),
            _attention_spec(resolution, layer),
            device_capability=resolution.capability,
            rope_dim=resolution.rope_dim,
            uses_trtllm_attention=resolution.uses_trtllm,
        )
    return spec.replace(is_draft=True) if layer.is_draft else spec


def _attention_spec(resolution: Resolution, layer: Layer) -> Any:
    if isinstance(layer, CustomLayer):
        return layer.build(resolution)
    if isinstance(layer, MLALayer):
        return _mla_spec(resolution, layer)
    assert isinstance(layer, AttentionLayer)
    cache_dtype = resolution.layer_cache_dtype(layer)
    heads = layer.local_kv_heads or local_kv_heads(layer.num_kv_heads, resolution.tp)
    if not layer.is_draft and layer.num_kv_heads == resolution.model.page_kv_heads:
        check_query_groups(layer.name, resolution.num_heads // resolution.tp, heads)
    common: dict[str, Any] = {
        "num_kv_heads": heads,
        "head_size": layer.head_size,
        "dtype": storage_dtype(cache_dtype, resolution.dtype),
        "kv_quant_mode": get_kv_quant_mode(cache_dtype),
    }
    if layer.is_cross:
        return specs.CrossAttentionSpec(block_size=resolution.block_size, **common)
    if layer.attention_chunk_size is not None:
        return specs.ChunkedLocalAttentionSpec(
            block_size=resolution.block_size,
            attention_chunk_size=layer.attention_chunk_size,
            **common,
        )
    common["head_size_v"] = layer.head_size if layer.head_size_v is None else layer.head_size_v
    if layer.sink_len is not None:
        return specs.SinkFullAttentionSpec(
            block_size=resolution.block_size, sink_len=layer.sink_len, **common
        )
    if layer.rswa_window is not None:
        return specs.RSWASpec(
            block_size=resolution.block_size, rswa_window=layer.rswa_window, **common
        )
    if layer.sliding_window is None:
        return specs.FullAttentionSpec(
            block_size=resolution.block_size, non_causal=layer.non_causal, **common
        )
    return _sliding_spec(resolution, layer, common)


def _sliding_spec(resolution: Resolution, layer: AttentionLayer, common: dict[str, Any]) -> Any:
    name = resolution.backend_of(layer)
    token = customize_spec(
        name,
        specs.SlidingWindowSpec(block_size=1, sliding_window=layer.sliding_window, **common),
        device_capability=resolution.capability,
        rope_dim=resolution.rope_dim,
    )
    token_bytes = token.unpadded_page_size_bytes
    padded = resolution.blocks.skipped_page_bytes
    sizes = resolution.kernel_sizes(
        ATTENTION_BACKENDS[name], is_quantized=token.kv_quant_mode != specs.KVQuantMode.NONE
    )
    return specs.SlidingWindowSpec(
        block_size=sliding_block_size(
            sizes, token_bytes, padded or token_bytes * resolution.block_size, resolution.block_size
        ),
        sliding_window=layer.sliding_window,
        page_size_padded=padded,
        **common,
    )


def _mla_spec(resolution: Resolution, layer: MLALayer) -> Any:
    cache_dtype = mla_cache_dtype(resolution, layer)
    common = {
        "block_size": resolution.block_size,
        "num_kv_heads": 1,
        "max_tp_shards": 1,
        "head_size": layer.head_size,
        "dtype": storage_dtype(cache_dtype, resolution.dtype),
        "cache_dtype_str": cache_dtype,
        "kv_quant_mode": get_kv_quant_mode(cache_dtype),
        "state_content_bytes": DS_MLA_RECORD_BYTES.get(cache_dtype),
    }
    if layer.sliding_window is not None:
        return specs.SlidingWindowMLASpec(sliding_window=layer.sliding_window, **common)
    return specs.MLAAttentionSpec(
        topk_buffer_width=layer.topk_buffer_width,
        is_index_group_leader=layer.is_index_group_leader,
        **common,
    )


def mla_cache_dtype(resolution: Resolution, layer: MLALayer) -> str:
    """The format a sparse backend keeps a quantized latent in.

    Mirrors vllm/model_executor/layers/attention/mla_attention.py::
    _canonicalize_sparse_mla_kv_cache_dtype (0.33).
    """
    name, cache_dtype = resolution.backend_of(layer), resolution.layer_cache_dtype(layer)
    quantized = get_kv_quant_mode(cache_dtype) != specs.KVQuantMode.NONE
    if name == "FLASHMLA_SPARSE" and quantized and cache_dtype != "nvfp4_ds_mla":
        return "fp8_ds_mla"
    if name == "FLASHINFER_MLA_SPARSE_SM120" and cache_dtype in ("auto", "fp8", "fp8_e4m3"):
        return "fp8_ds_mla"
    return cache_dtype


def _state_spec(resolution: Resolution, layer: StateLayer) -> Any:
    checkpoints: dict[str, Any] = {}
    if layer.declared_alignment is not None:
        checkpoints = {
            "num_prefill_checkpoint_blocks": 1,
            "prefill_checkpoint_alignment": layer.declared_alignment,
        }
    elif layer.checkpoint_alignment is not None and resolution.checkpoint_alignment is not None:
        checkpoints = {
            "num_prefill_checkpoint_blocks": 1,
            "prefill_checkpoint_alignment": resolution.mamba_block_size,
        }
    return specs.MambaSpec(
        block_size=resolution.mamba_block_size,
        shapes=layer.shapes,
        dtypes=layer.dtypes,
        page_size_padded=resolution.blocks.padded_state_bytes,
        mamba_type=layer.mamba_type,
        mamba_cache_mode=resolution.mamba_cache_mode,
        num_speculative_blocks=resolution.options.num_speculative_tokens,
        tp_replicated=layer.tp_replicated,
        **checkpoints,
    )
