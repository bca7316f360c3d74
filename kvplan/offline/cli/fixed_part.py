"""From which length on the caches that stop growing have stopped: windows, chunks, states."""

from __future__ import annotations

import kvplan
from kvplan.offline.cli.search import largest
from kvplan.specs import KVCacheSpec, iter_layer_specs

#: Tokens beyond every window; the core's own bills are asked up to here.
_BEYOND = 1 << 40


def fixed_from_tokens(plan: kvplan.Plan) -> int | None:
    """The least length from which on the groups that stop growing hold the same.

    1 where they hold the same at any length, or where there are none; None where it is beyond
    2**39 tokens.
    """
    froms = [
        spec_fixed_from(spec, plan.config)
        for report, group in zip(plan.groups, plan.kv_cache_groups, strict=True)
        if report.tokens_per_page is None
        for spec in dict.fromkeys(iter_layer_specs(group.kv_cache_spec))
    ]
    known = [tokens for tokens in froms if tokens is not None]
    return max(known, default=1) if len(known) == len(froms) else None


def fixed_words(plan: kvplan.Plan) -> str:
    """From where on the part of a request that stops growing has stopped."""
    start = fixed_from_tokens(plan)
    if start is None:
        return "growing"
    if start > plan.max_model_len:
        return f"growing up to {start:,} tokens"
    return "fixed" if start == 1 else f"fixed from {start:,} tokens on"


def spec_fixed_from(spec: KVCacheSpec, config: kvplan.PlanningConfig) -> int | None:
    """The same of one layer; found by asking for the bytes of requests of other lengths."""

    def held(tokens: int) -> int:
        return spec.max_memory_usage_bytes(config.replace(max_model_len=tokens))

    most = held(_BEYOND)
    below = largest(1, _BEYOND, lambda tokens: held(tokens) < most) or 0
    return None if below >= _BEYOND // 2 else below + 1
