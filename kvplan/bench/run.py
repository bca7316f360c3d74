"""A run of the benchmark: which rows, in which order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kvplan.bench import manager, pool
from kvplan.bench.measure import describe_machine
from kvplan.bench.planning import EXPONENTS, gcd_row, placement_row, planning_row
from kvplan.bench.report import Report, Row
from kvplan.bench.scale import SIZES, scale_row
from kvplan.bench.scenarios import SCENARIOS

DEFAULT_WORKS = ("planning", "placement", "construction", "allocation")
WORKS = (*DEFAULT_WORKS, "manager", "memory", "gcd", "scale")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        works: Of `WORKS`.
        scenarios: Of `SCENARIOS`, for planning and placement.
        workers: Numbers of workers, for planning.
        budget_s: Wall seconds for each row.
        with_vllm: Whether to measure vLLM's side where it can be imported.
        cpp: Folder with the executables of `benchmarks/cpp`, if they are to be run.
    """

    works: Sequence[str]
    scenarios: Sequence[str]
    workers: Sequence[int]
    budget_s: float
    with_vllm: bool = True
    cpp: Path | None = None


def run(settings: Settings, progress: Callable[[str], None] = lambda line: None) -> Report:
    """Measure everything that the settings name; `progress` hears what comes next.

    Raises:
        AssertionError: vLLM and kvplan gave different answers.
        FileNotFoundError: a C++ executable is missing.
    """
    from kvplan.bench.cpp import Executables

    executables = Executables(settings.cpp) if settings.cpp is not None else None
    machine = describe_machine()
    notes: list[str] = []
    rows: list[Row] = []
    with _sides(settings.with_vllm, notes, progress) as sides:
        for name, make in _steps(settings, sides):
            progress(name)
            rows.append(make())
    if executables is not None:
        progress("the C++ library")
        rows = _with_cpp(rows, executables, settings.budget_s)
    return Report(machine=machine, notes=notes, rows=rows)


@contextlib.contextmanager
def _sides(wanted: bool, notes: list[str], progress: Callable[[str], None]) -> Iterator[Any]:
    """The side of vLLM, or None with the reason in the notes."""
    if not wanted:
        notes.append("vLLM was left out as asked for")
        yield None
        return
    progress("importing vLLM")
    try:
        from kvplan.bench.vllm_sides import Sides

        made = Sides()
    except ImportError as e:
        notes.append(f"vLLM is not measured, it cannot be imported: {e}")
        yield None
        return
    with made:
        yield made


def _steps(settings: Settings, sides: Any) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Each row's words for the progress, and what measures it."""
    budget = settings.budget_s
    for work in settings.works:
        if work == "planning":
            for name in settings.scenarios:
                for n in settings.workers:
                    yield f"planning {name}, {n} workers", partial(_plan, name, n, sides, budget)
        elif work == "placement":
            for name in settings.scenarios:
                yield f"placement {name}", partial(_place, name, sides, budget)
        elif work == "construction":
            for n in pool.SIZES:
                yield f"construct {n:,} blocks", partial(pool.construction_row, n, sides, budget)
        elif work == "allocation":
            for name in pool.CASES:
                yield name, partial(pool.allocation_row, name, sides, budget)
        elif work == "manager":
            for n in manager.GROUPS:
                for call in manager.CALLS:
                    name = manager.row_name(call, n)
                    yield name, partial(manager.manager_row, call, n, sides, budget)
        elif work == "memory":
            yield "memory of a pool", partial(pool.memory_row, sides is not None)
        elif work == "gcd":
            for exponent in EXPONENTS:
                yield f"gcd near 10^{exponent}", partial(gcd_row, exponent, sides, budget)
        elif work == "scale":
            for layers, n in SIZES:
                yield f"scale, {layers:,} layers, {n} workers", partial(scale_row, layers, n)
        else:
            raise ValueError(f"{work!r} is no kind of work; known are {', '.join(WORKS)}")


def _plan(name: str, num_workers: int, sides: Any, budget_s: float) -> Row:
    return planning_row(SCENARIOS[name](), num_workers, sides, budget_s)


def _place(name: str, sides: Any, budget_s: float) -> Row:
    return placement_row(SCENARIOS[name](), sides, budget_s)


def _with_cpp(rows: list[Row], executables: Any, budget_s: float) -> list[Row]:
    planned = [row for row in rows if row.work == "planning"]
    requests = {
        row.key: msgspec.json.encode(SCENARIOS[row.name]().request(row.workers or 1))
        for row in planned
    }
    answered = {row.key: row for row in executables.planning(planned, requests, budget_s)}
    named = [row for row in rows if row.work not in ("planning", "placement", "memory")]
    answered |= {row.key: row for row in executables.named(named, budget_s)}
    return [answered.get(row.key, row) for row in rows]
