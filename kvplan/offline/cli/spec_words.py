"""A cache's kind in words: ``sliding window of 1,024``, ``Mamba state``."""

from __future__ import annotations

from typing import Any

from kvplan.specs import iter_layer_specs


def spec_words(spec: Any) -> str:
    """What one layer keeps."""
    kind = type(spec).__name__
    match kind:
        case "FullAttentionSpec":
            return "full attention"
        case "MLAAttentionSpec":
            ratio = spec.tokens_per_state
            what = "indexer" if spec.cache_role.name == "INDEXER" else "MLA"
            return f"{what}, {ratio} tokens a state" if ratio != 1 else what
        case "SlidingWindowSpec":
            return f"sliding window of {spec.sliding_window:,}"
        case "SlidingWindowMLASpec":
            return f"MLA, sliding window of {spec.sliding_window:,}"
        case "ChunkedLocalAttentionSpec":
            return f"chunks of {spec.attention_chunk_size:,}"
        case "SinkFullAttentionSpec":
            return "full attention with sinks"
        case "RSWASpec":
            return f"reference window of {spec.rswa_window:,}"
        case "MambaSpec":
            return f"{spec.mamba_type} state"
        case "CrossAttentionSpec":
            return "cross attention"
        case "CircularBufferSpec":
            return "circular buffer"
        case "HiddenStateCacheSpec":
            return "hidden states"
        case "CustomSpec":
            return spec.custom_class
    return kind.removesuffix("Spec")


def group_words(group_spec: Any) -> str:
    """What the layers of a group keep, each kind once."""
    words = dict.fromkeys(spec_words(spec) for spec in iter_layer_specs(group_spec))
    return " + ".join(words)
