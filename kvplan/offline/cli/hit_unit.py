"""How long a prefix must be to be found under a plan, in numbers and in words."""

from __future__ import annotations

from typing import NamedTuple

import kvplan
from kvplan.offline.cli.failures import counted


class HitUnit(NamedTuple):
    """What a prefix hit is measured in.

    Attributes:
        tokens: The length of a hit is a multiple of it.
        shortest_prompt: Tokens of the shortest prompt that hits when it comes again.
        blocks: Blocks that this prompt takes of each group.
    """

    tokens: int
    shortest_prompt: int
    blocks: tuple[int, ...]


def hit_unit(plan: kvplan.Plan) -> HitUnit | None:
    """The hit unit of a plan; None where no prefix is ever found."""
    if not plan.groups:
        return None
    try:
        found = plan._prefix_hits()
    except kvplan.PlanningError:
        return None  # no manager caches such groups, e.g. HiSparse's or cross attention's
    return None if found is None else HitUnit(*found)


def hit_words(plan: kvplan.Plan) -> str:
    """The hit unit in a sentence without its end."""
    if not plan.config.enable_prefix_caching:
        return "none: prefix caching is off"
    unit = hit_unit(plan)
    if unit is None:
        return "none: no prompt of up to max_model_len tokens is found again"
    blocks = sum(unit.blocks)
    text = (
        f"end on multiples of {counted(unit.tokens, 'token')}; the shortest prompt that can hit "
        f"has {unit.shortest_prompt:,} tokens and takes {counted(blocks, 'block')}"
    )
    if len(unit.blocks) > 1:
        kinds = dict.fromkeys(unit.blocks)
        each = (
            f"{number:,} of each of {counted(unit.blocks.count(number), 'group')}"
            if unit.blocks.count(number) > 1
            else f"{number:,} of one"
            for number in kinds
        )
        text += f": {', '.join(each)}"
    return text
