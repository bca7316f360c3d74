"""A plan's groups as rows of a table; consecutive groups that look alike share a row."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import kvplan
from kvplan.offline.cli.layer_ranges import layer_ranges
from kvplan.offline.cli.spec_words import group_words


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
