"""A plan for a load: each grouping, block size and retention is replayed, and the best is taken.

Best is what has the most throughput on the load as it is; or, under limits on latency, what keeps
them at the highest rate of requests.

vLLM's own plan is one of them, so the choice is never below it on the load that it is made for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import kvplan
from kvplan.offline.cli.plan_facts import hit_unit
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question
from kvplan.offline.cli.replay import load_of, policy_of, replayable
from kvplan.offline.cli.terminal import Column, FittingTable
from kvplan.offline.replay.generate import LOADS, generate
from kvplan.offline.replay.limits import MOST_RATE, PRECISION, Limits, highest_rate
from kvplan.offline.replay.run import Policy, Report, quantiles, run

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.offline.replay.trace import Trace

#: Tokens of a block that are tried beside the default.
BLOCK_SIZES = (16, 32, 64, 128)
#: Tokens of a hash that are tried in models with states.
MATCH_UNITS = (16, 64)
#: Tokens between the boundaries at which windows and states are kept; 0: at the prompt's end alone.
RETENTIONS = (0, 4096)
#: Points of the frontier that are tried for each length, spread from few groups to many.
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
        limits: What most requests must keep at the highest rate; None: the load stays as it is.
    """

    load: Trace
    values: dict[str, Any]
    limits: Limits | None = None

    def policy(self, question: Question, given: PlannerInput, plan: kvplan.Plan) -> Policy:
        """The scheduler's settings for a plan."""
        return policy_of(question, given, plan, self.values)

    def replay(self, plan: kvplan.Plan, policy: Policy, engines: int) -> Report:
        """Replay what one of so many engines gets. Raises `kvplan.Unsupported`."""
        return run(plan, self.load.of_one_engine(engines), policy, max_samples=2)

    def objective(self, policy: Policy, engines: int) -> Objective:
        """What plans are compared by."""
        if self.limits is None:
            return Throughput(self.load.of_one_engine(engines), policy)

        def at_rate(rate: float) -> Trace:
            trace = load_of(self.values["workload"], self.values, rate)
            return trace.of_one_engine(engines)

        return SustainedRate(self.limits, at_rate, policy)

    def to_dict(self, policy: Policy) -> dict[str, str]:
        """The load and the model of time, as plain data for JSON."""
        return {"trace": self.load.name, "step_time": policy.step_time.words}


class Objective(Protocol):
    """What plans are compared by."""

    def measure(self, plan: kvplan.Plan, best: float) -> tuple[float, Report]:
        """How good a plan is, and a replay of it. Raises `kvplan.PlanningError`.

        Args:
            plan: The plan.
            best: That of the best plan so far; of a worse one 0 may be said.
        """


@dataclass(frozen=True)
class Throughput:
    """Tokens of finished requests a second in which a step runs, on the load as it is."""

    load: Trace
    policy: Policy

    def measure(self, plan: kvplan.Plan, best: float) -> tuple[float, Report]:
        """The throughput."""
        report = run(plan, self.load, self.policy, max_samples=2)
        return report.goodput, report


@dataclass(frozen=True)
class SustainedRate:
    """The highest rate of requests at which enough of them are served in time.

    Attributes:
        limits: What in time means.
        at_rate: The load with so many requests a second.
        policy: The scheduler's settings.
        start: A rate to begin with.
    """

    limits: Limits
    at_rate: Callable[[float], Trace]
    policy: Policy
    start: float = 1.0

    def measure(self, plan: kvplan.Plan, best: float) -> tuple[float, Report]:
        """The rate; 0 where it is not above the best plan's."""
        reports: dict[float, Report] = {}

        def keeps(rate: float) -> bool:
            load = self.at_rate(rate)
            reports[rate] = run(
                plan,
                load,
                self.policy,
                max_samples=2,
                late_after=self.limits.first_token,
                most_late=self.limits.most_late(len(load)),
            )
            return self.limits.kept(reports[rate])

        above = best * PRECISION
        # Above the most that is tried no plan is better than another.
        if best and (not keeps(above) or best >= MOST_RATE):
            return 0.0, reports[above]
        found = highest_rate(keeps, above or self.start)
        return found, reports.get(found) or next(iter(reports.values()))


