"""What a running server holds of an encoder's tokens, beside what vLLM's formula charges."""

from __future__ import annotations

import kvplan
from kvplan.cli.question import PlannerInput
from kvplan.specs import CrossAttentionSpec, iter_layer_specs


def has_cross_attention(plan: kvplan.Plan) -> bool:
    """Whether a decoder of the plan attends to an encoder's tokens."""
    return any(
        isinstance(spec, CrossAttentionSpec)
        for group in plan.kv_cache_groups
        for spec in iter_layer_specs(group.kv_cache_spec)
    )


def encoder_lines(given: PlannerInput, plan: kvplan.Plan) -> list[str]:
    """A sentence or two for plans with cross attention; none for others.

    Args:
        given: What was asked.
        plan: Its plan.
    """
    if not has_cross_attention(plan):
        return []
    charged = plan.config.max_num_encoder_input_tokens
    text = (
        f"vLLM's formula charges each request {charged:,} encoder tokens, those of a whole step "
        "(max_num_encoder_input_tokens), and so do the figures above; a running server holds "
        "blocks for the tokens that the request's encoder input has"
    )
    tokens = given.encoder_tokens
    if tokens is None:
        return [text]
    config = plan.config.replace(
        max_num_encoder_input_tokens=tokens,
        num_gpu_blocks_override=plan.num_blocks,
        auto_fit=False,
        max_model_len=plan.max_model_len,
    )
    try:
        running = kvplan.plan(config, given.kv_cache_specs, given.available_memory)
    except kvplan.NotEnoughMemory:
        return [text]
    return [
        f"{text}: {tokens:,} at most for this model, with which {running.steady_concurrency:,.2f} "
        f"requests of {plan.max_model_len:,} tokens run at once"
    ]
