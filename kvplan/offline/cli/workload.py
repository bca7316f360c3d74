"""A plan for a load: each grouping, block size and retention is replayed, and the best is taken.

vLLM's own plan is one of them, so the choice is never below it on the load that it is made for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.offline.cli.plan_facts import hit_unit
from kvplan.offline.cli.question import PlannerInput, Question
from kvplan.offline.cli.replay import policy_of, replayable
from kvplan.offline.cli.terminal import Column, FittingTable
from kvplan.offline.replay.generate import LOADS, generate
from kvplan.offline.replay.run import Policy, Report, quantiles, run

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.offline.replay.trace import Trace

#: Tokens of a block that are tried beside the default.
BLOCK_SIZES = (16, 32, 64, 128)
#: Tokens of a hash that are tried in models with states.
MATCH_UNITS = (16, 64)
#: Points of the frontier that are tried, spread from few groups to many.
MOST_GROUPINGS = 6
#: A better plan is better by more than this.
EQUAL = 1e-3


def figures(report: Report) -> dict[str, Any]:
    """What a replay says of a plan beside others, as plain data for JSON; each engine's."""
    return {
        "hit_rate": report.hit_rate,
        "preemptions": report.preemptions,
        "requests": len(report.trace),
        "finished": report.count("finished"),
        "first_token_seconds": quantiles(report.first_token_seconds),
        "goodput": report.goodput,
    }


@dataclass(frozen=True)
class Workload:
    """The load of ``--workload``, to be replayed under one plan or another.

    Attributes:
        load: The requests of all engines.
        values: The command's parameters, with the scheduler's and the step's time.
    """

    load: Trace
    values: dict[str, Any]

    def policy(self, question: Question, given: PlannerInput, plan: kvplan.Plan) -> Policy:
        """The scheduler's settings for a plan."""
        return policy_of(question, given, plan, self.values)

    def replay(self, plan: kvplan.Plan, policy: Policy, engines: int) -> Report:
        """Replay what one of so many engines gets. Raises `kvplan.Unsupported`."""
        return run(plan, self.load.of_one_engine(engines), policy, max_samples=2)

    def to_dict(self, policy: Policy) -> dict[str, str]:
        """The load and the model of time, as plain data for JSON."""
        return {"trace": self.load.name, "step_time": policy.step_time.words}


@dataclass(frozen=True)
class Candidate:
    """A plan and what it does to the load.

    Attributes:
        options: What to add to the command line for it; empty is vLLM's own.
        question: The question that it answers.
        given: The planner's input.
        plan: The plan.
        report: The replay.
    """

    options: str
    question: Question
    given: PlannerInput
    plan: kvplan.Plan
    report: Report

    @property
    def goodput(self) -> float:
        """Tokens of finished requests a second in which a step runs."""
        return self.report.goodput

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        unit = hit_unit(self.plan)
        return {
            "options": self.options,
            "groups": len(self.plan.groups),
            "num_blocks": self.plan.num_blocks,
            "hit_tokens": unit and unit.tokens,
            **figures(self.report),
        }


@dataclass(frozen=True)
class _Change:
    """One way to ask otherwise; None where the question cannot be asked so."""

    options: str
    ask: Callable[[Question], Question | None]


