"""GLM-5.3-Flash: Kimi delta attention, and sparse latents whose index keys are pooled."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan import specs
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.families.mla import indexer_head_size, key_layer, latent_size
from kvplan.offline.models.families.states import flashkda_alignment, kda_shapes, state_dtypes
from kvplan.offline.models.layers import CustomLayer, Layer, MLALayer, ModelLayers, StateLayer

_LINEAR, _SPARSE = "linear_attention", "deepseek_sparse_attention"
#: The buffer of selected tokens is a multiple of this wide.
_BUFFER = 128


def glm5_next(context: FamilyContext) -> ModelLayers:
    """Linear layers, and a latent with pooled index keys and a ring of the open pool's keys.

    Mirrors vllm/models/glm5next/common/attention.py and kda.py (0.33).
    """
    text, options = context.text, context.options
    if options.device_capability[0] != 9 or options.kv_cache_dtype not in ("auto", "bfloat16"):
        raise ModelError(
            f"{context.architecture} is planned for compute capability 9 and kv_cache_dtype auto "
            f"or bfloat16; got {options.device_capability[0]}.{options.device_capability[1]} and "
            f"{options.kv_cache_dtype!r}"
        )
    kinds = text.layer_types(text.num_layers)
    if kinds is None or any(kind not in (_LINEAR, _SPARSE) for kind in kinds):
        raise ModelError(f"{text.where}.layer_types must list {_LINEAR} or {_SPARSE} by layer")
    return context.model(
        (layer for i, kind in enumerate(kinds) for layer in _layers(context, i, kind)),
        is_hybrid=True,
        uses_mla=True,
        page_head_size=latent_size(text),
    )


def _layers(context: FamilyContext, i: int, kind: str) -> Iterator[Layer]:
    text, options = context.text, context.options
    if kind == _LINEAR:
        linear = text.section("linear_attn_config")
        yield StateLayer(
            name=context.state_name(i),
            index=i,
            shapes=kda_shapes(
                context.tp,
                linear.size("num_heads"),
                linear.size("head_dim"),
                linear.size("short_conv_kernel_size"),
                options.num_speculative_tokens,
            ),
            dtypes=state_dtypes(options, context.dtype, ssm_dtype="float32"),
            mamba_type="gdn_attn",
            declared_alignment=flashkda_alignment(context, linear),
        )
        return
    name, pool = context.name(i), text.size("index_kpool", minimum=2)
    topk, indexer = text.size("index_topk"), f"{name.removesuffix('.attn')}.indexer"
    # One key for each pool of tokens.
    yield key_layer(
        f"{indexer}.k_cache",
        i,
        "GLM5_NEXT_INDEXER",
        indexer_head_size(text),
        tokens_per_state=pool,
        cache_role=specs.SparseCacheRole.INDEXER,
    )
    span = -(-(pool + options.num_speculative_tokens) // pool)
    # Keys and gate scores of the pool that is being filled.
    yield CustomLayer.of(
        f"{indexer}.tail_cache",
        i,
        "KPOOL_TAIL",
        specs.CircularBufferSpec,
        block_size=pool << (span - 1).bit_length(),
        num_kv_heads=2,
        head_size=text.size("index_head_dim"),
        head_size_v=0,
        dtype="bfloat16",
        dcp_sharded=False,
        is_final=True,
    )
    yield MLALayer(
        name=name,
        index=i,
        head_size=latent_size(text),
        is_sparse=True,
        topk_buffer_width=-(-(topk + pool - 1) // _BUFFER) * _BUFFER,
        is_index_group_leader=True,
    )
