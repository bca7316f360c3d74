"""A plan as plain data for ``--json``, and as a table and lines for a reader."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.offline.cli.failures import counted
from kvplan.offline.cli.fit_search import requests_at_once
from kvplan.offline.cli.gpu_budget import budget_dict
from kvplan.offline.cli.knobs import Knob
from kvplan.offline.cli.plan_facts import (
    GroupRow,
    encoder_lines,
    fixed_from_tokens,
    fixed_words,
    group_rows,
    held_bytes,
    hit_unit,
    hit_words,
    is_sliced,
)
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.cli.sizes import floor_hundredths, format_size
from kvplan.offline.cli.terminal import Column, FittingTable, named_lines

if TYPE_CHECKING:
    from rich.console import Console

VERSION = 1

_NUMBERS = (
    "max_model_len",
    "requested_max_model_len",
    "num_blocks",
    "usable_blocks",
    "bytes_per_block",
    "request_blocks",
    "request_bytes",
    "fixed_bytes_per_request",
    "bytes_per_token",
    "next_token_bytes",
    "max_concurrency",
    "usable_concurrency",
    "capacity_tokens",
    "usable_capacity_tokens",
    "steady_concurrency",
    "steady_capacity_tokens",
    "encoder_tokens_per_request",
    "limiting_worker",
    "limiting_group",
    "max_safe_block_id_bytes",
    "max_safe_block_id_elements",
)
#: What the pool holds, which the memory decides.
SIZED = frozenset(
    (
        "num_blocks",
        "usable_blocks",
        "max_concurrency",
        "usable_concurrency",
        "capacity_tokens",
        "usable_capacity_tokens",
        "steady_concurrency",
        "steady_capacity_tokens",
    )
)
#: What else is not known of a plan without its memory.
OF_MEMORY = SIZED | {
    "max_model_len",
    "limiting_worker",
    "max_safe_block_id_bytes",
    "max_safe_block_id_elements",
}
_GROUP_FIELDS = (
    "kind",
    "block_size",
    "num_layers",
    "page_size_bytes",
    "content_bytes",
    "padding_bytes",
    "slices",
    "slice_bytes",
    "pages_per_request",
    "pool_blocks_per_request",
    "pages_fixed",
    "tokens_per_page",
    "max_safe_block_id_bytes",
    "max_safe_block_id_elements",
    "is_eagle_group",
)
_TENSOR_FIELDS = ("size", "layers", "layer_stride", "block_stride", "offset")
_WORKER_FIELDS = (
    "available_bytes",
    "effective_bytes",
    "bytes_per_block",
    "num_blocks",
    "num_layers",
    "request_bytes",
    "max_model_len",
)


def plan_numbers(plan: kvplan.Plan) -> dict[str, Any]:
    """The plan's scalar answers."""
    numbers = {name: getattr(plan, name) for name in _NUMBERS} if plan.groups else {}
    if plan.groups:
        numbers["fixed_from_tokens"] = fixed_from_tokens(plan)
        unit = hit_unit(plan)
        numbers["hit_tokens"] = unit and unit.tokens
        numbers["shortest_hit_prompt"] = unit and unit.shortest_prompt
    if not plan.groups:
        numbers = {name: getattr(plan, name) for name in ("max_model_len", "num_blocks")}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in numbers.items()
    }


def plan_dict(given: PlannerInput, plan: kvplan.Plan, knobs: list[Knob]) -> dict[str, Any]:
    """Everything about a plan that fits: sizes in bytes, lengths in tokens."""
    unit = hit_unit(plan)
    return {
        "kvplan_plan": VERSION,
        "fits": True,
        "model": given.label,
        "facts": given.facts,
        "budget": budget_dict(given.budgets),
        "replicas": given.replicas,
        "config": plan.config.to_dict(),
        **plan_numbers(plan),
        "groups": [
            {field: getattr(group, field) for field in _GROUP_FIELDS}
            | {"hit_blocks": unit and unit.blocks[index], "layer_names": list(group.layer_names)}
            for index, group in enumerate(plan.groups)
        ],
        "workers": [
            {field: getattr(worker, field) for field in _WORKER_FIELDS} for worker in plan.workers
        ],
        "knobs": [_knob_dict(knob) for knob in knobs],
        "warnings": [*own_warnings(given, plan), *plan.warnings],
        "placement": placement_dict(plan, given.kv_cache_specs),
    }


