"""What follows from a plan, in numbers and in words: its groups, hits, and what is fixed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import kvplan
from kvplan.offline.cli.failures import counted
from kvplan.offline.cli.search import largest
from kvplan.specs import KVCacheSpec, iter_layer_specs

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_MAX_RUNS = 4


def layer_ranges(names: Iterable[str]) -> str:
    """The numbers of the layers; "" if a name has none."""
    numbers = []
    for name in names:
        match = _NUMBER.search(name)
        if match is None:
            return ""
        numbers.append(int(match.group(1)))
    return number_ranges(sorted(set(numbers)))


def number_ranges(numbers: list[int]) -> str:
    """Sorted numbers as runs of equal steps, the tail cut off where there are many."""
    runs: list[str] = []
    start = 0
    while start < len(numbers):
        end = start + 1
        step = numbers[end] - numbers[start] if end < len(numbers) else 1
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
            end += 1
        end = min(end, len(numbers) - 1)
        if end - start >= 2 or (end - start == 1 and step == 1):
            runs.append(f"{numbers[start]}-{numbers[end]}" + (f" by {step}" if step > 1 else ""))
            start = end + 1
        else:
            runs.append(str(numbers[start]))
            start += 1
    if len(runs) > _MAX_RUNS:
        runs = [*runs[: _MAX_RUNS - 1], "..."]
    return ", ".join(runs)


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


@dataclass(frozen=True)
class GroupRow:
    """One group, or a run of groups alike in all but their layers.

    Attributes:
        first: Index of the first group.
        count: Groups in the run.
        layers: Layers of each group.
        draft_layers: How many of these are a drafter's.
        layer_names: Which layers these are, in short; "" for several groups.
        kind: What the layers keep.
        block_size: Tokens of a block.
        page_size_bytes: Bytes of a block that this group's pages take.
        padding_bytes: Bytes of a block that hold nothing.
        slices: Blocks of each group in a block of the pool.
        slice_bytes: Bytes of a block of the group.
        pages: Blocks that one request holds in each group.
        tokens_per_page: Tokens after which it holds one more; None where it stops growing.
    """

    first: int
    count: int
    layers: int
    draft_layers: int
    layer_names: str
    kind: str
    block_size: int
    page_size_bytes: int
    padding_bytes: int
    slices: int
    slice_bytes: int
    pages: int
    tokens_per_page: int | None

    @property
    def which(self) -> str:
        """Which layers these are, in brackets; of several groups, whose."""
        if self.layer_names:
            return f" ({self.layer_names})"
        is_mixed = 0 < self.draft_layers < self.layers
        return f" ({self.draft_layers} of {self.layers} a drafter's)" if is_mixed else ""

    @property
    def held_bytes(self) -> int:
        """Bytes that one request holds in all groups of the run."""
        return self.count * self.pages * self.slice_bytes

    @property
    def label(self) -> str:
        """The groups' numbers."""
        return str(self.first) if self.count == 1 else f"{self.first}-{self.first + self.count - 1}"


def is_sliced(plan: kvplan.Plan) -> bool:
    """Whether the groups cut the pool's blocks into slices."""
    return any(report.slices != 1 for report in plan.groups)


def held_bytes(plan: kvplan.Plan) -> int:
    """Bytes of the blocks of all groups that one request holds; of a block, its slices."""
    return sum(report.pages_per_request * report.slice_bytes for report in plan.groups)


def group_rows(plan: kvplan.Plan, draft_layers: Set[str]) -> list[GroupRow]:
    """The rows in group order.

    Args:
        plan: The plan.
        draft_layers: Names of the layers that are a drafter's.
    """
    rows: list[GroupRow] = []
    for index, (report, group) in enumerate(zip(plan.groups, plan.kv_cache_groups, strict=True)):
        drafts = [name for name in report.layer_names if name in draft_layers]
        # Without a mark at the layers, the group's own is all that is known.
        is_drafter = len(drafts) == report.num_layers if drafts else report.is_eagle_group
        row = GroupRow(
            first=index,
            count=1,
            layers=report.num_layers,
            draft_layers=len(drafts),
            layer_names=_names(report.layer_names, drafts),
            kind=group_words(group.kv_cache_spec) + (", drafter" if is_drafter else ""),
            block_size=report.block_size,
            page_size_bytes=report.page_size_bytes,
            padding_bytes=report.padding_bytes,
            slices=report.slices,
            slice_bytes=report.slice_bytes,
            pages=report.pages_per_request,
            tokens_per_page=report.tokens_per_page,
        )
        if rows:
            last = rows[-1]
            alike = replace(row, first=last.first, count=last.count, layer_names=last.layer_names)
            if alike == last:
                rows[-1] = replace(last, count=last.count + 1, layer_names="")
                continue
        rows.append(row)
    return rows


def _names(layers: Sequence[str], drafts: Sequence[str]) -> str:
    """Which layers; a drafter's apart from the model's own."""
    drafted = set(drafts)
    own = [name for name in layers if name not in drafted]
    if not own or not drafts:
        return layer_ranges(layers)
    ranges = layer_ranges(own), layer_ranges(drafts)
    return f"{ranges[0]}; drafter {ranges[1]}" if all(ranges) else ""


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
