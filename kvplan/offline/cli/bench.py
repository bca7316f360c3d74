"""``kvplan bench``: how long start-up planning takes here, beside vLLM."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan.bench.measure import show_ratio, show_seconds
from kvplan.bench.report import Report, Row, ratios
from kvplan.offline.cli import pictures
from kvplan.offline.cli.failures import FITS, BadInput, counted, refuse_unknown
from kvplan.offline.cli.files import refuse_other_kind
from kvplan.offline.cli.param_types import FILE, NAME_LIST, RANK_LIST, NumberIn, parse_ranks
from kvplan.offline.cli.pictures import CHART_HELP, check_chart, write_chart
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.terminal import Column, FittingTable, make_console

if TYPE_CHECKING:
    from rich.console import Console

EPILOG = """\b
Examples:
  kvplan bench
  kvplan bench gemma-3-27b --workers 1,8 --work planning
  kvplan bench --full --json > results.json
  kvplan bench --compare results.json
  kvplan bench --plot bench.svg

\b
Times are CPU time, medians of samples taken in turn. The sides:
  vllm                vLLM's own functions and objects
  drop_in             the same call with kvplan in it: vLLM's objects in and out
  drop_in_own         each worker with spec objects of its own, as worker processes send them
  builder_only        vLLM's flow with kvplan's builder
  native              kvplan's objects in, a plan or arrays of block ids out
  native_own_dicts    as native, each worker with a dict of layers of its own
  native_configs      as native, and every worker's config read as Python objects
  cpp                 the C++ library (--cpp)
"""

WORKERS = "1,8,64,1024"


@click.command("bench", epilog=EPILOG)
@click.argument("scenarios", nargs=-1)
@click.option("--workers", type=RANK_LIST, help=f"Numbers of workers.  [default: {WORKERS}]")
@click.option(
    "--work",
    "works",
    type=NAME_LIST,
    help="Of planning, placement, construction, allocation, manager, memory, gcd, scale, with "
    "commas.  "
    "[default: the first four]",
)
@click.option(
    "--budget",
    type=NumberIn(min=0.01),
    help="Seconds for each row.  [default: 1; 5 with --full, 0.1 with --quick]",
)
@click.option("--quick", is_flag=True, help="Two scenarios, 1 and 8 workers, few samples.")
@click.option("--full", is_flag=True, help="Every scenario, number of workers and kind of work.")
@click.option("--vllm/--no-vllm", "with_vllm", default=True, help="Measure vLLM where it is.")
@click.option(
    "--cpp",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the built executables of benchmarks/cpp, to run them, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--compare",
    "old",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="An earlier --json file: show how much faster each row is now.",
)
@click.option(
    "--plot", type=FILE, help=f"Draw planning against workers into this file: {CHART_HELP}."
)
@click.option("--from", "recorded", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Show an earlier --json file instead of measuring.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    as_json: bool, old: Path | None, plot: Path | None, recorded: Path | None, **values: Any
) -> int:
    """Measure planning, placement, block pool and cache manager, beside vLLM if it is installed.

    SCENARIOS are names of models; the default is a choice of them. Each is planned over growing
    numbers of workers. Where vLLM can be imported, its answers are compared with kvplan's first.
    """
    from kvplan.bench import report

    # Files first: nobody wants to read of a wrong one after minutes of measuring.
    for path in (old, recorded):
        if path is not None:
            refuse_other_kind(path, "bench")
    before = report.load(old) if old is not None else None
    found = report.load(recorded) if recorded is not None else _measure(values, plot)
    if plot is not None:
        write_chart(plot, "kvplan bench", bench_figure(found))
        click.echo(f"wrote {plot}", err=True)
    if as_json:
        click.echo(found.dumps(), nl=False)
        if before is None:
            return FITS
    console = make_console(stderr=as_json)
    if not as_json:
        render_bench(console, found)
    if before is not None:
        render_comparison(console, found, before)
    return FITS


def _measure(values: dict[str, Any], plot: Path | None) -> Any:
    from kvplan.bench import DEFAULT_WORKS, Settings, run
    from kvplan.bench import WORKS as ALL_WORKS
    from kvplan.bench.scenarios import SCENARIOS
    from kvplan.bench.scenarios import WORKERS as ALL_WORKERS

    quick, full = values["quick"], values["full"]
    if quick and full:
        raise BadInput("--quick and --full exclude each other")
    names = list(values["scenarios"])
    if not names:
        names = list(SCENARIOS)
        if not full:
            names = names[:2] if quick else ["llama-3.1-70b", "gemma-3-27b", "jamba-1.5-large",
                                             "7-kinds-auto-fit"]  # fmt: skip
    workers = values["workers"] or parse_ranks(WORKERS)
    if not values["workers"] and (full or quick):
        workers = [1, 8] if quick else list(ALL_WORKERS)
    works = values["works"] or list(ALL_WORKS if full else DEFAULT_WORKS)
    refuse_unknown("scenario", names, SCENARIOS)
    refuse_unknown("--work", works, ALL_WORKS)
    for n in workers:
        if not 1 <= n <= 16384:
            raise BadInput(f"--workers: {n:,} is not between 1 and 16,384")
    if plot is not None:
        check_chart(plot)
        if "planning" not in works:
            raise BadInput("--plot draws planning times; there are none")
    default_budget = 5.0 if full else 0.1 if quick else 1.0
    settings = Settings(
        works=works,
        scenarios=names,
        workers=workers,
        budget_s=values["budget"] or default_budget,
        with_vllm=values["with_vllm"],
        cpp=values["cpp"],
    )
    quiet = values["quiet"] or not sys.stderr.isatty()
    return run(settings, lambda line: None if quiet else click.echo(line, err=True))


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
    figure, axes = pictures.new_figure("Planning an engine: CPU time against workers")
    names = list(dict.fromkeys(name for name, _ in curves))
    sides = list(dict.fromkeys(side for _, side in curves))
    for (name, side), points in curves.items():
        axes.loglog(
            *zip(*sorted(points), strict=True),
            pictures.DASHES[names.index(name) % len(pictures.DASHES)],
            color=pictures.COLOURS[sides.index(side)],
            marker=pictures.MARKERS[sides.index(side)],
            markersize=4,
            label=f"{side}, {name}",
        )
    workers = sorted({n for points in curves.values() for n, _ in points})
    axes.set_xticks(workers, [f"{n:,}" for n in workers], minor=False)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(pictures.worded(show_seconds))
    axes.set_xlabel("workers")
    pictures.add_legend(figure)
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
