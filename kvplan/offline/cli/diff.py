"""``kvplan diff``: two plans side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, does_not_fit, say_on_stderr
from kvplan.offline.cli.plan_json import plan_numbers
from kvplan.offline.cli.question import PlannerInput

EPILOG = """\b
Examples:
  kvplan diff gemma-3-27b "--kv-cache-dtype fp8" --memory 30GiB
  kvplan diff "llama-3.1-70b --tp 4" "llama-3.1-70b --tp 8" --memory 40GiB
  kvplan diff recorded-before.json recorded-after.json

\b
A side is what one would give to 'kvplan plan': a model with options, in quotes; a recorded
request; or, for B, only the options that differ from A. Options after B are for both, where a
side has not its own; --json is one of them, and prints both sides as JSON.

Exit codes: 0 both fit, 1 one does not fit, 2 the input is wrong.
"""


@click.command(
    "diff",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("sides", nargs=-1, type=click.UNPROCESSED, metavar="A B [OPTIONS FOR BOTH]")
def command(sides: tuple[str, ...]) -> int:
    """Compare two plans: two models, two sets of options, or two recorded requests."""
    as_json = "--json" in sides
    a, b, common = _split([text for text in sides if text != "--json"])
    pair = (_answer(common + a), _answer(common + b))
    if as_json:
        click.echo(json.dumps([_side_dict(*side) for side in pair], indent=2))
    else:
        from kvplan.offline.cli.render_diff import render_diff
        from kvplan.offline.cli.terminal import make_console

        render_diff(make_console(), *pair, _headers(pair, a, b))
    for given, plan in pair:
        if isinstance(plan, kvplan.NotEnoughMemory):
            say_on_stderr(f"kvplan: {does_not_fit(given.label, plan)}")
    fits = all(isinstance(plan, kvplan.Plan) for _, plan in pair)
    return FITS if fits else DOES_NOT_FIT


def _headers(
    pair: Sequence[tuple[PlannerInput, Any]], a: Sequence[str], b: Sequence[str]
) -> tuple[str, str]:
    """What the columns are called; with the options of each side where the models are the same."""
    labels = pair[0][0].label, pair[1][0].label
    if labels[0] != labels[1]:
        return labels
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    common = min(len(a), len(b)) if common is None else common
    if any(side[common:] and not side[common].startswith("-") for side in (a, b)):
        common -= 1  # the option whose values differ
    own_a, own_b = (shlex.join(side[common:]) for side in (a, b))
    return f"{labels[0]}\n{own_a}".rstrip(), f"{labels[1]}\n{own_b}".rstrip()


def _split(texts: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The arguments of A, those of B, and those of both."""
    if len(texts) < 2:
        raise BadInput("give two sides to compare, e.g. kvplan diff A B --memory 60GiB")
    if len(texts) > 2 and not texts[2].startswith("-"):
        raise BadInput(
            f"give two sides to compare, each in quotes, then options for both: {texts[2]!r} after "
            f"{texts[1]!r} is neither; e.g. kvplan diff A B --memory 60GiB"
        )
    try:
        a, b = shlex.split(texts[0]), shlex.split(texts[1])
    except ValueError as error:
        raise BadInput(f"a side is not a line of arguments: {error}") from None
    if not a or not b:
        raise BadInput("a side is empty; give a model or a recorded request, with options")
    a, b = _with_request(a), _with_request(b)
    if b[0].startswith("-") and b[0] != "--request":
        b = a + b
    return a, b, list(texts[2:])


def _with_request(side: list[str]) -> list[str]:
    """A recorded request needs no ``--request`` here."""
    if side[0].endswith(".json"):
        try:
            with open(side[0], "rb") as file:
                is_request = b'"kvplan_request"' in file.read(4096)
        except OSError:
            return side
        if is_request:
            return ["--request", *side]
    return side


def _answer(args: list[str]) -> tuple[PlannerInput, kvplan.Plan | kvplan.NotEnoughMemory]:
    from kvplan.offline.cli.plan import command as plan_command

    with plan_command.make_context("kvplan plan", list(args)) as ctx:
        question = read_question(ctx.params)
        given = question.planner_input()
        try:
            return given, given.plan()
        except kvplan.NotEnoughMemory as error:
            return given, error


def _side_dict(given: PlannerInput, plan: Any) -> dict[str, Any]:
    if isinstance(plan, kvplan.NotEnoughMemory):
        return {"model": given.label, "fits": False, "message": str(plan).strip()}
    return {"model": given.label, "fits": True, "groups": len(plan.groups), **plan_numbers(plan)}
