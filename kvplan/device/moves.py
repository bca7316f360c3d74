"""Moving blocks: their contents, and the block tables that name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvplan._core import InvalidArgument
from kvplan.arguments import in_range
from kvplan.device.operations import on_device, stream_of
from kvplan.device.regions import BlockRegions, checked_copy
from kvplan.device.tables import BlockTables, checked_tables
from kvplan.device.tensor_checks import INT32_END, Ids, checked_pairs, uploaded


def remap_blocks(tables: BlockTables, group: int, source_ids: Ids, target_ids: Ids) -> None:
    """Writes ``target_ids[i]`` wherever the table of a group has ``source_ids[i]``, in all rows.

    source_ids, target_ids: int32 ``[n]`` or lists, without the null block. No id may be twice among
    the sources; an entry is rewritten once, so an id may be a source and a target.
    """
    _checked_remap(tables, group, source_ids, target_ids)()


def _checked_remap(
    tables: BlockTables, group: int, source_ids: Ids, target_ids: Ids
) -> Callable[[], None]:
    """``remap_blocks``, checked and not launched yet."""
    device = checked_tables(tables).device
    in_range("group", group, 0, len(tables.groups))
    sources, targets = checked_pairs(source_ids, target_ids, device, INT32_END - 1)
    for ids in (sources, targets):
        if ids.device.type == "cpu" and not ids.all():
            raise InvalidArgument("source_ids, target_ids: the null block does not move")
    if sources.device.type == "cpu" and sources.unique().numel() != sources.numel():
        raise InvalidArgument("source_ids: a block is named twice")
    if sources.device != targets.device:
        sources, targets = uploaded(sources, device), uploaded(targets, device)
    sources, order = sources.sort()
    sources, targets = uploaded(sources, device), uploaded(targets[order], device)

    def launch() -> None:
        with on_device(device):
            tables._ops.remap_blocks(
                tables._native,
                group,
                sources.shape[0],
                sources.data_ptr(),
                targets.data_ptr(),
                stream_of(device),
            )

    return launch


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
    if len(moves) != len(regions) or (
        tables is not None and len(checked_tables(tables).groups) != len(moves)
    ):
        raise InvalidArgument(
            f"moves: are of {len(moves)} groups, regions of {len(regions)}"
            + ("" if tables is None else f", tables of {len(tables.groups)}")
        )
    launches = []
    for group, pair in enumerate(moves):
        try:
            sources, targets = pair
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"moves[{group}]: needs sources and targets, got {pair!r}"
            ) from None
        if len(sources) == 0 and len(targets) == 0:
            continue
        try:
            launches.append(checked_copy((buffer, buffer), regions[group], (sources, targets)))
            if tables is not None:
                launches.append(_checked_remap(tables, group, sources, targets))
        except InvalidArgument as error:
            raise InvalidArgument(f"moves[{group}]: {error}") from None
    _check_distinct_bytes(regions, moves)
    for launch in launches:
        launch()


def _check_distinct_bytes(
    regions: Sequence[BlockRegions], moves: Sequence[tuple[Ids, Ids]]
) -> None:
    """That no byte is in two blocks that move or are moved to, where the host has the ids."""
    runs = []  # first byte, end, id and group of each region of each block
    for group, (sources, targets) in enumerate(moves):
        if len(sources) == 0 or any(
            isinstance(ids, torch.Tensor) and ids.device.type != "cpu" for ids in (sources, targets)
        ):
            continue
        pairs = torch.stack([torch.as_tensor(ids).to(torch.int64) for ids in (sources, targets)])
        ids = pairs[:, pairs[0] != pairs[1]].reshape(-1, 1)
        offset, stride, size = torch.tensor(regions[group].regions).reshape(-1, 3).t()
        first = offset + ids * stride
        columns = (first, first + size, ids.expand_as(first), torch.full_like(first, group))
        runs.append(torch.stack(columns).reshape(4, -1))
    if not runs:
        return
    run = torch.cat(runs, 1)
    run = run[:, run[0].argsort()]
    for i in (run[0, 1:] < run[1, :-1]).nonzero().flatten().tolist()[:1]:
        (one, of_one), (other, of_other) = run[2:, i].tolist(), run[2:, i + 1].tolist()
        raise InvalidArgument(
            f"moves: block {other} of group {of_other} lies over block {one} of group {of_one}"
        )