@dataclass(frozen=True)
class Candidate:
    """A plan and what it does to the load.

    Attributes:
        options: What to add to the command line for it; empty is vLLM's own.
        question: The question that it answers.
        given: The planner's input.
        plan: The plan.
        score: What plans are compared by; 0 where it is only known to be below the best so far.
        report: A replay, at that rate of requests.
    """

    options: str
    question: Question
    given: PlannerInput
    plan: kvplan.Plan
    score: float
    report: Report

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        unit = hit_unit(self.plan)
        return {
            "options": self.options,
            "groups": len(self.plan.groups),
            "num_blocks": self.plan.num_blocks,
            "hit_tokens": unit and unit.tokens,
            "score": self.score or None,
            **figures(self.report),
        }


@dataclass(frozen=True)
class _Change:
    """One way to ask otherwise; None where the question cannot be asked so."""

    options: str
    ask: Callable[[Question], Question | None]


class PlanSearch:
    """The best plan for a load among those that `kvplan` can make of a question.

    Args:
        question: The question. A grouping that it names is one of those tried.
        objective: What plans are compared by.
        typical: Tokens of a usual request, for which groupings are chosen, too.
        own_layout: Whether the layout is the named grouping's own, and not for the others.
    """

    def __init__(
        self, question: Question, objective: Objective, typical: int, *, own_layout: bool = False
    ) -> None:
        self._objective, self._typical = objective, typical
        self._asked, self._question = question, vllms_own(question, own_layout)
        self._known: dict[Any, Candidate] = {}
        self._highest = 0.0
        self.tried: list[Candidate] = []
        own = self._try("", self._question)
        if own is None:
            self._question.planner_input().plan_or_refuse()  # raises the reason
            raise kvplan.Unsupported("the cache manager has no policy for this plan")
        self.vllms = own

    def best(self, *, exhaustive: bool = False) -> Candidate:
        """The plan that does best; vLLM's own where none is better.

        One kind of change after another, each from the best so far; `exhaustive` tries all
        together.
        """
        best = self.vllms
        kinds = (
            self._match_units(),
            self._retentions(),
            self._groupings(),
            self._block_sizes(),
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
        if other is None or other.score <= best.score * (1 + EQUAL):
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
                score, report = self._objective.measure(plan, self._highest)
            except kvplan.PlanningError:
                return None
            self._highest = max(self._highest, score)
            self._known[key] = Candidate(options, question, given, plan, score, report)
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
        def change(groups: int, length: int | None) -> _Change:
            fields: dict[str, Any] = {"grouping": "compact", "max_groups": groups}
            options = f"--grouping compact --max-groups {groups}"
            if length is not None:
                fields["reference_model_len"] = length
                options += f" --reference-model-len {length}"
            return _Change(options, lambda question: question.with_config(**fields))

        given = self.vllms.given
        longest = given.config.max_model_len
        between = round((self._typical * longest) ** 0.5)
        found = self._asked_grouping()
        for length in (None, *(n for n in (between, self._typical) if n < longest)):
            config = given.config.replace(grouping="compact", reference_model_len=length)
            try:
                curve = kvplan.frontier(config, given.kv_cache_specs)
            except kvplan.PlanningError:
                continue
            counts = sorted({point.num_groups for point in curve.points} - {1})
            if len(counts) > MOST_GROUPINGS:
                last = len(counts) - 1
                counts = sorted(
                    {counts[i * last // (MOST_GROUPINGS - 1)] for i in range(MOST_GROUPINGS)}
                )
            found += [change(count, length) for count in counts]
        return found

    def _asked_grouping(self) -> list[_Change]:
        """The grouping that the user named, which may be none of the others."""
        asked = self._asked
        config = asked.planner_input().config
        if config.grouping == "vllm":
            return []
        fields = {name: getattr(config, name) for name in _GROUPING}

        def ask(question: Question) -> Question | None:
            if isinstance(question, ModelQuestion) and isinstance(asked, ModelQuestion):
                question = question.with_options(kv_cache_layout=asked.options.kv_cache_layout)
            return question.with_config(**fields)

        given = {name: value for name, value in asked.config_changes.items() if name in _GROUPING}
        words = given or {"grouping": config.grouping}
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in words.items())
        return [_Change(options, ask)]

    def _retentions(self) -> list[_Change]:
        if not any(
            "SlidingWindow" in group.kind or "Mamba" in group.kind
            for group in self.vllms.plan.groups
        ):
            return []
        return [
            _Change(
                f"--prefix-cache-retention-interval {tokens}",
                lambda question, tokens=tokens: question.with_config(  # type: ignore[misc]
                    prefix_cache_retention_interval=tokens
                ),
            )
            for tokens in RETENTIONS
        ]


#: Fields of `PlanningConfig` that say how layers are grouped.
_GROUPING = ("grouping", "max_groups", "reference_model_len", "min_large_blocks")


def vllms_own(question: Question, own_layout: bool) -> Question:
    """The same question with vLLM's grouping, whatever it asks; and with vLLM's layout."""
    changes = {k: v for k, v in question.config_changes.items() if k not in _GROUPING}
    changes["grouping"] = "vllm"
    own: Question = dataclasses.replace(question, config_changes=changes)  # type: ignore[type-var]
    return (own.with_options(kv_cache_layout=None) or own) if own_layout else own


@dataclass(frozen=True)
class Choice:
    """The plan that was chosen for a load, and what else was tried.

    Attributes:
        load: The load.
        policy: The scheduler's settings.
        limits: Under which rates are compared; None for the throughput on the load as it is.
        best: The plan chosen.
        vllms: vLLM's own.
        tried: All that were replayed, the best first.
        others: Throughput of the plan chosen and of vLLM's own on loads it was not chosen for.
    """

    load: Trace
    policy: Policy
    limits: Limits | None
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
            "limits": None if self.limits is None else self.limits.to_dict(),
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
    values = workload.values
    with replayable(given.label):
        search = PlanSearch(
            question,
            workload.objective(policy, question.replicas),
            load.typical_tokens,
            own_layout=values["grouping"] == "sliced" and values["layout"] is None,
        )
    best = search.best()
    tried = sorted(search.tried, key=lambda candidate: -candidate.score)
    others = _elsewhere(best, search.vllms, load, policy)
    return Choice(load, policy, workload.limits, best, search.vllms, tried, others)


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
            Column("tokens/busy s" if choice.limits is None else "requests/s in time"),
            Column("vs vLLM"),
        ]
    )
    vllms, best = choice.vllms.score, choice.best.score
    for candidate in choice.tried:
        unit = hit_unit(candidate.plan)
        score = candidate.score
        table.add_row(
            candidate.options or "vLLM's own",
            str(len(candidate.plan.groups)),
            "-" if unit is None else f"{unit.tokens:,}",
            f"{candidate.report.hit_rate:.1%}",
            f"{candidate.report.preemptions:,}",
            f"{score:,.0f}" if choice.limits is None else _rate(score, best),
            f"{score / vllms:.2f}x" if vllms and score else "-",
            style="bold" if candidate is choice.best else "",
        )
    console.print(f"Plans for {choice.load.name}", markup=False)
    table.print(console)
    chosen = choice.best.options or "vLLM's own plan: nothing is better"
    lines = [f"Chosen: {chosen}. Step time: {choice.policy.step_time.words}."]
    if choice.limits is not None:
        lines.append(f"The highest rate that serves {choice.limits.words}.")
        if best >= MOST_RATE:
            lines.append(
                f"No rate up to {MOST_RATE:,.0f} breaks these limits, so they choose none."
            )
    if choice.others:
        elsewhere = ", ".join(f"{name} {a / b:.2f}x" for name, (a, b) in choice.others.items() if b)
        lines.append(f"Throughput on loads it was not chosen for, against vLLM's: {elsewhere}.")
    console.print("\n".join(lines), markup=False)


def _rate(score: float, best: float) -> str:
    return f"{score:.3g}" if score or not best else "less"
