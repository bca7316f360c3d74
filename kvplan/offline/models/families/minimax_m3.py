"""MiniMax M3: grouped-query attention, most of it to blocks that an index of keys selects."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan import specs
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.layers import CustomLayer, Layer, ModelLayers

_CACHE_DTYPES = ("auto", "bfloat16")


def minimax_m3(context: FamilyContext) -> ModelLayers:
    """An index key beside the keys and values of every sparse layer.

    Mirrors vllm/models/minimax_m3/nvidia/model.py and common/indexer.py (0.33).
    """
    options = context.options
    if options.device_capability[0] != 9 or options.kv_cache_dtype not in _CACHE_DTYPES:
        raise ModelError(
            f"{context.architecture} is planned for compute capability 9 and kv_cache_dtype "
            f"{' or '.join(_CACHE_DTYPES)}; got {options.device_capability[0]}."
            f"{options.device_capability[1]} and {options.kv_cache_dtype!r}"
        )
    return context.model(_layers(context))


def _layers(context: FamilyContext) -> Iterator[Layer]:
    text = context.text
    sparse = text.section("sparse_attention_config")
    is_sparse = sparse.sizes("sparse_attention_freq", text.num_layers)
    index_size = sparse.size("sparse_index_dim")
    for i in range(text.num_layers):
        if is_sparse[i]:
            yield CustomLayer.of(
                f"{context.name(i)}.index_cache",
                i,
                "MINIMAX_M3_SPARSE_INDEXER",
                specs.MLAAttentionSpec,
                head_size=index_size,
                dtype=context.dtype,
                cache_role=specs.SparseCacheRole.INDEXER,
            )
        yield context.attention(i, backend="MINIMAX_M3_SPARSE" if is_sparse[i] else None)