def failure_dict(
    given: PlannerInput, error: kvplan.NotEnoughMemory, knobs: list[str]
) -> dict[str, Any]:
    """Everything about a plan that does not fit."""
    return {
        "kvplan_plan": VERSION,
        "fits": False,
        "model": given.label,
        "facts": given.facts,
        "budget": budget_dict(given.budgets),
        "replicas": given.replicas,
        "config": given.config.to_dict(),
        "error": {
            "message": str(error).strip(),
            "worker": error.worker,
            "needed_bytes": error.needed_bytes,
            "available_bytes": error.available_bytes,
            "max_model_len": error.max_model_len,
            "estimated_max_len": error.estimated_max_len,
            "max_in_flight_tokens": error.max_in_flight_tokens,
        },
        "knobs": knobs,
    }


def placement_dict(plan: kvplan.Plan, kv_cache_specs: list[dict[str, Any]]) -> dict[str, Any]:
    """What each worker's memory holds, for ``kvplan check``; docs/cli.md has the format.

    Workers with the same placement are written once.
    """
    specs: list[dict[str, Any]] = []
    numbers: dict[Any, int] = {}

    def number(spec: Any) -> int:
        if spec not in numbers:
            numbers[spec] = len(specs)
            specs.append(spec.to_dict())
        return numbers[spec]

    def group_dict(group: Any) -> dict[str, Any]:
        spec = group.kv_cache_spec
        by_layer = getattr(spec, "kv_cache_specs", None)
        used = [spec] if by_layer is None else [by_layer[name] for name in group.layer_names]
        return {
            "layer_names": list(group.layer_names),
            "specs": [number(s) for s in used],
            "block_size": spec.block_size,
            "has_spec_per_layer": by_layer is not None,
            "is_eagle_group": group.is_eagle_group,
            **({"slices": group.slices} if group.slices != 1 else {}),
        }

    workers: list[dict[str, Any]] = []
    seen: dict[tuple[str, ...], int] = {}
    for index, (config, report) in enumerate(zip(plan.kv_cache_configs, plan.workers, strict=True)):
        layers = list(kv_cache_specs[index])
        # A stage's workers share their layers' dict, and all have the same number of blocks.
        first = seen.setdefault(tuple(layers), index)
        held: dict[str, Any] = {"same_as": first}
        if first == index:
            held = {
                "num_blocks": config.num_blocks,
                "layers": layers,
                "groups": [group_dict(group) for group in config.kv_cache_groups],
                "tensors": [
                    {name: getattr(tensor, name) for name in _TENSOR_FIELDS}
                    for tensor in config.kv_cache_tensors
                ],
            }
        workers.append({"available_memory": report.effective_bytes, **held})
    return {"layout": plan.config.kv_cache_layout, "specs": specs, "workers": workers}


def _knob_dict(knob: Knob) -> dict[str, Any]:
    return {
        "option": knob.option,
        "max_model_len": knob.max_model_len,
        "max_concurrency": knob.max_concurrency,
        "gain": knob.gain,
        "note": knob.note,
    }


def render_plan(
    console: Console, given: PlannerInput, plan: kvplan.Plan, knobs: list[Knob]
) -> None:
    """Print the plan."""
    console.print(_title(given, plan))
    if plan.groups:
        group_table(given, plan).print(console)
    helps = [("" if index else "Would help", knob.words) for index, knob in enumerate(knobs[:3])]
    console.print(named_lines([*plan_lines(given, plan), *helps]))
    for warning in own_warnings(given, plan):
        console.print(f"Warning: {warning}", style="yellow", markup=False)
    for warning in plan.warnings:
        console.print(f"vLLM will log: {warning}", style="yellow", markup=False)


