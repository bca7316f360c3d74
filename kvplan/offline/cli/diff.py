"""``kvplan diff``: two plans side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, does_not_fit, say_on_stderr
from kvplan.offline.cli.file_kinds import file_kind
from kvplan.offline.cli.knobs import plan_given_plenty
from kvplan.offline.cli.line_defaults import without_line
from kvplan.offline.cli.plan_json import WITHOUT_MEMORY, plan_numbers
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.serve_line import option_table, starts_server

EPILOG = """\b
Examples:
  kvplan diff gemma-3-27b "--kv-cache-dtype fp8" --memory 30GiB
  kvplan diff "llama-3.1-70b --tp 4" "llama-3.1-70b --tp 8" --memory 40GiB
  kvplan diff recorded-before.json recorded-after.json
  kvplan diff "vllm serve gemma-3-27b -tp 2" "--kv-cache-dtype fp8" --memory 20GiB

\b
A side is what one would give to 'kvplan plan': a model with options, in quotes; a vllm serve
line; a recorded request; or, for B, only the options that differ from A. Options after B are for
both, where a side has not its own; --json is one of them, and prints both sides as JSON.

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
    names = side_names(a, b)
    if as_json:
        answers = [_side_dict(name, *side) for name, side in zip(names, pair, strict=True)]
        click.echo(json.dumps(dict(zip("ab", answers, strict=True)), indent=2))
    else:
        from kvplan.offline.cli.render_diff import render_diff
        from kvplan.offline.cli.terminal import make_console

        render_diff(make_console(), *pair, names)
    for name, (given, plan) in zip(names, pair, strict=True):
        if isinstance(plan, kvplan.NotEnoughMemory):
            whole = name if given.label in name else f"{given.label} {name}"
            say_on_stderr(f"kvplan: {does_not_fit(whole, plan)}")
    fits = all(isinstance(plan, kvplan.Plan) for _, plan in pair)
    return FITS if fits else DOES_NOT_FIT


def side_names(a: Sequence[str], b: Sequence[str]) -> tuple[str, str]:
    """What the sides are called: model or file, and the options that the other has not."""
    parts = _parts(a), _parts(b)
    sources = [[part for part in side if not part.startswith("-")] for side in parts]
    names = []
    for side, other, source in zip(parts, reversed(parts), sources, strict=True):
        own = [part for part in side if part.startswith("-") and part not in other]
        alike = sources[0] == sources[1] and own
        names.append(" ".join(own if alike else [*source, *own]))
    return names[0], names[1]


def _parts(side: Sequence[str]) -> list[str]:
    """The model or recorded request, and each option with its values."""
    parts: list[str] = []
    for text in side[1:] if side[0] == "--" else side:
        if text.startswith("-") or not parts or not _takes_value(parts[-1]):
            parts.append(text)
        else:
            parts[-1] = text if parts[-1] == "--request" else f"{parts[-1]} {shlex.quote(text)}"
    return parts


def _takes_value(part: str) -> bool:
    """Whether an option still lacks its value."""
    from kvplan.offline.cli.plan import command as plan_command

    for option in plan_command.params:
        if part in option.opts:
            return isinstance(option, click.Option) and not option.is_flag
    of_vllm = option_table().by_name.get(part)
    return of_vllm is not None and of_vllm.kind != "flag"


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
    a, b = _with_mark(a), _with_mark(b)
    if b[0].startswith("-") and b[0] not in ("--request", "--"):
        b = a + b
    return a, b, list(texts[2:])


def _with_mark(side: list[str]) -> list[str]:
    """A recorded request needs no ``--request`` here, and a line no ``--``."""
    if starts_server(side):
        return ["--", *side]
    return ["--request", *side] if file_kind(Path(side[0])) == "request" else side


def _answer(args: list[str]) -> tuple[PlannerInput, kvplan.Plan | kvplan.NotEnoughMemory]:
    from kvplan.offline.cli.plan import command as plan_command

    own, _, defaults = without_line(args)
    with plan_command.make_context("kvplan plan", own, default_map=defaults) as ctx:
        question = read_question(ctx.params)
        given = question.planner_input()
        try:
            return given, given.plan()
        except kvplan.NotEnoughMemory as error:
            return given, error


def _side_dict(name: str, given: PlannerInput, plan: Any) -> dict[str, Any]:
    side = {"name": name, "model": given.label, "fits": isinstance(plan, kvplan.Plan)}
    known = plan
    if isinstance(plan, kvplan.NotEnoughMemory):
        side["message"] = str(plan).strip()
        known = plan_given_plenty(given)
    numbers = {} if known is None else {"groups": len(known.groups), **plan_numbers(known)}
    if known is not plan:
        numbers = {key: value for key, value in numbers.items() if key in WITHOUT_MEMORY}
    return side | numbers
