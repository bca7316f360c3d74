"""What is known of one start: the log's own figures, and those of a plan of its line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click

import kvplan
from kvplan.offline.budget.budget import Budget
from kvplan.offline.budget.gpus import Gpu, find_gpu
from kvplan.offline.cli.knobs import find_knobs, knobs_of_failure
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question
from kvplan.offline.serve_line import ServeLine, ServeLineError, deployment_values, written
from kvplan.offline.startup_log import (
    Finding,
    MemorySum,
    Phases,
    Rank,
    Start,
    findings_of,
    memory_sum,
    phases_of,
    reconstructed_line,
)

_GIB = 2**30
#: Half of the last printed digit of a size.
_ROUNDING_GIB = 0.005
#: What a log's figures hold, by the names of a budget's parts.
_PARTS = {
    "weights": ("weights", "LoRA adapters"),
    "weights and non-torch": ("weights", "LoRA adapters", "runner's buffers", "non-torch"),
    "non-torch": ("non-torch",),
    "peak activation": ("peak activation",),
    "CUDA graphs (estimated)": ("CUDA graphs",),
}


@dataclass(frozen=True)
class Prediction:
    """One part, in GiB.

    Attributes:
        part: Its name.
        logged: What the log says.
        predicted: What is predicted.
        error: How far off that may be.
    """

    part: str
    logged: float
    predicted: float
    error: float

    @property
    def agrees(self) -> bool:
        """Whether the logged figure is within the error."""
        return abs(self.logged - self.predicted) <= self.error + _ROUNDING_GIB


def predictions(rank: Rank, found: MemorySum, budgets: Sequence[Budget]) -> list[Prediction]:
    """The parts that both know, and the KV cache.

    Args:
        rank: The rank's figures.
        found: Its sum.
        budgets: What is predicted for each pipeline stage.
    """
    budget = budgets[min(_stage(rank.name), len(budgets) - 1)]
    by_name = {part.name: part for part in budget.parts}
    logged = dict(found.parts)
    if rank.weights is not None:
        logged.setdefault("weights", rank.weights)
    rows = []
    for name, of in _PARTS.items():
        parts = [by_name[part] for part in of if part in by_name]
        if name in logged and parts:
            size, error = sum(p.bytes for p in parts), sum(p.error for p in parts)
            rows.append(Prediction(name, logged[name], size / _GIB, error / _GIB))
    if rank.kv_cache is not None and not rank.kv_cache_given:
        size, error = budget.kv_cache_bytes, budget.error
        rows.append(Prediction("KV cache", rank.kv_cache, size / _GIB, error / _GIB))
    return rows


def _stage(name: str) -> int:
    match = re.search(r"(?:^|_)PP(\d+)", name)
    return int(match[1]) if match else 0


VERSION = 1
#: vLLM before this version is not predicted.
_FIRST_PREDICTED = (0, 19)
_NO_MODEL = "the log names no model; --model NAME tells it"
#: The figure of vLLM and the steady one differ when they do by more than this part.
_IN_FLIGHT = 0.05


@dataclass(frozen=True)
class PlannedCapacity:
    """What a plan of the log's line and memory holds.

    Attributes:
        least: Tokens with the least memory that the printed figure can mean.
        most: Tokens with the most.
        steady: Tokens with tokens in flight counted once per engine.
        logged: Tokens that the log says, or None.
    """

    least: int
    most: int
    steady: int
    logged: int | None

    @property
    def agrees(self) -> bool | None:
        """Whether the log's tokens are what the plan says; None where it says none."""
        return None if self.logged is None else self.least <= self.logged <= self.most


