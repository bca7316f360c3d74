"""Moving blocks: their contents, and the block tables that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from kvplan._core import InvalidArgument
from kvplan.arguments import in_range
from kvplan.device.operations import on_device, stream_of
from kvplan.device.regions import BlockRegions, copy_blocks
from kvplan.device.tables import BlockTables
from kvplan.device.tensor_checks import INT32_END, checked_ids

Ids: TypeAlias = torch.Tensor | Sequence[int]


def remap_blocks(tables: BlockTables, group: int, source_ids: Ids, target_ids: Ids) -> None:
    """Writes ``target_ids[i]`` wherever the table of a group has ``source_ids[i]``, in all rows.

    source_ids, target_ids: int32 ``[n]`` or lists, without the null block. No id may be twice among
    the sources; an entry is rewritten once, so an id may be a source and a target.
    """
    device = tables.device
    in_range("group", group, 0, len(tables.groups))
    sources = checked_ids("source_ids", source_ids, device, INT32_END - 1)
    targets = checked_ids("target_ids", target_ids, device, INT32_END - 1)
    if sources.shape != targets.shape:
        raise InvalidArgument(
            f"target_ids: has {targets.shape[0]} ids, source_ids has {sources.shape[0]}"
        )
    sources, order = sources.sort()
    targets = targets[order]
    if device.type == "cpu" and sources.numel():
        if not sources[0] or not targets.all():
            raise InvalidArgument("source_ids, target_ids: the null block does not move")
        if (sources[1:] == sources[:-1]).any():
            raise InvalidArgument("source_ids: a block is named twice")
    with on_device(device):
        tables._ops.remap_blocks(
            tables._native,
            group,
            sources.shape[0],
            sources.data_ptr(),
            targets.data_ptr(),
            stream_of(device),
        )


def move_blocks(
    buffer: torch.Tensor,
    regions: Sequence[BlockRegions],
    tables: BlockTables | None,
    moves: Sequence[tuple[Ids, Ids]],
) -> None:
    """Copies blocks to their new places and rewrites the tables: what a host pool has moved.

    moves: sources and targets for each group; no target may be another source or target of any
    group's, in bytes. regions: one of each group (``BlockRegions.from_plan(..., group=g)``).
    tables: None where the host writes them.
    """
    if len(moves) != len(regions) or (tables is not None and len(tables.groups) != len(moves)):
        raise InvalidArgument(
            f"moves: are of {len(moves)} groups, regions of {len(regions)}"
            + ("" if tables is None else f", tables of {len(tables.groups)}")
        )
    for group, (sources, targets) in enumerate(moves):
        if len(sources) == 0 and len(targets) == 0:
            continue
        copy_blocks(buffer, buffer, regions[group], sources, targets)
        if tables is not None:
            remap_blocks(tables, group, sources, targets)
