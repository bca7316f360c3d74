"""What vLLM's code of an architecture does whatever its config says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.offline.models.config_view import ConfigView

if TYPE_CHECKING:
    from kvplan.offline.models.families.context import FamilyContext
    from kvplan.offline.models.layers import Layer, ModelLayers


def num_kv_heads(text: ConfigView) -> int:
    """The declared KV heads, else as many as attention heads."""
    return text.num_kv_heads


def all_heads(text: ConfigView) -> int:
    """A KV head for each attention head."""
    return text.num_heads


def kv_heads_under(key: str) -> Callable[[ConfigView], int]:
    """KV heads of a key that has to be there."""
    return lambda text: text.size(key)


def multi_query(text: ConfigView) -> int:
    """One KV head unless ``multi_query`` is false."""
    return 1 if text.get("multi_query", True) else text.num_heads


def falcon_kv_heads(text: ConfigView) -> int:
    """Falcon's multi-query models keep one KV head unless they have the new decoder."""
    if text.get("new_decoder_architecture", False):
        return text.optional_size("num_kv_heads") or text.num_heads
    return multi_query(text)


def dbrx_kv_heads(text: ConfigView) -> int:
    """DBRX nests them in ``attn_config``."""
    return text.section("attn_config").optional_size("kv_n_heads") or text.num_heads


def head_size(text: ConfigView) -> int:
    """``head_dim``, else the hidden size divided by the heads."""
    return text.head_size


def split_head_size(text: ConfigView) -> int:
    """The hidden size divided by the heads, whatever ``head_dim`` says."""
    return text.split_head_size


def latent_head_size(text: ConfigView) -> int:
    """A latent model's heads, expanded before they are stored."""
    return text.size("qk_nope_head_dim") + text.size("qk_rope_head_dim")


_SLIDING = frozenset({"sliding_attention", "local_attention", "sliding", "local"})


@dataclass(frozen=True, kw_only=True)
class Mtp:
    """The MTP layers that a model drafts with.

    Attributes:
        layer: Caches of one of them, given the context, the model, its name and its number.
        name: vLLM's name of its attention, with ``{k}`` for its number and ``{n}`` for the same
            counted behind the model's layers.
        default_count: How many there are where the config declares none.
        only_first: Whether vLLM runs the first one only.
    """

    layer: Callable[[FamilyContext, ModelLayers, str, int], Iterator[Layer]]
    name: str = "model.layers.{n}.self_attn.attn"
    default_count: int = 0
    only_first: bool = False


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Columns of the architecture table; the defaults are what most model code does.

    Attributes:
        state_pattern: vLLM's name of a recurrent layer, with ``{i}`` for the layer index.
        name_step: How far layer names count from one layer with a cache to the next.
        attentions_per_layer: Attentions of a decoder layer, each with a cache.
        kv_heads: KV heads over all TP ranks of a text config.
        head_size: Elements of a head of a text config.
        replicates_kv_heads: Whether KV heads are replicated where there are more TP ranks.
        full_heads_differ: Whether full layers have heads of their own beside sliding ones.
        period: Layers from one full layer to the next where the config lists no kinds, or None.
        sliding_kinds: Layer kinds that attend within the sliding window.
        window_extra: Tokens that the code adds to the config's window.
        has_sinks: Whether every layer has attention sinks.
        backend_with_sinks: The backend that applies the latents' sinks, or None.
        has_reference_window: Whether generated tokens have a window of their own (``rswa_window``).
        mm_prefix: Whether image positions are attended in both directions.
        mamba_version: Version of Mamba in a model of nothing else.
        own_ssm_dtype: Whether ``mamba_ssm_dtype`` of the config is heeded.
        conv_dim_key: The key with the channels of a short convolution.
        exports_checkpoints: Whether gated-delta layers can export prefill checkpoints.
        only_backend: The backend that the model runs on, which vLLM does not choose by itself.
        single_stage: Whether vLLM does not divide the layers over pipeline stages.
        mtp: The model's own drafter, or None where what it caches is not known.
        ignored_keys: Config keys that shape other models' caches and that this code does not
            read: it reads others instead, or does what they say in one way only.
    """

    state_pattern: str = ""
    name_step: int = 1
    attentions_per_layer: int = 1
    kv_heads: Callable[[ConfigView], int] = num_kv_heads
    head_size: Callable[[ConfigView], int] = head_size
    replicates_kv_heads: bool = True
    full_heads_differ: bool = False
    period: int | None = None
    sliding_kinds: frozenset[str] = _SLIDING
    window_extra: int = 0
    has_sinks: bool = False
    backend_with_sinks: str | None = None
    has_reference_window: bool = False
    mm_prefix: bool = False
    mamba_version: int = 1
    own_ssm_dtype: bool = False
    conv_dim_key: str = "conv_dim"
    exports_checkpoints: bool = True
    only_backend: str | None = None
    single_stage: bool = False
    mtp: Mtp | None = None
    ignored_keys: tuple[str, ...] = ()
