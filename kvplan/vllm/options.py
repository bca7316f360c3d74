"""What a user asks of kvplan inside vLLM, by environment variables."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from kvplan import _core
from kvplan.vllm import report
from kvplan.vllm.detect import Vllm
from kvplan.vllm.sliced import gate


@dataclass(frozen=True)
class Options:
    """The switches of :mod:`kvplan.vllm`."""

    flow: bool
    block_pool: bool
    cache_manager: bool
    """On kvplan's block pool only."""
    verify: bool | None
    """None: where this vLLM's planner is written otherwise than those that kvplan knows."""
    record: str
    grouping: dict[str, Any]
    """Keywords of :class:`kvplan.PlanningConfig`; none for vLLM's own grouping."""


def read(vllm: Vllm) -> Options:
    """The options of this process; what cannot be used is said and left out."""
    flow = _flag("KVPLAN_VLLM_FLOW")
    block_pool = _flag("KVPLAN_BLOCK_POOL") is not False
    cache_manager = _flag("KVPLAN_CACHE_MANAGER") is not False
    manages = block_pool and cache_manager
    return Options(
        flow=flow is not False,
        block_pool=block_pool,
        cache_manager=cache_manager,
        verify=_flag("KVPLAN_VERIFY"),
        record=os.environ.get("KVPLAN_RECORD", ""),
        grouping=_read_grouping(vllm, flow is not False, manages),
    )


def _flag(name: str) -> bool | None:
    value = os.environ.get(name, "")
    return None if value == "" else value != "0"


def _read_grouping(vllm: Vllm, flow: bool, manages: bool) -> dict[str, Any]:
    grouping = os.environ.get("KVPLAN_GROUPING", "vllm") or "vllm"
    if grouping == "vllm":
        return {}
    reason = _ignored_grouping(grouping, vllm, flow, manages)
    if reason is not None:
        report.once(logging.WARNING, f"KVPLAN_GROUPING={grouping!r} is ignored: {reason}")
        return {}
    chosen: dict[str, Any] = {"grouping": grouping}
    most = os.environ.get("KVPLAN_MAX_GROUPS", "")
    if most and grouping == "compact":
        try:
            with_most = chosen | {"max_groups": int(most)}
            _core.PlanningConfig(max_model_len=1, **with_most)
        except ValueError:
            report.once(
                logging.WARNING, f"KVPLAN_MAX_GROUPS={most!r} is ignored: not a number of groups"
            )
        else:
            chosen = with_most
    return chosen


def _ignored_grouping(grouping: str, vllm: Vllm, flow: bool, manages: bool) -> str | None:
    """Why a grouping that was asked for cannot be used, if so."""
    if grouping not in ("compact", "sliced"):
        return "vLLM can run 'vllm', 'compact' and, as an experiment, 'sliced'"
    if not flow:
        return (
            "KVPLAN_VLLM_FLOW=0 leaves planning to vLLM, whose builder is not told which layers "
            "share a pipeline stage"
        )
    return _ignored_slices(vllm, manages) if grouping == "sliced" else None


def _ignored_slices(vllm: Vllm, manages: bool) -> str | None:
    reason = gate.version_reason(vllm.version)
    if reason is not None:
        return reason
    if not manages:
        return "slices are handed out by kvplan's KV cache manager, which was turned off"
    from kvplan.vllm import block_pool, cache_manager

    reason = block_pool.unsupported_reason(vllm) or cache_manager.unsupported_reason(vllm)
    return reason and f"kvplan's KV cache manager cannot run: {reason}"
