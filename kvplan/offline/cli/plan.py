"""``kvplan plan``: does it fit, and how much does it hold?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import (
    DOES_NOT_FIT,
    FITS,
    BadInput,
    DoesNotFit,
    does_not_fit,
    say_on_stderr,
)
from kvplan.offline.cli.fit_search import fewest_gpus
from kvplan.offline.cli.gpu_budget import verdict
from kvplan.offline.cli.knobs import find_knobs, knobs_of_failure
from kvplan.offline.cli.param_types import FILE, NumberIn
from kvplan.offline.cli.plan_answer import failure_dict, plan_dict, render_plan
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question
from kvplan.offline.cli.replay import read_workload, workload_options
from kvplan.offline.cli.terminal import make_console, print_json

EPILOG = """\b
Examples:
  kvplan plan llama-3.1-70b --tp 4 --memory 40GiB
  kvplan plan gemma-3-27b --memory 30GiB --max-model-len auto --kv-cache-dtype fp8
  kvplan plan ./Qwen3-8B --memory 60GiB --json
  kvplan plan Qwen/Qwen3-8B@main --gpu L40S
  kvplan plan llama-3.1-70b --tp 4 --memory 40GiB --write-request request.json
  kvplan plan --request request.json --memory 30GiB

Exit codes: 0 it fits, 1 it does not fit, 2 the input is wrong.
"""


@click.command("plan", epilog=EPILOG)
@deployment_options
@workload_options(
    "Take the grouping, block size and retention under which this load has the most throughput; "
    "the longest request still fits"
)
@click.option(
    "--max-first-token",
    type=NumberIn(0, 1e9, min_open=True),
    help="With --workload: take what serves 90 % of the requests within so many seconds to the "
    "first token at the highest rate of requests.",
)
@click.option(
    "--max-token-time",
    type=NumberIn(0, 1e9, min_open=True),
    help="The same with the mean seconds of a further token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option(
    "--write-request",
    type=FILE,
    help="Write the planner's whole input to this file, for --request.",
)
def command(as_json: bool, write_request: Path | None, **values: Any) -> int:
    """Plan the KV cache of MODEL: a built-in name, a config.json, its directory, or a Hub id."""
    question = read_question(values, needs_memory=write_request is None)
    chosen = None
    workload = read_workload(values)
    if workload is not None:
        from kvplan.offline.cli.workload import plan_for

        chosen = plan_for(question, workload)
        question = chosen.question
    try:
        given = question.planner_input()
    except DoesNotFit as error:
        raise DoesNotFit(f"{error.message}; {_gpus_needed(question)}") from None
    if write_request is not None:
        write_request_file(given, write_request)
    if not given.available_memory and given.kv_cache_specs:
        return FITS
    try:
        plan = given.plan()
    except kvplan.NotEnoughMemory as error:
        if given.budgets:
            given.facts["verdict"] = verdict(given, error)
        return _refuse(question, given, error, as_json)
    if given.budgets and not given.config.auto_fit:
        given.facts["verdict"] = verdict(given)
    knobs = find_knobs(question, plan) if plan.groups else []
    if as_json:
        answer = plan_dict(given, plan, knobs)
        if chosen is not None:
            answer["workload"] = chosen.to_dict()
        print_json(answer)
    else:
        if chosen is not None:
            from kvplan.offline.cli.workload import render_choice

            render_choice(make_console(), chosen)
        render_plan(make_console(), given, plan, knobs)
    return FITS


def _gpus_needed(question: Question) -> str:
    """How many GPUs would do where the weights alone fill those asked for; tried."""
    assert isinstance(question, ModelQuestion)
    found = fewest_gpus(question, 1)
    if found is None:
        return "no number of GPUs that is tried holds one request beside the weights"
    return f"{found[0].options} holds a request of the full length"


def write_request_file(given: PlannerInput, path: Path) -> None:
    """Write the whole input for ``--request``. Raises BadInput."""
    from kvplan import request

    recorded = request.from_objects(
        given.config, given.kv_cache_specs, given.available_memory, given.label
    )
    try:
        request.write(recorded, path)
    except OSError as error:
        # The file that cannot be written is a partial one; name the one asked for.
        raise BadInput(f"--write-request {path}: {error.strerror or error}") from None
    click.echo(f"wrote {path}", err=True)


def _refuse(
    question: Question, given: PlannerInput, error: kvplan.NotEnoughMemory, as_json: bool
) -> int:
    knobs = knobs_of_failure(question, error)
    if as_json:
        print_json(failure_dict(given, error, knobs))
    lines = [f"kvplan: {does_not_fit(given.label, error)}"]
    if given.facts.get("verdict", "does not") != "does not":
        lines.append(f"The memory is predicted: {given.facts['memory']}; {given.facts['verdict']}.")
    if knobs:
        lines += ["Any one of these would help:", *(f"  {knob}" for knob in knobs)]
    say_on_stderr("\n".join(lines))
    return DOES_NOT_FIT
