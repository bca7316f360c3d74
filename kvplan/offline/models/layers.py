"""What a model family says about its layers, before block sizes and backends are resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.offline.models.resolve import Resolution


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One cache of one layer.

    Attributes:
        name: vLLM's name of the layer.
        index: Decoder layer that decides the pipeline stage; None for the last stage.
        is_draft: Whether a draft model owns it.
    """

    name: str
    index: int | None
    is_draft: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionLayer(Layer):
    """Keys and values of grouped-query attention.

    Attributes:
        num_kv_heads: KV heads over all TP ranks.
        head_size: Elements of a key head.
        head_size_v: Elements of a value head, or None for the same.
        sliding_window: Tokens of the window, or None for full attention.
        attention_chunk_size: Tokens of a chunk of chunked local attention, or None.
        is_cross: Whether it attends to an encoder's states.
        non_causal: Whether a prefix is attended in both directions.
        has_sinks: Whether it has attention sinks, which fewer backends support.
        sink_len: Tokens of a static sink, or None.
        backend: The backend that the model fixes, or None for vLLM's choice.
        local_kv_heads: KV heads of one TP rank where the model fixes them, else None.
        rswa_window: Generated tokens kept by reference sliding-window attention, or None.
    """

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    is_cross: bool = False
    non_causal: bool = False
    has_sinks: bool = False
    sink_len: int | None = None
    backend: str | None = None
    local_kv_heads: int | None = None
    rswa_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class MLALayer(Layer):
    """The latent of multi-head latent attention.

    Attributes:
        head_size: Elements of the latent and the rotary key.
        is_sparse: Whether an indexer selects the tokens it attends to.
        topk_buffer_width: Width of the indexer's buffer, or None.
        is_index_group_leader: Whether it runs an indexer of its own.
        sliding_window: Tokens of the window, or None.
        backend_with_sinks: The backend that applies the model's attention sinks where it can run;
            None where there are none.
        can_be_skipped: Whether the model's code heeds ``--kv-cache-dtype-skip-layers``.
    """

    head_size: int
    is_sparse: bool = False
    topk_buffer_width: int | None = None
    is_index_group_leader: bool = False
    sliding_window: int | None = None
    backend_with_sinks: str | None = None
    can_be_skipped: bool = True


@dataclass(frozen=True, kw_only=True)
class StateLayer(Layer):
    """A recurrent state of fixed size.

    Attributes:
        shapes: Shape of every state on one TP rank.
        dtypes: Dtype of every state.
        mamba_type: vLLM's name of its backend, in lower case.
        checkpoint_alignment: Tokens its prefill checkpoints are aligned to, or None where it
            exports none.
        declared_alignment: Alignment of the checkpoint block that the spec carries whatever the
            mode, in tokens, or None.
        tp_replicated: Whether every TP rank holds the whole state.
        backend: Name of its backend where ``mamba_type`` does not decide it.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    mamba_type: str
    checkpoint_alignment: int | None = None
    declared_alignment: int | None = None
    tp_replicated: bool = False
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class CustomLayer(Layer):
    """A cache whose spec the family builds itself.

    Attributes:
        backend: Name of the layer's backend.
        build: Makes the spec, given the resolved block sizes and dtypes.
        is_final: Whether the backend leaves the spec as it is.
    """

    backend: str
    build: Callable[[Resolution], Any]
    is_final: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        index: int | None,
        backend: str,
        spec: Callable[..., Any],
        *,
        block_size: int | None = None,
        is_draft: bool = False,
        is_final: bool = False,
        num_kv_heads: int = 1,
        **fields: Any,
    ) -> CustomLayer:
        """One whose `spec` has these fields; without a block size, that of the model's blocks."""
        return cls(
            name=name,
            index=index,
            is_draft=is_draft,
            backend=backend,
            build=lambda resolution: spec(
                block_size=block_size or resolution.block_size, num_kv_heads=num_kv_heads, **fields
            ),
            is_final=is_final,
        )


@dataclass(frozen=True, kw_only=True)
class ModelLayers:
    """Everything a family knows about one model.

    Attributes:
        layers: Every cache, in vLLM's order of registration.
        num_hidden_layers: Layers that pipeline stages divide.
        is_hybrid: Whether attention and recurrent layers share the block pool.
        is_attention_free: Whether there is no attention at all.
        is_encoder_decoder: Whether a decoder attends to an encoder.
        encoder_tokens: Tokens that the encoder makes of one request at most, or None.
        uses_mla: Whether attention pages hold latents.
        page_kv_heads: KV heads over all TP ranks that hybrid block sizes are computed with.
        page_head_size: Head size that hybrid block sizes are computed with.
        mm_prefix: Whether image positions are attended in both directions.
        cache_dtype: What "auto" means for this model's KV cache, or "auto".
        num_prefill_lookahead_tokens: Prompt tokens that a drafter of several MTP modules reads
            ahead.
        model_type: What vLLM calls the model's type.
    """

    layers: tuple[Layer, ...]
    num_hidden_layers: int
    is_hybrid: bool = False
    is_attention_free: bool = False
    is_encoder_decoder: bool = False
    encoder_tokens: int | None = None
    uses_mla: bool = False
    page_kv_heads: int = 1
    page_head_size: int = 0
    mm_prefix: bool = False
    cache_dtype: str = "auto"
    num_prefill_lookahead_tokens: int = 0
    model_type: str = ""
