"""Running a trace through a plan's cache manager, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

import kvplan
from kvplan import _core
from kvplan.offline.replay.step_time import StepTime
from kvplan.offline.replay.trace import Trace

__all__ = ["ENDS", "Policy", "Report", "run"]

#: How a request can end, in the order of `RequestOutcome::End`.
ENDS = ("finished", "too long", "no room", "unfinished")


@dataclass(frozen=True)
class Policy:
    """A scheduler's settings; vLLM's names and defaults.

    Attributes:
        policy: ``fcfs`` or ``priority``.
        max_num_seqs: Sequences of a step.
        max_num_batched_tokens: Tokens of a step.
        long_prefill_token_threshold: Tokens of a step that one prompt takes at most; 0: no limit.
        enable_chunked_prefill: Whether prompts are computed in pieces.
        async_scheduling: Whether a step is scheduled while the one before it runs.
        max_concurrent_batches: Steps in flight at once.
        watermark: Share of the blocks that an admission beside running requests leaves free.
        num_lookahead_tokens: Slots beyond a step's tokens that a drafter writes.
        num_drafts: Tokens that are drafted after each; 0: none.
        acceptance: Chance that a draft is accepted whose forerunners are.
        step_time: How long a step takes.
    """

    policy: str = "fcfs"
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    max_concurrent_batches: int = 2
    watermark: float = 0.0
    num_lookahead_tokens: int = 0
    num_drafts: int = 0
    acceptance: float = 0.0
    step_time: StepTime = field(default_factory=StepTime)


@dataclass(frozen=True)
class Report:
    """What came of a replay.

    Attributes:
        plan: The plan.
        trace: The trace.
        result: The dict of `_core.replay`.
    """

    plan: kvplan.Plan
    trace: Trace
    result: dict[str, Any]

    @property
    def requests(self) -> dict[str, Any]:
        """Arrays with an element a request."""
        return self.result["requests"]

    @property
    def samples(self) -> dict[str, Any]:
        """Arrays with an element a time, and of those by group one a group."""
        return self.result["samples"]

    @cached_property
    def finished(self) -> Any:
        """Which requests finished."""
        return self.requests["end"] == 0

    def count(self, end: str) -> int:
        """Requests that ended so."""
        return int((self.requests["end"] == ENDS.index(end)).sum())

    @property
    def seconds(self) -> float:
        """Simulated seconds, from the first arrival to the end of the last step."""
        return self.result["seconds"]

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were cached when they were first looked up."""
        return _share(self.result["hit_tokens"], self.result["query_tokens"])

    @property
    def hit_requests(self) -> float:
        """Share of the admitted requests with a hit."""
        admitted = self.finished
        return _share(int((self.requests["hit_tokens"][admitted] > 0).sum()), int(admitted.sum()))

    @property
    def preemptions(self) -> int:
        """How often a running request was put back."""
        return int(self.requests["preemptions"].sum())

    @property
    def output_tokens(self) -> int:
        """Tokens of the outputs that were finished."""
        return int(self.trace.output_tokens[self.finished].sum())

    @property
    def goodput(self) -> float:
        """Tokens of finished requests, prompts and outputs, a second in which a step runs.

        Time in which nothing is to be done tells nothing of a plan.
        """
        tokens = int(self.trace.prompt_tokens[self.finished].sum()) + self.output_tokens
        return _share(tokens, self.result["busy_seconds"])

    @property
    def queue_seconds(self) -> Any:
        """From arrival to admission, of each finished request."""
        return (self.requests["admitted"] - self.trace.arrivals)[self.finished]

    @property
    def first_token_seconds(self) -> Any:
        """From arrival to the first token, of each finished request."""
        return (self.requests["first_token"] - self.trace.arrivals)[self.finished]

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """Of each group: the mean over time of what is cached, held, and wasted, in bytes.

        ``waste_bytes`` is what running requests hold without a token's state in it: padding, and
        the empty ends of blocks.
        """
        found = []
        weights = _time_weights(self.samples["time"])
        for g, group in enumerate(self.plan.groups):
            per_token = group.content_bytes / group.block_size
            held = self.samples["held_blocks"][:, g] * group.slice_bytes
            # A state is of all tokens before it.
            is_state = "Mamba" in group.kind
            states = self.samples["held_tokens"][:, g] > 0
            filled = (
                self.samples["held_blocks"][:, g] * states * group.content_bytes
                if is_state
                else self.samples["held_tokens"][:, g] * per_token
            )
            cached = self.samples["cached_blocks"][:, g] * group.slice_bytes
            found.append(
                {
                    "group": g,
                    "kind": group.kind,
                    "cached_bytes": int(cached @ weights),
                    "held_bytes": int(held @ weights),
                    "waste_bytes": int(np.maximum(held - filled, 0) @ weights),
                }
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single requests, as plain data for JSON."""
        samples = {name: values.tolist() for name, values in self.samples.items()}
        return {
            "trace": self.trace.name,
            "remarks": list(self.trace.remarks),
            "requests": len(self.trace),
            **{end.replace(" ", "_"): self.count(end) for end in ENDS},
            "repeated_share": self.trace.repeated_share,
            "hit_rate": self.hit_rate,
            "hit_rate_requests": self.hit_requests,
            "query_tokens": self.result["query_tokens"],
            "hit_tokens": self.result["hit_tokens"],
            "preemptions": self.preemptions,
            "seconds": self.seconds,
            "steps": self.result["num_steps"],
            "computed_tokens": self.result["computed_tokens"],
            "requests_per_second": _share(int(self.finished.sum()), self.seconds),
            "output_tokens_per_second": _share(self.output_tokens, self.seconds),
            "busy_seconds": self.result["busy_seconds"],
            "goodput": self.goodput,
            "queue_seconds": quantiles(self.queue_seconds),
            "first_token_seconds": quantiles(self.first_token_seconds),
            "peak_used_blocks": self.result["peak_used_blocks"],
            "num_blocks": self.plan.num_blocks,
            "groups": self.groups,
            "samples": samples,
        }


def run(
    plan: kvplan.Plan,
    trace: Trace,
    policy: Policy | None = None,
    *,
    max_samples: int = 300,
    go_on: Callable[[int], bool] | None = None,
    late_after: float = math.inf,
    most_late: int = 0,
) -> Report:
    """Run a trace through a plan's cache manager under vLLM's scheduling policy.

    Args:
        plan: The plan.
        trace: The trace.
        policy: The scheduler's settings.
        max_samples: Times at which the load is kept.
        go_on: Asked now and then with the number of requests that are done; False ends the replay.
        late_after: Seconds from arrival to the first token after which a request is late.
        most_late: The replay ends when more requests than this are.

    Raises:
        kvplan.Unsupported: The plan has a group that the cache manager has no policy for.
        kvplan.InvalidArgument: A number is out of range.
    """
    policy = policy or Policy()
    result = _core.replay(
        plan,
        arrivals=trace.arrivals,
        priorities=trace.priorities,
        num_prompt_tokens=trace.prompt_tokens,
        num_output_tokens=trace.output_tokens,
        num_parts=trace.num_parts,
        part_texts=trace.part_texts,
        part_lengths=trace.part_lengths,
        output_texts=trace.output_texts,
        token_ids=trace.token_ids,
        priority_policy=policy.policy == "priority",
        max_num_seqs=policy.max_num_seqs,
        max_num_batched_tokens=policy.max_num_batched_tokens,
        long_prefill_token_threshold=policy.long_prefill_token_threshold,
        enable_chunked_prefill=policy.enable_chunked_prefill,
        async_scheduling=policy.async_scheduling,
        max_concurrent_batches=policy.max_concurrent_batches,
        watermark=policy.watermark,
        num_lookahead_tokens=policy.num_lookahead_tokens,
        num_drafts=policy.num_drafts,
        acceptance=policy.acceptance,
        step_time=policy.step_time.seconds,
        max_samples=max_samples,
        go_on=go_on,
        late_after=late_after,
        most_late=most_late,
    )
    return Report(plan, trace, result)


def quantiles(values: Any) -> dict[str, float]:
    """Mean, median and the 99th percentile."""
    if not len(values):
        return {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    return {
        "mean": float(values.mean()),
        "p50": float(np.quantile(values, 0.5)),
        "p99": float(np.quantile(values, 0.99)),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _time_weights(times: Any) -> Any:
    """The share of the time that each sample stands for: until the next."""
    if len(times) < 2 or times[-1] == times[0]:
        return np.full(len(times), 1 / max(1, len(times)))
    return np.append(np.diff(times), 0) / (times[-1] - times[0])
