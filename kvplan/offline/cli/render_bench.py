"""Figures of `kvplan bench` for a reader."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kvplan.bench.measure import show_ratio, show_seconds
from kvplan.bench.report import Report, Row, ratios
from kvplan.offline.cli import charts
from kvplan.offline.cli.failures import BadInput, counted
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.tables import Column, FittingTable

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "planning": "Planning an engine: specs in, every worker's plan out",
    "placement": "Placing the tensors of one worker",
    "construction": "A block pool from nothing, every block handed out once",
    "allocation": "The block pool, per block",
    "manager": "The KV cache manager, per request",
    "memory": "Memory of a block pool, in a process of its own",
    "gcd": "The search for an approximate divisor of three values",
    "scale": "Far beyond any model, in a process of its own",
}


def render_bench(console: Console, report: Report) -> None:
    """A table for each kind of work, under what the figures depend on."""
    facts = ", ".join(f"{k} {v}" for k, v in report.machine.items() if k != "command")
    console.print(textwrap.fill(facts, console.width), markup=False)
    for note in report.notes:
        console.print(textwrap.fill(note, console.width), markup=False)
    for work, title in TITLES.items():
        rows = [row for row in report.rows if row.work == work]
        if rows:
            console.print()
            console.print(title, markup=False)
            _table(rows).print(console)


def render_comparison(console: Console, new: Report, old: Report) -> None:
    """How many times as fast each row is as in the earlier run."""
    console.print()
    console.print("Faster than before by", markup=False)
    for key in ("processor", "cores", "python", "kvplan", "vllm"):
        a, b = old.machine.get(key, "none"), new.machine.get(key, "none")
        if a != b:
            console.print(f"{key}: before {a}, now {b}", markup=False)
    found = ratios(new, old)
    sides = list(dict.fromkeys(side for _, by_side in found for side in by_side))
    if any(row.peak_bytes for row, _ in found):
        console.print("Of rows of memory: how many times as much it was before", markup=False)
    table = FittingTable([Column("work", words=True), *map(Column, sides)])
    for row, by_side in found:
        cells = [f"{by_side[side]:.2f}x" if side in by_side else "" for side in sides]
        table.add_row(_name(row), *cells)
    table.print(console)
    missing = len(new.rows) - len(found)
    if missing:
        console.print(f"{counted(missing, 'row')} without a counterpart in the earlier run")


def bench_figure(report: Report) -> Any:
    """Planning time against workers, both logarithmic: a colour a side, a dash a scenario."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in report.rows:
        if row.work == "planning" and row.workers is not None:
            for side in ("vllm", "drop_in", "native", "cpp"):
                if side in row.seconds:
                    points = curves.setdefault((row.name, side), [])
                    points.append((row.workers, row.seconds[side]))
    if not curves:
        raise BadInput("--plot draws planning times; there are none")
    figure, axes = charts.new_figure("Planning an engine: CPU time against workers")
    names = list(dict.fromkeys(name for name, _ in curves))
    sides = list(dict.fromkeys(side for _, side in curves))
    for (name, side), points in curves.items():
        axes.loglog(
            *zip(*sorted(points), strict=True),
            charts.DASHES[names.index(name) % len(charts.DASHES)],
            color=charts.COLOURS[sides.index(side)],
            marker=charts.MARKERS[sides.index(side)],
            markersize=4,
            label=f"{side}, {name}",
        )
    workers = sorted({n for points in curves.values() for n, _ in points})
    axes.set_xticks(workers, [f"{n:,}" for n in workers], minor=False)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(charts.worded(show_seconds))
    axes.set_xlabel("workers")
    charts.add_legend(figure)
    return figure


def _name(row: Row) -> str:
    return row.name if row.workers is None else f"{row.work} {row.name}, {row.workers:,} workers"


def _table(rows: list[Row]) -> FittingTable:
    has_workers = rows[0].workers is not None
    sides = list(dict.fromkeys(side for row in rows for side in row.seconds))
    remembering = list(dict.fromkeys(side for row in rows for side in row.peak_bytes))
    table = FittingTable(
        [
            Column("", words=True),
            *([Column("workers")] if has_workers else []),
            *map(Column, sides),
            *(Column(f"memory, {side}") for side in remembering),
        ]
    )
    for row in rows:
        cells = [row.name]
        if has_workers:
            cells.append(f"{row.workers:,}")
        base = row.seconds.get("vllm")
        for side in sides:
            cell = show_seconds(row.seconds.get(side))
            if base is not None and side != "vllm" and side in row.seconds:
                cell += f"\n{show_ratio(base, row.seconds[side])}"
            cells.append(cell)
        cells += [
            format_size(row.peak_bytes[side]) if side in row.peak_bytes else "-"
            for side in remembering
        ]
        table.add_row(*cells)
    return table