class LogReport:
    """One start with everything that follows from it.

    Attributes:
        name: The log's name.
        start: What the log says.
        num_starts: Starts in the log.
    """

    def __init__(self, name: str, start: Start, num_starts: int, options: dict[str, Any]) -> None:
        self.name = name
        self.start = start
        self.num_starts = num_starts
        self._options = options

    @cached_property
    def line(self) -> ServeLine:
        """The line that would make this start again."""
        return reconstructed_line(self.start)

    @cached_property
    def sums(self) -> list[tuple[Rank, MemorySum]]:
        """The memory of every rank that says anything of it."""
        gpu = self.gpu
        logged = None if self.start.refusal is None else self.start.refusal.numbers.get("total_gib")
        utilization = self.line.values().get("gpu_memory_utilization")
        found = []
        for rank in self.start.workers:
            filled = dataclasses.replace(
                rank,
                total=rank.total or logged or (gpu.memory_bytes / _GIB if gpu else None),
                utilization=rank.utilization or (utilization and float(utilization)),
            )
            found.append((filled, memory_sum(filled)))
        return found

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU: the one that was given, or the one whose name is in the log."""
        if self._options["gpu"] is not None:
            given: Gpu = self._options["gpu"]
            return given
        try:
            return find_gpu(self.start.gpu_name) if self.start.gpu_name else None
        except ValueError:
            return None

    @cached_property
    def phases(self) -> list[Phases]:
        """Where the time of every rank went."""
        return phases_of(self.start)

    @cached_property
    def telling_phases(self) -> dict[str, float]:
        """The phases of the rank that tells the most of them; others may only wait for it."""
        told = [phases.seconds for phases in self.phases]
        return max(told, key=lambda seconds: (len(seconds), sum(seconds.values())), default={})

    @cached_property
    def findings(self) -> list[Finding]:
        """Known defects and waste, with what the plan adds."""
        found = findings_of(self.start)
        planned = self.planned
        if planned is not None and planned.steady > planned.most * (1 + _IN_FLIGHT):
            found.append(
                Finding(
                    "in-flight tokens",
                    f"The logged capacity charges every request all tokens in flight; with them "
                    f"counted once per engine the same memory holds {planned.steady:,} tokens, not "
                    f"{planned.logged or planned.most:,}. The logged figure changes with "
                    "--max-num-batched-tokens and --async-scheduling though the memory does not",
                )
            )
        return found

    @cached_property
    def question(self) -> Question | str:
        """What to plan, or why nothing can be planned."""
        from kvplan.offline.cli.deployment_options import read_question
        from kvplan.offline.cli.plan import command as plan_command

        memory = self._memory()
        if self._line_here().model is None:
            return _NO_MODEL
        if self.start.device != "GPU":
            return f"plans are those of CUDA GPUs, and this start is on a {self.start.device}"
        if memory is None and self.start.refusal is None:
            return "the log does not say the memory for the KV cache"
        try:
            values = {**deployment_values(self._line_here()).values, "memory": "1GiB"}
            if self.gpu is not None and self.gpu.capability is not None:
                values["device_capability"] = ".".join(map(str, self.gpu.capability))
            with plan_command.make_context("plan", [], default_map=values) as ctx:
                question = read_question(ctx.params)
                question.planner_input()
        except (ServeLineError, ValueError, NotImplementedError) as error:
            return str(error)
        return question if memory is None else question.with_memory(memory)

    def planner_input(self) -> PlannerInput:
        """All that the planner takes, with the memory that the log says. Raises ValueError."""
        if isinstance(self.question, str):
            raise ValueError(f"{self.name}: cannot be planned: {self.question}")
        return self.question.planner_input()

    def _memory(self, more_gib: float = 0.0) -> list[int] | None:
        """Bytes of each rank's KV cache: all alike where the log says one figure."""
        sizes = [rank.kv_cache for rank in self.start.workers if rank.kv_cache is not None]
        refusal = self.start.refusal
        if not sizes and refusal is not None and "available_gib" in refusal.numbers:
            sizes = [refusal.numbers["available_gib"]]
        if not sizes or min(sizes) + more_gib <= 0:
            return None
        workers = len(self.start.workers)
        alike = len(sizes) < max(workers, 1) or len(set(sizes)) == 1
        chosen = [min(sizes)] if alike else sizes
        return [int((size + more_gib) * _GIB) for size in chosen]

    def _line_here(self) -> ServeLine:
        """The line with the model that stands for the log's."""
        model = self._options["model"]
        return self.line if model is None else dataclasses.replace(self.line, model=model)

    @cached_property
    def predictions(self) -> list[list[Prediction]] | str:
        """What the memory of each rank is predicted to be, or why it is not."""
        from kvplan.offline.cli.deployment_options import read_question
        from kvplan.offline.cli.plan import command as plan_command

        gpu, version = self._gpu_of_log(), _version(self.start.version)
        if self._line_here().model is None:
            return _NO_MODEL
        if gpu is None:
            return "the log does not say the GPU's memory; --gpu NAME tells it"
        if version is not None and version < _FIRST_PREDICTED:
            return "memory is predicted for vLLM 0.19 and later"
        try:
            values = dict(deployment_values(self._line_here()).values)
            values.pop("memory", None)
            values |= {"gpu": gpu} | ({} if version is None else {"vllm_version": version})
            with plan_command.make_context("plan", [], default_map=values) as ctx:
                question = read_question(ctx.params)
            assert isinstance(question, ModelQuestion)
            assert question.estimate is not None
            budgets = question.estimate.budgets(question.model, question.options)
        except (kvplan.PlanningError, ValueError, click.ClickException) as error:
            return str(error)
        return [predictions(rank, found, budgets) for rank, found in self.sums]

    def _gpu_of_log(self) -> Gpu | None:
        """The GPU with the memory that the log says, whatever its name says."""
        total = next((rank.total for rank, _ in self.sums if rank.total is not None), None)
        if total is None:
            return self.gpu
        known = self.gpu or Gpu("", 0)
        return dataclasses.replace(known, memory_bytes=int(total * _GIB))

    @cached_property
    def plan(self) -> kvplan.Plan | None:
        """The plan with the memory that the log says, or None."""
        return self._plan(0.0)

    def _plan(self, more_gib: float) -> kvplan.Plan | None:
        memory = self._memory(more_gib)
        if isinstance(self.question, str) or memory is None:
            return None
        try:
            return self.question.with_memory(memory).planner_input().plan()
        except (ValueError, NotImplementedError, AssertionError):
            return None

    @cached_property
    def planned(self) -> PlannedCapacity | None:
        """What the plan holds, beside what the log says."""
        plans = [self._plan(more) for more in (-_ROUNDING_GIB, 0.0, _ROUNDING_GIB)]
        least, middle, most = plans
        if least is None or middle is None or most is None or not middle.groups:
            return None
        return PlannedCapacity(
            least.capacity_tokens,
            most.capacity_tokens,
            middle.steady_capacity_tokens,
            self.start.capacity_tokens,
        )

    @cached_property
    def limits(self) -> list[str]:
        """What takes the memory, and what a request holds most of."""
        lines = []
        sums = [(rank, found) for rank, found in self.sums if found.requested and found.parts]
        if sums:
            rank, found = min(sums, key=lambda pair: pair[1].parts.get("KV cache", 0.0))
            assert found.requested is not None
            shares = {name: size / found.requested for name, size in found.parts.items()}
            others = {name: share for name, share in shares.items() if name != "KV cache"}
            if others and "KV cache" in shares:
                most = max(others, key=others.__getitem__)
                where = f" on {rank.name}" if rank.name else ""
                lines.append(
                    f"{others[most]:.0%} of the requested memory{where} are {most}, "
                    f"{shares['KV cache']:.0%} the KV cache"
                )
        plan = self.plan
        if plan is not None and len(plan.groups) > 1:
            group = plan.groups[plan.limiting_group]
            share = group.pool_blocks_per_request / max(1, plan.request_blocks)
            lines.append(
                f"group {plan.limiting_group} of {len(plan.groups)} ({group.kind}, "
                f"{group.num_layers} layers) holds {share:.0%} of a request of "
                f"{plan.max_model_len:,} tokens"
            )
        return lines

    @cached_property
    def tokens_per_gib(self) -> float | None:
        """Tokens that a further GiB of each GPU holds."""
        sizes = [rank.kv_cache for rank in self.start.workers if rank.kv_cache]
        if not sizes or self.start.capacity_tokens is None:
            return None
        return self.start.capacity_tokens / min(sizes)

    @cached_property
    def helps(self) -> list[str]:
        """What would make it fit, or hold more, each tried by planning."""
        if isinstance(self.question, str):
            return []
        plan = self.plan
        if plan is not None:
            return [knob.words for knob in find_knobs(self.question, plan)]
        if self._memory() is None:
            return []
        try:
            self.question.planner_input().plan()
        except kvplan.NotEnoughMemory as error:
            return knobs_of_failure(self.question, error)
        except (ValueError, NotImplementedError, AssertionError):
            pass
        return []

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data: sizes in GiB as they are printed, times in seconds."""
        start, planned = self.start, self.planned
        return {
            "kvplan_log": VERSION,
            "file": self.name,
            "starts": self.num_starts,
            "lines": [start.first_line, start.last_line],
            "vllm": start.version,
            "ready": start.is_ready,
            "last_step": start.last_step,
            "refusal": None if start.refusal is None else dataclasses.asdict(start.refusal),
            "line": written(self.line, {}) if self.line.model else None,
            "gpu": start.gpu_name,
            "capacity_tokens": start.capacity_tokens,
            "max_model_len": start.max_model_len,
            "max_concurrency": start.max_concurrency,
            "ranks": [self._rank_dict(i) for i in range(len(self.sums))],
            "not_predicted": self.predictions if isinstance(self.predictions, str) else None,
            "plan": None if planned is None else _planned_dict(planned),
            "not_planned": self.question if isinstance(self.question, str) else None,
            "findings": [self._finding_dict(finding) for finding in self.findings],
            "limits": self.limits,
            "helps": self.helps,
        }

    def _rank_dict(self, index: int) -> dict[str, Any]:
        rank, found = self.sums[index]
        phases = self.phases[index]
        predicted = [] if isinstance(self.predictions, str) else self.predictions[index]
        return {
            "name": rank.name,
            "total_gib": rank.total,
            "free_gib": rank.free,
            "requested_gib": found.requested,
            "parts": found.parts,
            "missing": list(found.missing),
            "rest_gib": found.rest,
            "closes": found.closes,
            "graphs_gib": rank.graphs,
            "suggested_bytes": rank.suggested_bytes,
            "predictions": [dataclasses.asdict(p) | {"agrees": p.agrees} for p in predicted],
            "seconds": phases.seconds,
            "total_seconds": phases.total,
        }

    def _finding_dict(self, finding: Finding) -> dict[str, Any]:
        return dataclasses.asdict(finding) | {"gain_tokens": self.gain_tokens(finding)}

    def gain_tokens(self, finding: Finding) -> int | None:
        """Tokens that a finding's memory would hold."""
        if finding.gain_gib is None or self.tokens_per_gib is None:
            return None
        return int(finding.gain_gib * self.tokens_per_gib)


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def _planned_dict(planned: PlannedCapacity) -> dict[str, Any]:
    return {
        "least_capacity_tokens": planned.least,
        "most_capacity_tokens": planned.most,
        "steady_capacity_tokens": planned.steady,
        "agrees": planned.agrees,
    }
