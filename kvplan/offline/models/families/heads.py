"""How model code reads the number and the size of its heads from a text config."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.offline.models.config_view import ConfigView


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
