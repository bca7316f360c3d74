"""``kvplan diff``: two plans side by side, with the change in a third column."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import kvplan
from kvplan.offline.cli.defaults import without_line
from kvplan.offline.cli.deployment_options import read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, does_not_fit, say_on_stderr
from kvplan.offline.cli.files import file_kind
from kvplan.offline.cli.knobs import plan_given_plenty
from kvplan.offline.cli.plan_answer import OF_MEMORY, plan_numbers
from kvplan.offline.cli.plan_facts import fixed_from_tokens, hit_unit
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.cli.sizes import floor_hundredths, format_size
from kvplan.offline.cli.terminal import Column, FittingTable, make_console, print_json
from kvplan.offline.serve_line import option_table, starts_server

if TYPE_CHECKING:
    from rich.console import Console

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
        print_json(dict(zip("ab", answers, strict=True)))
    else:
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
        numbers = {key: value for key, value in numbers.items() if key not in OF_MEMORY}
    return side | numbers


Side = tuple[PlannerInput, "kvplan.Plan | kvplan.NotEnoughMemory"]


class Row(NamedTuple):
    """One line of the comparison."""

    name: str
    value: Callable[[PlannerInput, kvplan.Plan], Any]
    write: Callable[[Any], str]
    #: Left out where both sides have this value.
    usual: Any = ""
    #: Whether a side that does not fit has it nevertheless.
    without_memory: bool = True


def _number(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _slices(plan: kvplan.Plan) -> str:
    slices = [group.slices for group in plan.groups]
    return ", ".join(map(str, slices)) if max(slices) > 1 else "-"


def _fixed_from(plan: kvplan.Plan) -> str:
    start = fixed_from_tokens(plan)
    return "-" if start == 1 else "?" if start is None else f"{start:,} tokens"


def _hit(plan: kvplan.Plan, name: str) -> int:
    unit = hit_unit(plan)
    return 0 if unit is None else getattr(unit, name)


ROWS = (
    Row("groups", lambda given, plan: len(plan.groups), _number),
    Row("layers", lambda given, plan: sum(g.num_layers for g in plan.groups), _number),
    Row("grouping", lambda given, plan: plan.config.grouping, str, usual="vllm"),
    Row("slices", lambda given, plan: _slices(plan), str, usual="-"),
    Row("block", lambda given, plan: plan.bytes_per_block, format_size),
    *(
        Row(name, value, write, without_memory=False)
        for name, value, write in (
            ("blocks", lambda given, plan: plan.num_blocks, _number),
            ("context", lambda given, plan: plan.max_model_len, _number),
            ("tokens (vLLM)", lambda given, plan: plan.capacity_tokens, _number),
            ("tokens (usable)", lambda given, plan: plan.usable_capacity_tokens, _number),
            ("tokens (steady)", lambda given, plan: plan.steady_capacity_tokens, _number),
            ("requests (vLLM)", lambda given, plan: plan.max_concurrency, _number),
            ("requests (usable)", lambda given, plan: plan.usable_concurrency, floor_hundredths),
            ("requests (steady)", lambda given, plan: plan.steady_concurrency, floor_hundredths),
        )
    ),
    Row("one request", lambda given, plan: plan.request_bytes, format_size),
    Row("fixed", lambda given, plan: plan.fixed_bytes_per_request, format_size),
    Row("fixed from", lambda given, plan: _fixed_from(plan), str, usual="-"),
    Row("per token", lambda given, plan: plan.bytes_per_token, format_size),
    Row("hit unit", lambda given, plan: _hit(plan, "tokens"), _number, usual=0),
    Row("shortest hit", lambda given, plan: _hit(plan, "shortest_prompt"), _number, usual=0),
    Row("in flight", lambda given, plan: plan.config.max_in_flight_tokens, _number),
    Row("layout", lambda given, plan: plan.config.kv_cache_layout, str),
    Row("TP", lambda given, plan: plan.config.tensor_parallel_size, _number),
    Row("PP", lambda given, plan: plan.config.pipeline_parallel_size, _number),
    Row("DCP", lambda given, plan: plan.config.decode_context_parallel_size, _number, usual=1),
    Row("memory", lambda given, plan: min(given.available_memory), format_size),
    Row("KV cache dtype", lambda given, plan: given.facts.get("KV cache dtype", "-"), str),
    Row("backends", lambda given, plan: given.facts.get("attention backends", "-"), str),
)


def render_diff(console: Console, a: Side, b: Side, headers: tuple[str, str]) -> None:
    """Print the two plans under their headers; what is equal is dimmed."""
    sides = (Column(header, words=True, right=True) for header in headers)
    table = FittingTable([Column("", words=True), *sides, Column("change")])
    known = [_known(side) for side in (a, b)]
    fits = ["yes" if plan is known[i] else "no" for i, (_, plan) in enumerate((a, b))]
    if "no" in fits:
        table.add_row("fits", *fits, change(*fits))
    for row in ROWS:
        values = [_value(row, side, plan) for side, plan in zip((a, b), known, strict=True)]
        if set(values) <= {row.usual, None}:
            continue
        texts = ["does not fit" if value is None else row.write(value) for value in values]
        table.add_row(
            row.name,
            *texts,
            change(*values),
            style="dim" if texts[0] == texts[1] else "",
        )
    table.print(console)


def _known(side: Side) -> kvplan.Plan | None:
    """The plan; of one that does not fit, the same with plenty of memory."""
    given, plan = side
    return plan if isinstance(plan, kvplan.Plan) else plan_given_plenty(given)


def _value(row: Row, side: Side, known: kvplan.Plan | None) -> Any:
    given, plan = side
    if known is None or not known.groups or not (row.without_memory or known is plan):
        return None
    return row.value(given, known)


def change(a: Any, b: Any) -> str:
    """How much more the second is than the first."""
    if isinstance(a, str) or isinstance(b, str):
        return "" if a == b else "differs"
    if a is None or b is None or a == b:
        return ""
    return f"{b / a - 1:+.1%}" if a else "new"
