"""``kvplan frontier``: groups against tokens, with vLLM's point and the lower bound."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import kvplan
from kvplan.frontier import STEP_REQUESTS, step_seconds
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import FITS
from kvplan.offline.cli.knobs import PLENTY
from kvplan.offline.cli.param_types import FILE
from kvplan.offline.cli.pictures import CHART_HELP, check_chart, frontier_figure, write_chart
from kvplan.offline.cli.plan_facts import hit_unit
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.cli.replay import read_workload, workload_options
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.terminal import Column, FittingTable, make_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan import Frontier, GroupingPoint, SlicedPoint
    from kvplan.offline.replay.run import Report

#: The plan of each point by its number of groups, or "vllm" or "sliced"; None where there is none.
Plans = dict[int | str, "kvplan.Plan | None"]
#: Tokens that a hit is a multiple of, of each of these.
HitUnits = dict[int | str, "int | None"]
#: Replays of these.
Replays = dict[int | str, "Report | None"]

_MUCH = 1 << 43

EPILOG = """\b
Examples:
  kvplan frontier gemma-3-27b
  kvplan frontier deepseek-v4-flash --tp 4 --memory 40GiB --max-groups 32
  kvplan frontier --request recorded.json --json
  kvplan frontier gemma-3-27b --plot curve.svg
  kvplan frontier gemma-3-27b --memory 20GiB --workload agents
"""


@click.command("frontier", epilog=EPILOG)
@deployment_options
@workload_options("Replay this load under each point: hit rate and throughput beside the tokens")
@click.option("--json", "as_json", is_flag=True, help="Print the curve as JSON.")
@click.option("--plot", type=FILE, help=f"Draw the curve into this file: {CHART_HELP}.")
def command(as_json: bool, plot: Path | None, **values: Any) -> int:
    """Show the groupings of MODEL that no other beats: fewer groups or more tokens.

    Every group costs time in each scheduling step; every byte of padding costs tokens. Of each
    number of groups worth having, the curve shows the bytes of one request and the tokens in the
    same memory, against vLLM's own grouping.
    """
    if plot is not None:
        check_chart(plot)
    workload = read_workload(values)
    question = read_question(values, needs_memory=workload is not None)
    has_memory = question.has_memory
    if not has_memory:
        question = question.with_memory((PLENTY,))
    given = question.planner_input()
    memory = min(given.available_memory) if has_memory else None
    config = given.config.replace(grouping="compact")
    curve = kvplan.frontier(config, given.kv_cache_specs)
    sliced = _sliced_point(given, config, has_memory)
    plans = _plans(given, config, curve, sliced)
    hits = {which: _hit_tokens(plan) for which, plan in plans.items()}
    replays: Replays = {}
    load: dict[str, str] | None = None
    if workload is not None:
        fitting = [plan for plan in (plans["vllm"], *plans.values()) if plan is not None]
        # One model of time for all points.
        one = fitting[0] if fitting else given.plan_or_refuse()
        policy = workload.policy(question, given, one)
        load = workload.to_dict(policy)
        for which, plan in plans.items():
            replays[which] = None
            if plan is not None:
                with contextlib.suppress(kvplan.Unsupported):
                    replays[which] = workload.replay(plan, policy, question.replicas)
    if plot is not None:
        write_chart(plot, given.label, frontier_figure(given.label, curve, sliced))
        click.echo(f"wrote {plot}", err=True)
    if as_json:
        print_json(_as_dict(given, curve, sliced, hits, memory, replays, load))
    else:
        render_frontier(make_console(), given.label, curve, sliced, hits, memory, replays, load)
    return FITS


def _sliced_point(
    given: PlannerInput, config: kvplan.PlanningConfig, has_memory: bool
) -> kvplan.SlicedPoint | None:
    """The point of sliced grouping, which asks for a block-outermost layout."""
    memory = given.available_memory if has_memory else None
    for layout in dict.fromkeys((config.kv_cache_layout, "BLHNC")):
        sliced = config.replace(grouping="sliced", kv_cache_layout=layout)
        point = kvplan.sliced_point(sliced, given.kv_cache_specs, memory)
        if point is not None:
            return point
    return None


def _plans(
    given: PlannerInput,
    config: kvplan.PlanningConfig,
    curve: kvplan.Frontier,
    sliced: kvplan.SlicedPoint | None,
) -> Plans:
    """The plan of each point, by its number of groups; vLLM's and sliced by name."""
    # A unit is the same with any memory, but slices of an endless one would have no ids.
    memory = [min(size, _MUCH) for size in given.available_memory]

    def plan_of(**changes: Any) -> kvplan.Plan | None:
        changed = config.replace(**changes)
        try:
            return kvplan.plan(changed, given.kv_cache_specs, memory)
        except kvplan.PlanningError:
            return None

    plans: Plans = {
        point.num_groups: plan_of(max_groups=point.num_groups) for point in curve.points
    }
    plans["vllm"] = plan_of(grouping="vllm")
    if sliced is not None:
        layout = config.kv_cache_layout
        outermost = layout if layout.startswith("B") else "BLHNC"
        plans["sliced"] = plan_of(grouping="sliced", kv_cache_layout=outermost)
    return plans


def _hit_tokens(plan: kvplan.Plan | None) -> int | None:
    unit = None if plan is None else hit_unit(plan)
    return unit and unit.tokens


def _as_dict(
    given: PlannerInput,
    curve: kvplan.Frontier,
    sliced: kvplan.SlicedPoint | None,
    hits: HitUnits,
    memory: int | None,
    replays: Replays,
    load: dict[str, str] | None,
) -> dict[str, Any]:
    from kvplan.frontier import sliced_to_dict, step_seconds, to_dict

    def steps(num_groups: int) -> dict[str, float]:
        return {
            "estimated_step_seconds": step_seconds(num_groups),
            "estimated_step_seconds_with_vllms_manager": step_seconds(num_groups, manager="vllm"),
        }

    def of_plan(which: int | str) -> dict[str, Any]:
        found: dict[str, Any] = {"hit_tokens": hits[which]}
        if load is not None:
            from kvplan.offline.cli.workload import figures

            report = replays[which]
            found["replay"] = None if report is None else figures(report)
        return found

    answer = {"model": given.label, "facts": given.facts} | to_dict(curve)
    if load is not None:
        answer["workload"] = load
        if answer["vllm"] is not None:
            answer["vllm"] |= of_plan("vllm")
    for point, described in zip(curve.points, answer["points"], strict=True):
        described |= steps(point.num_groups)
        described |= of_plan("vllm" if point.is_vllm else point.num_groups)
        if memory is not None:
            described["capacity_tokens"] = tokens_in_memory(curve, point, memory)
            described["usable_capacity_tokens"] = tokens_in_memory(curve, point, memory, 1)
    answer["sliced"] = None
    if sliced is not None:
        answer["sliced"] = sliced_to_dict(sliced) | steps(sliced.num_groups)
        answer["sliced"] |= of_plan("sliced")
        if memory is not None:
            found = answer["sliced"]
            found["capacity_tokens"] = sliced_tokens_in_memory(curve, sliced, memory)
            found["usable_capacity_tokens"] = sliced_tokens_in_memory(curve, sliced, memory, 1)
    return answer


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
