"""A plan as plain data for ``--json``."""

from __future__ import annotations

import math
from typing import Any

import kvplan
from kvplan.offline.cli.fixed_part import fixed_from_tokens
from kvplan.offline.cli.gpu_budget import budget_dict
from kvplan.offline.cli.hit_unit import hit_unit
from kvplan.offline.cli.knobs import Knob
from kvplan.offline.cli.placement_file import placement_dict
from kvplan.offline.cli.question import PlannerInput
from kvplan.offline.cli.render_plan import own_warnings

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
#: What is known of a plan without its memory.
WITHOUT_MEMORY = frozenset(
    (
        "groups",
        "requested_max_model_len",
        "bytes_per_block",
        "request_blocks",
        "request_bytes",
        "fixed_bytes_per_request",
        "fixed_from_tokens",
        "hit_tokens",
        "shortest_hit_prompt",
        "bytes_per_token",
        "next_token_bytes",
        "encoder_tokens_per_request",
        "limiting_group",
    )
)
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


def _knob_dict(knob: Knob) -> dict[str, Any]:
    return {
        "option": knob.option,
        "max_model_len": knob.max_model_len,
        "max_concurrency": knob.max_concurrency,
        "gain": knob.gain,
        "note": knob.note,
    }
