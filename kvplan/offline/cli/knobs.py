"""What would help: options worth changing, each tried by planning again, with what it brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kvplan
from kvplan.offline.cli.failures import counted
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question
from kvplan.offline.cli.sizes import floor_hundredths, format_enough, format_size

#: A gain in steady requests below this is not worth a line.
MIN_GAIN = 0.03
#: Steps that a server can go down to before prefill suffers much.
SMALL_BATCH = 2048

#: Bytes that hold any request.
PLENTY = 1 << 60


@dataclass(frozen=True)
class Knob:
    """One change and what it brings.

    Attributes:
        option: What to write on the command line, e.g. ``--kv-cache-dtype fp8``.
        max_model_len: Tokens of the longest request, with the change.
        max_concurrency: Requests of that length at once by vLLM's formula, with the change.
        gain: How much longer the context is, or else how many more requests there are, as a part
            of what it is without; None where nothing fits without.
        note: What else changes.
        longer: Whether the change lets longer requests in.
    """

    option: str
    max_model_len: int
    max_concurrency: float
    gain: float | None
    note: str = ""
    longer: bool = False

    @property
    def words(self) -> str:
        """One line for a reader."""
        requests = f"{floor_hundredths(self.max_concurrency)} requests at once"
        if self.longer:
            requests = f"a context of {self.max_model_len:,} tokens"
        what = f"fits, {requests}" if self.gain is None else f"{requests} ({self.gain:+.0%})"
        return f"{self.option}: {what}" + (f"; {self.note}" if self.note else "")


def find_knobs(question: Question, plan: kvplan.Plan | None) -> list[Knob]:
    """Changes that help, the best first.

    Args:
        question: What was asked.
        plan: Its plan, or None where it does not fit.
    """
    found = []
    for option, changed, note in _candidates(question, plan):
        better = try_plan(changed)
        if better is None:
            continue
        gain, longer = None, False
        if plan is not None and plan.max_concurrency > 0:
            more = better.max_concurrency / plan.max_concurrency
            growth = better.max_model_len / plan.max_model_len
            # All tokens together decide whether it is worth a line.
            if more * growth - 1 < MIN_GAIN:
                continue
            longer = growth > 1
            gain = (growth if longer else more) - 1
        note = note or counted(len(better.groups), "group")
        found.append(Knob(option, better.max_model_len, better.max_concurrency, gain, note, longer))
    return sorted(found, key=lambda knob: -knob.max_concurrency * knob.max_model_len)


def _candidates(
    question: Question, plan: kvplan.Plan | None
) -> Iterator[tuple[str, Question, str]]:
    given = question.planner_input()
    config = given.config
    yield from _undone(question, given)
    if config.grouping == "vllm":
        changed = question.with_config(grouping="compact")
        yield "--grouping compact", changed, ""
    batch = given.max_num_batched_tokens
    # With cross attention the gain would be in vLLM's formula alone: it charges a request a whole
    # step of encoder tokens, but a running server gives it blocks for those it has.
    if plan is not None and batch > SMALL_BATCH and plan.encoder_tokens_per_request is None:
        yield (
            f"--max-num-batched-tokens {SMALL_BATCH}",
            question.with_batch(SMALL_BATCH),
            "smaller prefill steps",
        )
    if given.facts.get("KV cache dtype") == "auto":
        changed_dtype = question.with_options(kv_cache_dtype="fp8")
        if changed_dtype is not None:
            yield "--kv-cache-dtype fp8", changed_dtype, "lower precision"
    if isinstance(question, ModelQuestion):
        yield from _other_splits(question, more_gpus=plan is None)


def _undone(question: Question, given: PlannerInput) -> Iterator[tuple[str, Question, str]]:
    """Options that were set, or are on by default, without them."""
    override = given.config.num_gpu_blocks_override
    if override is not None:
        without = question.with_config(num_gpu_blocks_override=None)
        yield "without --num-gpu-blocks-override", without, "the blocks that the memory holds"
    if not isinstance(question, ModelQuestion):
        return
    options = question.options
    usual: dict[str, Any] = {
        "disable_hybrid_kv_cache_manager": False,
        "block_size": None,
        "mamba_block_size": None,
        "attention_backend": None,
    }
    for name, value in usual.items():
        if getattr(options, name) != value:
            changed = question.with_options(**{name: value})
            yield f"without --{name.replace('_', '-')}", changed, "vLLM's own choice"
    if options.async_scheduling and question.max_concurrent_batches is None:
        changed = question.with_options(async_scheduling=False)
        yield "--no-async-scheduling", changed, "one step less in flight, and slower"


def _other_splits(
    question: ModelQuestion, *, more_gpus: bool
) -> Iterator[tuple[str, Question, str]]:
    """The same GPUs without copies of a token's cache; twice as many GPUs."""
    tp, pp = question.options.tensor_parallel_size, question.options.pipeline_parallel_size
    dcp = question.options.decode_context_parallel_size
    ranks = [n for n in (2, 4, 8, 16, 32, 64, 128) if dcp < n <= tp and tp % n == 0]
    for n in ranks:
        changed = question.with_options(decode_context_parallel_size=n)
        yield f"--dcp {n}", changed, "the ranks share what each held a copy of"
    if not more_gpus or len(question.memory) > 1:
        return
    same = "with the same memory for the cache on each GPU" if question.memory else "twice the GPUs"
    yield f"--tp {2 * tp}", question.with_options(tensor_parallel_size=2 * tp), same
    for n in sorted({2 * dcp, 2 * tp}):
        if 1 < n <= 2 * tp and n not in ranks:
            both = question.with_options(
                tensor_parallel_size=2 * tp, decode_context_parallel_size=n
            )
            yield f"--tp {2 * tp} --dcp {n}", both, same
    yield f"--pp {2 * pp}", question.with_options(pipeline_parallel_size=2 * pp), same


