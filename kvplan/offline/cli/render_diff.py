"""Two plans in two columns, with the change in a third."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import kvplan
from kvplan.offline.cli.fixed_part import fixed_from_tokens
from kvplan.offline.cli.hit_unit import hit_unit
from kvplan.offline.cli.knobs import plan_given_plenty
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.cli.sizes import floor_hundredths, format_size
from kvplan.offline.cli.tables import Column, FittingTable

if TYPE_CHECKING:
    from rich.console import Console

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
