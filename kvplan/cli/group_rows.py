"""A plan's groups as rows of a table; consecutive groups that look alike share a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import kvplan
from kvplan.cli.layer_ranges import layer_ranges
from kvplan.cli.spec_words import group_words


@dataclass(frozen=True)
class GroupRow:
    """One group, or a run of groups alike in all but their layers.

    Attributes:
        first: Index of the first group.
        count: Groups in the run.
        layers: Layers of each group.
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
    def label(self) -> str:
        """The groups' numbers."""
        return str(self.first) if self.count == 1 else f"{self.first}-{self.first + self.count - 1}"


def is_sliced(plan: kvplan.Plan) -> bool:
    """Whether the groups cut the pool's blocks into slices."""
    return any(report.slices != 1 for report in plan.groups)


def held_bytes(plan: kvplan.Plan) -> int:
    """Bytes of the blocks of all groups that one request holds; of a block, its slices."""
    return sum(report.pages_per_request * report.slice_bytes for report in plan.groups)


def group_rows(plan: kvplan.Plan) -> list[GroupRow]:
    """The rows in group order."""
    rows: list[GroupRow] = []
    for index, (report, group) in enumerate(zip(plan.groups, plan.kv_cache_groups, strict=True)):
        row = GroupRow(
            first=index,
            count=1,
            layers=report.num_layers,
            layer_names=layer_ranges(report.layer_names),
            kind=group_words(group.kv_cache_spec) + (", drafter" if report.is_eagle_group else ""),
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
