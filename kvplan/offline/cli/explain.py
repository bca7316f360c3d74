"""``kvplan explain``: one request's bill, group by group, in plain words."""

from __future__ import annotations

from typing import Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, counted, does_not_fit
from kvplan.offline.cli.knobs import PLENTY, plan_with_plenty, try_plan
from kvplan.offline.cli.plan_answer import SIZED, plan_numbers
from kvplan.offline.cli.plan_facts import (
    GroupRow,
    encoder_lines,
    fixed_words,
    group_rows,
    held_bytes,
    hit_unit,
    hit_words,
    is_sliced,
    spec_fixed_from,
)
from kvplan.offline.cli.question import PlannerInput, Question
from kvplan.offline.cli.sizes import floor_hundredths, format_size
from kvplan.offline.cli.terminal import make_console, print_json
from kvplan.specs import iter_layer_specs

EPILOG = """\b
Examples:
  kvplan explain gemma-3-27b
  kvplan explain gemma-3-27b --memory 30GiB --max-model-len 64K
  kvplan explain --request recorded.json

Exit codes: 0 it fits (or no --memory was given), 1 it does not fit, 2 the input is wrong.
"""

LENGTHS = (1 << 10, 1 << 13, 1 << 15, 1 << 17, 1 << 20)


@click.command("explain", epilog=EPILOG)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print the bill as JSON.")
def command(as_json: bool, **values: Any) -> int:
    """Explain what one request of MODEL holds, and why. Without --memory: only that."""
    question = read_question(values, needs_memory=False)
    knows_memory = question.has_memory
    if not knows_memory:
        if values["max_model_len"] == "auto":
            raise BadInput("--max-model-len auto fits the context to --memory; give that, too")
        question = question.with_memory((PLENTY,))
    given = question.planner_input()
    # A length that is fitted is part of the plan with the real memory only.
    plan = given.plan_or_refuse() if given.config.auto_fit else plan_with_plenty(question)
    if plan is None:
        given.plan_or_refuse()  # raises the reason
        raise BadInput(f"{given.label} cannot be planned")
    actual = try_plan(question) if knows_memory else None
    fits = actual is not None or not knows_memory
    by_length = _by_length(question, plan.max_model_len, actual is not None)
    if as_json:
        answer = bill_dict(given, plan, actual) | {"fits": fits, "by_length": by_length}
        print_json(answer)
    else:
        console = make_console()
        for line in explain_lines(given, plan, actual, by_length):
            console.print(line, markup=False)
        if not fits:
            hint = "'kvplan plan' says what would help."
            console.print(does_not_fit(given.label, hint), markup=False)
    return FITS if fits else DOES_NOT_FIT


def _by_length(question: Question, longest: int, fits: bool) -> list[dict[str, Any]]:
    """What a request of some lengths holds, and how many run at once."""
    rows = []
    for length in [n for n in LENGTHS if n < longest] + [longest]:
        shorter = question.with_length(length)
        plan: kvplan.Plan | None = plan_with_plenty(shorter)
        if plan is None:
            continue
        real = try_plan(shorter) if fits else None
        rows.append(
            {
                "length": length,
                "request_bytes": plan.request_bytes,
                "max_concurrency": real.max_concurrency if real else None,
                "usable_concurrency": real.usable_concurrency if real else None,
                "steady_concurrency": real.steady_concurrency if real else None,
            }
        )
    return rows


def explain_lines(
    given: PlannerInput,
    plan: kvplan.Plan,
    actual: kvplan.Plan | None,
    by_length: list[dict[str, Any]],
) -> list[str]:
    """The bill, line by line.

    Args:
        given: What was asked.
        plan: The plan with plenty of memory.
        actual: The plan with the memory given; None if none was, or it is too little.
        by_length: What requests of some lengths hold.
    """
    if not plan.groups:
        return [f"{given.label} has no layer with a KV cache."]
    lines = [
        f"One request of {plan.max_model_len:,} tokens of {given.label} holds "
        f"{plan.request_blocks:,} blocks of {format_size(plan.bytes_per_block)}, "
        f"{format_size(plan.request_bytes)} on each GPU"
        + (" (of the stage that holds the most)." if _stages(plan) > 1 else "."),
        f"Its layers are in {counted(len(plan.groups), 'group')}. A block belongs to one group at "
        + (
            "a time, which cuts it into slices of its own; what a slice holds beyond its layers' "
            "pages is padding. Other requests use the slices that this one leaves."
            if is_sliced(plan)
            else "a time and is as large as the widest group needs; in a smaller group the rest of "
            "a block is padding."
        ),
        "",
    ]
    for row in group_rows(plan, given.draft_layers):
        lines += [_group_sentence(plan, row), ""]
    lines.append(_total(plan))
    lines.append(f"Prefix hits: {hit_words(plan)}.")
    if plan.next_token_bytes:
        lines.append(f"One token more would take {format_size(plan.next_token_bytes)} more.")
    if actual is not None:
        lines.append(_pool(actual))
        lines += [f"{text}." for text in encoder_lines(actual)]
    lines += ["", *_length_table(by_length)]
    return lines


def _stages(plan: kvplan.Plan) -> int:
    return len({worker.request_bytes for worker in plan.workers})