def own_warnings(given: PlannerInput, plan: kvplan.Plan) -> list[str]:
    """What is wrong with the plan though vLLM does not say so when it plans."""
    if plan.config.num_gpu_blocks_override is None or not plan.groups:
        return []
    beyond = [w for w in plan.workers if w.effective_bytes > w.available_bytes]
    if not beyond:
        return []
    worst = max(beyond, key=lambda worker: worker.effective_bytes - worker.available_bytes)
    return [
        f"num_gpu_blocks_override={plan.config.num_gpu_blocks_override} takes "
        f"{format_size(worst.effective_bytes)} of a GPU, more than the "
        f"{format_size(worst.available_bytes)} that are there: vLLM plans so and then runs out of "
        "memory"
    ]


def group_table(given: PlannerInput, plan: kvplan.Plan) -> FittingTable:
    """One row per group, or per run of groups alike."""
    sliced = is_sliced(plan)
    table = FittingTable(
        [
            Column("group"),
            Column("layers"),
            Column("kind", words=True),
            Column("block"),
            *([Column("slices")] if sliced else []),
            Column("page"),
            Column("padding"),
            Column("blocks/request"),
            Column("share"),
        ]
    )
    held = held_bytes(plan)
    for row in group_rows(plan, given.draft_layers):
        padding = row.padding_bytes / row.slice_bytes if row.slice_bytes else 0
        table.add_row(
            row.label,
            f"{row.count} x {row.layers}" if row.count > 1 else str(row.layers),
            row.kind + row.which,
            f"{row.block_size:,}",
            *([f"{row.slices:,}"] if sliced else []),
            format_size(row.page_size_bytes),
            f"{padding:.1%}" if row.padding_bytes else "-",
            _blocks(row),
            f"{row.held_bytes / held:.1%}" if held else "-",
        )
    return table


def _blocks(row: GroupRow) -> str:
    each = f"{row.pages:,}"
    return f"{row.count} x {each}" if row.count > 1 else each


def _title(given: PlannerInput, plan: kvplan.Plan) -> str:
    from rich.markup import escape

    config = plan.config
    parallel = ", ".join(
        f"{name} {size}"
        for name, size in (
            ("TP", config.tensor_parallel_size),
            ("PP", config.pipeline_parallel_size),
            ("DCP", config.decode_context_parallel_size),
            ("DP", given.replicas),
        )
        if size > 1
    )
    facts = [f"{name} {value}" for name, value in given.facts.items() if name != "request"]
    facts.append(f"layout {config.kv_cache_layout}")
    if config.grouping != "vllm":
        facts.append(f"grouping {config.grouping}")
    title = f"[bold]{escape(given.label)}[/bold]"
    if parallel:
        title += f", {parallel}"
    memory = sorted(set(given.available_memory))
    if config.num_gpu_blocks_override is None and memory:
        sizes = " to ".join(format_size(m) for m in dict.fromkeys((memory[0], memory[-1])))
        title += f", {sizes} for the KV cache of each GPU"
    return title + "\n" + escape("; ".join(facts))


