"""``kvplan frontier``: groups against tokens, with vLLM's point and the lower bound."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import FITS
from kvplan.offline.cli.hit_unit import hit_unit
from kvplan.offline.cli.knobs import PLENTY
from kvplan.offline.cli.pictures import CHART_HELP
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.cli.replay import read_workload, workload_options

if TYPE_CHECKING:
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
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Draw the curve into this file: {CHART_HELP}.",
)
def command(as_json: bool, plot: Path | None, **values: Any) -> int:
    """Show the groupings of MODEL that no other beats: fewer groups or more tokens.

    Every group costs time in each scheduling step; every byte of padding costs tokens. Of each
    number of groups worth having, the curve shows the bytes of one request and the tokens in the
    same memory, against vLLM's own grouping.
    """
    if plot is not None:
        from kvplan.offline.cli.charts import check_chart, frontier_figure, write_chart

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
        click.echo(
            json.dumps(_as_dict(given, curve, sliced, hits, memory, replays, load), indent=2)
        )
    else:
        from kvplan.offline.cli.render_frontier import render_frontier
        from kvplan.offline.cli.terminal import make_console

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
    from kvplan.offline.cli.render_frontier import sliced_tokens_in_memory, tokens_in_memory

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
