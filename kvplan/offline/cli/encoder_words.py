"""What a running server holds of an encoder's tokens, beside what vLLM's formula charges."""

from __future__ import annotations

import kvplan


def encoder_lines(plan: kvplan.Plan) -> list[str]:
    """A sentence for plans with cross attention; none for others."""
    tokens = plan.encoder_tokens_per_request
    if tokens is None:
        return []
    config = plan.config
    text = (
        f"vLLM's formula charges each request {config.max_num_encoder_input_tokens:,} encoder "
        "tokens, those of a whole step (max_num_encoder_input_tokens); a running server holds "
        "blocks for the tokens that the request's encoder input has"
    )
    if config.encoder_tokens_per_request is None:
        return [
            f"{text}, which are not known here (encoder_tokens_per_request): all figures are by "
            "the formula"
        ]
    return [f"{text}: {tokens:,} at most for this model, as the steady figures count them"]


def encoder_note(config: kvplan.PlanningConfig) -> str:
    """The same in one line, for answers by vLLM's formula alone; empty if nothing is known."""
    tokens = config.encoder_tokens_per_request
    if tokens is None or tokens >= config.max_num_encoder_input_tokens:
        return ""
    return (
        f"By vLLM's formula, which charges each request {config.max_num_encoder_input_tokens:,} "
        f"encoder tokens; a running server holds {tokens:,} at most, so more fits at once "
        "('kvplan plan' has the steady figures)."
    )