def plan_lines(given: PlannerInput, plan: kvplan.Plan) -> list[tuple[str, str]]:
    """What follows from the plan, as (name, sentence) pairs."""
    if not plan.groups:
        return [("KV cache", "this model has no layer with a KV cache")]
    length = plan.max_model_len
    lines = [
        ("Blocks", _blocks_of_pool(plan)),
        *_grouping(plan),
        ("Context", _context(plan)),
        (
            "Tokens",
            f"{plan.capacity_tokens:,} by vLLM's figure; {plan.usable_capacity_tokens:,} usable, "
            "since the null block holds none",
        ),
        (
            "Requests",
            f"{plan.max_concurrency:,.2f} of {length:,} tokens at once (vLLM's figure), "
            f"{requests_at_once(plan):,} of them whole",
        ),
        (
            "Steady",
            f"{floor_hundredths(plan.steady_concurrency)} requests, "
            f"{plan.steady_capacity_tokens:,} tokens: "
            f"the {plan.config.max_in_flight_tokens:,} tokens in flight counted once per engine, "
            "not once per request",
        ),
        *_replicas(given, plan),
        *(("Encoder", text) for text in encoder_lines(plan)),
        (
            "One request",
            bill_words(plan),
        ),
        ("Prefix hits", hit_words(plan)),
        ("Limited by", _limit(given, plan)),
    ]
    return lines


def _replicas(given: PlannerInput, plan: kvplan.Plan) -> list[tuple[str, str]]:
    """What engines side by side hold together."""
    number = given.replicas
    if number == 1:
        return []
    return [
        (
            "Replicas",
            f"{number} engines with such a cache each; together "
            f"{requests_at_once(plan) * number:,} whole requests at once (vLLM's figure), "
            f"{requests_at_once(plan, steady=True) * number:,} steadily",
        )
    ]


def _grouping(plan: kvplan.Plan) -> list[tuple[str, str]]:
    """What compact or sliced grouping came to, beside vLLM's own; why, if it is vLLM's own."""
    mark = f"{plan.config.grouping.capitalize()} grouping: "
    found = [text for _, text in plan.notices if text.startswith(mark)]
    return [("Grouping", text.removeprefix(mark).rstrip(".")) for text in found]


def _blocks_of_pool(plan: kvplan.Plan) -> str:
    text = f"{plan.num_blocks:,} of {format_size(plan.bytes_per_block)}, one of them null"
    if is_sliced(plan):
        text += (
            "; a block belongs to one group at a time, which cuts it into its slices; one request "
            f"by itself takes {plan.request_blocks:,} of them"
        )
    return text


def bill_words(plan: kvplan.Plan) -> str:
    """What one request of the planned length holds: fixed, and per token."""
    parts = []
    if plan.fixed_bytes_per_request:
        parts.append(f"{format_size(plan.fixed_bytes_per_request)} {fixed_words(plan)}")
    if plan.bytes_per_token:
        parts.append(f"{format_size(plan.bytes_per_token)} per token")
    return f"{format_size(plan.request_bytes)} = {' + '.join(parts)}"


def _context(plan: kvplan.Plan) -> str:
    length, wanted = plan.max_model_len, plan.requested_max_model_len
    if length == wanted:
        return f"{length:,} tokens, all that was asked for"
    return f"{length:,} tokens fit, of {wanted:,} asked for"


def _limit(given: PlannerInput, plan: kvplan.Plan) -> str:
    held = held_bytes(plan)
    # Groups of a kind count together, however many vLLM makes of its layers.
    kinds: dict[str, list[GroupRow]] = {}
    for row in group_rows(plan, given.draft_layers):
        kinds.setdefault(row.kind, []).append(row)

    def bytes_of(rows: list[GroupRow]) -> int:
        return sum(row.held_bytes for row in rows)

    kind, rows = max(kinds.items(), key=lambda item: bytes_of(item[1]))
    labels = ", ".join(row.label for row in rows)
    number = sum(row.count for row in rows)
    share = bytes_of(rows) / held if held else 0
    text = f"{kind} (group{'s' if number > 1 else ''} {labels}), {share:.0%} of a request"
    override = plan.config.num_gpu_blocks_override
    if override is not None:
        return f"num_gpu_blocks_override={override}, not memory; most of a request is in {text}"
    if len({(w.num_blocks, w.bytes_per_block) for w in plan.workers}) > 1:
        worker = plan.workers[plan.limiting_worker]
        text += (
            f"; worker {plan.limiting_worker}, whose {format_size(worker.available_bytes)} hold "
            f"{counted(worker.num_blocks, 'block')}"
        )
    return text
