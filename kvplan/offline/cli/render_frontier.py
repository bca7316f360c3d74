"""The curve of groups against tokens for a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.frontier import STEP_REQUESTS, step_seconds
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.tables import Column, FittingTable

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan import Frontier, GroupingPoint, SlicedPoint
    from kvplan.offline.cli.frontier import HitUnits, Replays


def tokens_in_memory(
    curve: Frontier, point: GroupingPoint, memory: int, null_blocks: int = 0
) -> int:
    """Tokens of requests of the reference length in `memory` bytes.

    By vLLM's formula, which counts the null block, too; with 1 of `null_blocks` without it.
    """
    blocks = max(memory // point.bytes_per_block - null_blocks, 0)
    return int(blocks / point.request_blocks * curve.reference_model_len)


def sliced_tokens_in_memory(
    curve: Frontier, point: SlicedPoint, memory: int, null_blocks: int = 0
) -> int:
    """The same of sliced blocks, whose slices requests share."""
    blocks = max(memory // point.bytes_per_block - null_blocks, 0)
    return int(blocks * point.bytes_per_block / point.request_bytes * curve.reference_model_len)


def render_frontier(
    console: Console,
    label: str,
    curve: Frontier,
    sliced: SlicedPoint | None,
    hits: HitUnits,
    memory: int | None,
    replays: Replays,
    load: dict[str, str] | None,
) -> None:
    """Print the table and what follows from it.

    With `memory` (bytes), the tokens it holds; with a `load`, its replays under each point.
    """
    columns = ["groups", "layers", "block", "request", "padding", "tokens vs vLLM"]
    if memory is not None:
        columns.append("tokens")
    columns += ["hit", "step*", "vLLM's*"]
    if load is not None:
        columns += ["hits", "tokens/busy s"]
    table = FittingTable([*map(Column, columns), Column("grouping", words=True)])

    def cells_of_replay(which: int | str) -> list[str]:
        if load is None:
            return []
        report = replays[which]
        if report is None:
            return ["-", "-"]
        return [f"{report.hit_rate:.1%}", f"{report.goodput:,.0f}"]

    for point in _with_vllm(curve):
        tokens = None if memory is None else tokens_in_memory(curve, point, memory)
        which = "vllm" if point.is_vllm else point.num_groups
        cells = [*_cells(curve, point, tokens, hits[which]), *cells_of_replay(which)]
        table.add_row(*cells, _mark(curve, point))
    if sliced is not None:
        table.add_section()
        tokens = None if memory is None else sliced_tokens_in_memory(curve, sliced, memory)
        cells = [*_cells(curve, sliced, tokens, hits["sliced"]), *cells_of_replay("sliced")]
        table.add_row(*cells, "sliced")
    console.print(f"{label}: one request of {curve.reference_model_len:,} tokens", markup=False)
    table.print(console)
    console.print(
        f"Without any padding a request takes {format_size(curve.lower_bound_bytes)}. "
        + (
            "Every point is the best for its number of groups."
            if curve.exact
            else "The search was cut short: with as many groups as the chosen one has, no grouping "
            f"takes less than {format_size(curve.chosen.bound_bytes)}."
        ),
        markup=False,
    )
    console.print(
        f"* Estimate: CPU time that the groups add to a decoding step of {STEP_REQUESTS} requests, "
        "with kvplan's KV cache manager and with vLLM's, as measured in vLLM 0.32's CPU engine.",
        markup=False,
    )
    if load is not None:
        console.print(
            f"hits, tokens/busy s: {load['trace']} under each point; sliced plans are not "
            f"replayed. Step time: {load['step_time']}.",
            markup=False,
        )
    if sliced is not None:
        slices = ", ".join(map(str, sliced.slices))
        console.print(
            f"Sliced: one group a kind of cache; they cut a block into {slices} slices, in a "
            "block-outermost layout. A request takes its slices; the block is the pool's.",
            markup=False,
        )


def _cells(
    curve: Frontier, point: GroupingPoint | SlicedPoint, tokens: int | None, hit_tokens: int | None
) -> list[str]:
    padding = 1 - curve.lower_bound_bytes / point.request_bytes if point.request_bytes else 0
    cells = [
        str(point.num_groups),
        str(point.max_layers_per_group),
        format_size(point.bytes_per_block),
        format_size(point.request_bytes),
        f"{padding:.1%}",
        _gain(curve, point),
    ]
    if tokens is not None:
        cells.append(f"{tokens:,}")
    cells.append("-" if hit_tokens is None else f"{hit_tokens:,}")
    for manager in ("kvplan", "vllm"):
        cells.append(f"+{1e6 * step_seconds(point.num_groups, manager=manager):,.0f} us")
    return cells


def _with_vllm(curve: Frontier) -> list[GroupingPoint]:
    points = list(curve.points)
    if curve.vllm is not None and not any(p.is_vllm for p in points):
        points.append(curve.vllm)
    return sorted(points, key=lambda p: (p.num_groups, p.request_bytes))


def _gain(curve: Frontier, point: GroupingPoint | SlicedPoint) -> str:
    if curve.vllm is None or not point.request_bytes:
        return "-"
    return f"{curve.vllm.request_bytes / point.request_bytes:.2f}x"


def _mark(curve: Frontier, point: GroupingPoint) -> str:
    marks = []
    if point.is_vllm:
        marks.append("vLLM")
    chosen = curve.chosen
    if (point.num_groups, point.request_bytes) == (chosen.num_groups, chosen.request_bytes):
        marks.append("compact")
    return ", ".join(marks)