def try_plan(question: Question) -> kvplan.Plan | None:
    """The plan, or None where it does not fit or cannot be."""
    try:
        return question.planner_input().plan()
    except kvplan.PlanningError:
        return None


def knobs_of_failure(question: Question, error: kvplan.NotEnoughMemory) -> list[str]:
    """Lines of what would make it fit, from the numbers of the refusal and by planning again."""
    given = question.planner_input()
    config = given.config
    lines = []
    if error.estimated_max_len > 0:
        lines.append(f"--max-model-len {error.estimated_max_len}: fits, for one request at a time")
    if error.max_in_flight_tokens >= config.max_concurrent_batches:
        batch = error.max_in_flight_tokens // config.max_concurrent_batches
        lines.append(f"--max-num-batched-tokens {batch}: the full length fits")
    needed = _needed_memory(question, error)
    if needed is not None:
        more = needed - given.available_memory[error.worker]
        lines.append(
            f"--memory {format_enough(needed)}: one request of the full length fits, with "
            f"{format_size(more)} more on GPU {error.worker}"
        )
    return lines + [knob.words for knob in find_knobs(question, None)]


def _needed_memory(question: Question, error: kvplan.NotEnoughMemory) -> int | None:
    """Bytes for one request and the null block on the worker that set the limit."""
    given = question.planner_input()
    if given.config.num_gpu_blocks_override is not None or error.worker < 0:
        return None
    plan = plan_with_plenty(question)
    if plan is None:
        return None
    worker = plan.workers[error.worker]
    needed = worker.request_bytes + worker.bytes_per_block
    return needed if given.config.grouping != "sliced" else _needed_by_slices(given, needed)


def _needed_by_slices(given: PlannerInput, needed: int) -> int:
    """The same with sliced grouping, whose blocks depend on the memory themselves."""
    config = given.config.replace(auto_fit=False)
    for _ in range(8):
        try:
            kvplan.plan(config, given.kv_cache_specs, [needed] * len(given.kv_cache_specs))
            break
        except kvplan.NotEnoughMemory as error:
            needed += max(1, error.needed_bytes - error.available_bytes)
    return needed


def plan_with_plenty(question: Question) -> kvplan.Plan | None:
    """The plan with more memory than any request needs, at the length asked for."""
    return plan_given_plenty(question.planner_input())


def plan_given_plenty(given: PlannerInput) -> kvplan.Plan | None:
    """The same for what a question came to."""
    config = given.config.replace(auto_fit=False, num_gpu_blocks_override=None)
    memory = [PLENTY] * len(given.kv_cache_specs)
    try:
        if config.grouping == "sliced":
            # Slices have 32-bit ids, of which plenty of memory would need more.
            point = kvplan.sliced_point(config, given.kv_cache_specs, memory)
            if point is not None:
                config = config.replace(num_gpu_blocks_override=point.request_blocks + 1)
        return kvplan.plan(config, given.kv_cache_specs, memory)
    except kvplan.PlanningError:
        return None