def _group_sentence(plan: kvplan.Plan, row: GroupRow) -> str:
    whole = row.held_bytes
    held = held_bytes(plan)
    share = whole / held if held else 0
    groups = f"Group {row.label}" if row.count == 1 else f"Groups {row.label}, each"
    layers = counted(row.layers, "layer")
    each = " each" if row.count > 1 else ""
    thing = "slice" if row.slices > 1 else "block"
    text = (
        f"{groups} with {layers}{row.which} of {row.kind}: {counted(row.pages, thing)}{each} of "
        f"{row.block_size:,} tokens, {format_size(whole)} ({share:.1%}). {_why(plan, row)}"
    )
    if row.slices > 1:
        text += f" A block holds {row.slices:,} slices of {format_size(row.slice_bytes)}."
    if row.padding_bytes:
        part = row.padding_bytes / row.slice_bytes
        text += f" Of each {thing} {format_size(row.padding_bytes)} ({part:.1%}) hold nothing."
    return text


def _why(plan: kvplan.Plan, row: GroupRow) -> str:
    """Why a request holds so many blocks of this group."""
    if row.tokens_per_page is not None:
        thing = "slice" if row.slices > 1 else "block"
        return f"One more {thing} every {row.tokens_per_page:,} tokens."
    flight = f"the {plan.config.max_in_flight_tokens:,} tokens in flight"
    spec: Any = next(iter(iter_layer_specs(plan.kv_cache_groups[row.first].kv_cache_spec)))
    name = type(spec).__name__
    start = spec_fixed_from(spec, plan.config)
    if start is None or start > plan.max_model_len:
        until = "" if start is None else f"; it holds more up to {start:,} tokens"
        what = "chunk" if name == "ChunkedLocalAttentionSpec" else "window"
        return f"The request is shorter than its {what} and {flight}, so all of it is kept{until}."
    match name:
        case "SlidingWindowSpec" | "SlidingWindowMLASpec":
            kept = spec.sliding_window - 1 + spec.extra_retained_tokens
            return (
                f"It keeps {kept:,} tokens of the window and {flight}, plus one block for where "
                "they begin; longer requests hold no more."
            )
        case "ChunkedLocalAttentionSpec":
            return f"It keeps one chunk and {flight}; longer requests hold no more."
        case "MambaSpec":
            return "A state has the same size at any length."
        case "CrossAttentionSpec":
            return (
                f"vLLM's formula charges the {plan.config.max_num_encoder_input_tokens:,} encoder "
                "tokens of a whole step; a running server holds those of the request's own input."
            )
        case "CircularBufferSpec":
            return "A ring of one block has the same size at any length."
    return "It holds the same at any length."


def _total(plan: kvplan.Plan) -> str:
    parts = []
    if plan.fixed_bytes_per_request:
        parts.append(f"{format_size(plan.fixed_bytes_per_request)} {fixed_words(plan)}")
    if plan.bytes_per_token:
        parts.append(f"{format_size(plan.bytes_per_token)} for each token")
    padding = sum(group.padding_bytes * group.pages_per_request for group in plan.groups)
    text = f"Together: {' and '.join(parts)}."
    if padding:
        text += (
            f" {format_size(padding)} of it is padding ({padding / held_bytes(plan):.1%} of the "
            "request)."
        )
    return text


def _pool(actual: kvplan.Plan) -> str:
    return (
        f"The memory holds {actual.num_blocks:,} blocks, one of them the null block: "
        f"{actual.max_concurrency:,.2f} such requests at once if each is charged all tokens in "
        f"flight (vLLM's figure), {floor_hundredths(actual.usable_concurrency)} without the "
        f"null block, {floor_hundredths(actual.steady_concurrency)} if tokens in flight are "
        f"counted once per engine. Block ids up to {actual.max_safe_block_id_bytes:,} lie below "
        f"2**31 bytes, those up to {actual.max_safe_block_id_elements:,} below 2**31 elements: as "
        "far as kernels come that count in 32 bits."
    )


def _length_table(rows: list[dict[str, Any]]) -> list[str]:
    columns = [("tokens", 10), ("one request", 11)]
    if any(row["max_concurrency"] is not None for row in rows):
        columns += [("at once", 9), ("usable", 9), ("steady", 9)]
    lines = ["  ".join(f"{name:>{width}}" for name, width in columns)]
    for row in rows:
        cells = [f"{row['length']:,}", format_size(row["request_bytes"])]
        vllm, usable = row["max_concurrency"], row["usable_concurrency"]
        cells += ["-" if vllm is None else f"{vllm:,.2f}"]
        for held in (usable, row["steady_concurrency"]):
            cells += ["-" if held is None else floor_hundredths(held)]
        shown = zip(cells, columns, strict=False)
        lines.append("  ".join(f"{cell:>{width}}" for cell, (_, width) in shown))
    return lines


def bill_dict(given: PlannerInput, plan: kvplan.Plan, actual: kvplan.Plan | None) -> dict[str, Any]:
    """The bill as plain data; the capacity only where there is memory for it."""
    bill = plan_numbers(plan)
    real = plan_numbers(actual) if actual is not None else {}
    unit = hit_unit(plan)
    return {
        "model": given.label,
        **{key: real.get(key) if key in SIZED else value for key, value in bill.items()},
        "groups": [
            {
                "groups": row.label,
                "kind": row.kind,
                "layers": row.layers,
                "block_size": row.block_size,
                "blocks": row.pages,
                "slices": row.slices,
                "bytes": row.held_bytes,
                "padding_bytes_per_block": row.padding_bytes,
                "hit_blocks": unit and row.count * unit.blocks[row.first],
                "why": _why(plan, row),
            }
            for row in group_rows(plan, given.draft_layers)
        ],
    }
