"""What has to be set for a wanted context and concurrency: the searches behind ``kvplan fit``."""

from __future__ import annotations

import kvplan
from kvplan.offline.cli.knobs import PLENTY, plan_with_plenty
from kvplan.offline.cli.question import Question
from kvplan.offline.cli.search import largest

#: Tensor parallel sizes that are tried.
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Tokens of a step beyond which nobody goes.
MAX_BATCH = 1 << 20


def try_plan(question: Question) -> kvplan.Plan | None:
    """The plan, or None where it does not fit or cannot be."""
    try:
        return question.planner_input().plan()
    except (ValueError, NotImplementedError, AssertionError):
        return None


def requests_at_once(plan: kvplan.Plan) -> int:
    """Requests of the full length that surely run at once: each with all tokens in flight."""
    blocks = max((request_blocks(worker) for worker in plan.workers), default=0)
    return plan.usable_blocks // blocks if blocks else 2**63 - 1


def request_blocks(worker: kvplan.WorkerReport) -> int:
    """Blocks of one request on a worker."""
    return worker.request_bytes // worker.bytes_per_block if worker.bytes_per_block else 0


def holds(question: Question, concurrency: int) -> bool:
    """Whether that many requests of the full length fit."""
    plan = try_plan(question)
    return plan is not None and requests_at_once(plan) >= concurrency


def longest_context(question: Question, concurrency: int) -> int | None:
    """The longest context, up to the one asked for (or the model's), that fits so many times."""
    limit = question.with_memory((PLENTY,)).planner_input().config.max_model_len
    return largest(1, limit, lambda n: holds(question.with_length(n), concurrency))


def least_memory(question: Question, concurrency: int) -> list[int] | None:
    """The least memory of each worker for so many requests of the full length."""
    plan = plan_with_plenty(question)
    if plan is None:
        return None
    blocks = max((request_blocks(worker) for worker in plan.workers), default=0)
    return [(blocks * concurrency + 1) * worker.bytes_per_block for worker in plan.workers]


def possible_gpus(question: Question) -> dict[int, Question]:
    """The question at each tensor parallel size that the model's heads and ``--dcp`` allow.

    Raises:
        ValueError: None is allowed; the reason is that of the last one tried.
    """
    allowed: dict[int, Question] = {}
    for size in GPU_COUNTS:
        try:
            changed = question.with_options(tensor_parallel_size=size)
            if changed is not None:
                changed.with_memory((PLENTY,)).planner_input()
                allowed[size] = changed
        except (ValueError, NotImplementedError) as error:
            reason = error
    if not allowed:
        raise reason
    return allowed


def fewest_gpus(allowed: dict[int, Question], concurrency: int) -> int | None:
    """The least tensor parallel size that holds so many requests of the full length."""
    return next((size for size, changed in allowed.items() if holds(changed, concurrency)), None)


def largest_batch(question: Question, concurrency: int) -> int | None:
    """The most tokens of a step with which so many requests of the full length fit."""
    return largest(1, MAX_BATCH, lambda n: holds(question.with_batch(n), concurrency))