class PlanSearch:
    """The best plan for a load among those that `kvplan` can make of a question."""

    def __init__(self, question: Question, load: Trace, policy: Policy) -> None:
        self._load, self._policy = load, policy
        self._question = question
        self._known: dict[Any, Candidate] = {}
        self.tried: list[Candidate] = []
        own = self._try("", question)
        if own is None:
            question.planner_input().plan_or_refuse()  # raises the reason
            raise kvplan.Unsupported("the cache manager has no policy for this plan")
        self.vllms = own

    def best(self, *, exhaustive: bool = False) -> Candidate:
        """The plan with the highest goodput; vLLM's own where none is better.

        One kind of change after another, each from the best so far; `exhaustive` tries all
        together.
        """
        best = self.vllms
        kinds = (
            self._match_units(),
            self._block_sizes(),
            self._groupings(),
            self._retentions(),
        )
        if exhaustive:
            for mixed in itertools.product(*((None, *changes) for changes in kinds)):
                best = self._better(best, self._ask([c for c in mixed if c is not None]))
            return best
        chosen: tuple[_Change, ...] = ()
        for changes in kinds:
            for change, more in [(change, (*chosen, change)) for change in changes]:
                found = self._better(best, self._ask(more))
                if found is not best:
                    best, kept = found, change
                    chosen = tuple(c for c in chosen if c not in changes) + (kept,)
        return best

    def _better(self, best: Candidate, other: Candidate | None) -> Candidate:
        if other is None or other.goodput <= best.goodput * (1 + EQUAL):
            return best
        return other

    def _ask(self, changes: Sequence[_Change]) -> Candidate | None:
        question: Question | None = self._question
        for change in changes:
            question = None if question is None else change.ask(question)
        options = " ".join(change.options for change in changes)
        return None if question is None else self._try(options, question)

    def _try(self, options: str, question: Question) -> Candidate | None:
        """The candidate of a question; None where it cannot be planned or replayed."""
        try:
            given = question.planner_input()
            plan = given.plan()
        except (kvplan.PlanningError, ValueError):
            return None
        if not plan.groups:
            return None
        key = (
            plan.num_blocks,
            tuple((g.kind, g.block_size, tuple(g.layer_names)) for g in plan.groups),
            plan.config.prefix_cache_retention_interval,
            plan.config.prefix_match_unit,
        )
        if key not in self._known:
            try:
                report = run(plan, self._load, self._policy, max_samples=50)
            except kvplan.PlanningError:
                return None
            self._known[key] = Candidate(options, question, given, plan, report)
            self.tried.append(self._known[key])
        return self._known[key]

    # The changes.

    def _match_units(self) -> list[_Change]:
        """Hits inside blocks, which only states can have."""
        if not any("Mamba" in group.kind for group in self.vllms.plan.groups):
            return []
        block = math.gcd(*(group.block_size for group in self.vllms.plan.groups))
        return [
            _Change(
                f"--prefix-match-unit {unit}",
                lambda question, unit=unit: question.with_config(prefix_match_unit=unit),  # type: ignore[misc]
            )
            for unit in MATCH_UNITS
            if unit < block and block % unit == 0
        ]

    def _block_sizes(self) -> list[_Change]:
        def change(size: int) -> _Change:
            return _Change(
                f"--block-size {size}", lambda question: question.with_options(block_size=size)
            )

        return [change(size) for size in BLOCK_SIZES]

    def _groupings(self) -> list[_Change]:
        def change(groups: int) -> _Change:
            return _Change(
                f"--grouping compact --max-groups {groups}",
                lambda question: question.with_config(grouping="compact", max_groups=groups),
            )

        config = self.vllms.given.config.replace(grouping="compact")
        try:
            curve = kvplan.frontier(config, self.vllms.given.kv_cache_specs)
        except kvplan.PlanningError:
            return []
        counts = sorted({point.num_groups for point in curve.points} - {1})
        if len(counts) > MOST_GROUPINGS:
            last = len(counts) - 1
            counts = sorted(
                {counts[i * last // (MOST_GROUPINGS - 1)] for i in range(MOST_GROUPINGS)}
            )
        return [change(count) for count in counts]

    def _retentions(self) -> list[_Change]:
        if not any(
            "SlidingWindow" in group.kind or "Mamba" in group.kind
            for group in self.vllms.plan.groups
        ):
            return []
        return [
            _Change(
                "--prefix-cache-retention-interval 0",
                lambda question: question.with_config(prefix_cache_retention_interval=0),
            )
        ]


@dataclass(frozen=True)
class Choice:
    """The plan that was chosen for a load, and what else was tried.

    Attributes:
        load: The load.
        policy: The scheduler's settings.
        best: The plan chosen.
        vllms: vLLM's own.
        tried: All that were replayed, the best first.
        others: Goodput of the plan chosen and of vLLM's own on loads it was not chosen for.
    """

    load: Trace
    policy: Policy
    best: Candidate
    vllms: Candidate
    tried: Sequence[Candidate]
    others: dict[str, tuple[float, float]]

    @property
    def question(self) -> Question:
        """The question that the plan answers."""
        return self.best.question

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "trace": self.load.name,
            "step_time": self.policy.step_time.words,
            "chosen": self.best.to_dict(),
            "vllm": self.vllms.to_dict(),
            "tried": [candidate.to_dict() for candidate in self.tried],
            "other_loads": {
                name: {"chosen_goodput": chosen, "vllm_goodput": vllms}
                for name, (chosen, vllms) in self.others.items()
            },
        }


def plan_for(question: Question, workload: Workload) -> Choice:
    """Choose the plan of a question for a load.

    Raises:
        BadInput: The manager has no policy for the plan.
    """
    given = question.planner_input()
    policy = workload.policy(question, given, given.plan_or_refuse())
    load = workload.load.of_one_engine(question.replicas)
    with replayable(given.label):
        search = PlanSearch(question, load, policy)
    best = search.best()
    tried = sorted(search.tried, key=lambda candidate: -candidate.goodput)
    return Choice(
        load, policy, best, search.vllms, tried, _elsewhere(best, search.vllms, load, policy)
    )


def _elsewhere(
    best: Candidate, vllms: Candidate, load: Trace, policy: Policy
) -> dict[str, tuple[float, float]]:
    """What the plan does to loads that it was not chosen for."""
    if best is vllms:
        return {}
    found = {}
    for name in LOADS:
        other = generate(name, requests=200)
        if other.name.split()[0] != load.name.split()[0]:
            pair = [run(side.plan, other, policy, max_samples=2).goodput for side in (best, vllms)]
            found[name] = (pair[0], pair[1])
    return found


def render_choice(console: Console, choice: Choice) -> None:
    """Print what was tried, the best first, and what the choice does elsewhere."""
    table = FittingTable(
        [
            Column("plan", words=True),
            Column("groups"),
            Column("hit unit"),
            Column("hits"),
            Column("preemptions"),
            Column("tokens/busy s"),
            Column("vs vLLM"),
        ]
    )
    vllms = choice.vllms.goodput
    for candidate in choice.tried:
        unit = hit_unit(candidate.plan)
        table.add_row(
            candidate.options or "vLLM's own",
            str(len(candidate.plan.groups)),
            "-" if unit is None else f"{unit.tokens:,}",
            f"{candidate.report.hit_rate:.1%}",
            f"{candidate.report.preemptions:,}",
            f"{candidate.goodput:,.0f}",
            f"{candidate.goodput / vllms:.2f}x" if vllms else "-",
            style="bold" if candidate is choice.best else "",
        )
    console.print(f"Plans for {choice.load.name}", markup=False)
    table.print(console)
    chosen = choice.best.options or "vLLM's own plan: nothing is better"
    lines = [f"Chosen: {chosen}. Step time: {choice.policy.step_time.words}."]
    if choice.others:
        elsewhere = ", ".join(f"{name} {a / b:.2f}x" for name, (a, b) in choice.others.items() if b)
        lines.append(f"On loads it was not chosen for, against vLLM's plan: {elsewhere}.")
    console.print("\n".join(lines), markup=False)
