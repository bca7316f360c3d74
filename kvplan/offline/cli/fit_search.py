"""What has to be set for a wanted context and concurrency: the searches behind ``kvplan fit``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import kvplan
from kvplan.offline.cli.knobs import PLENTY, plan_with_plenty, try_plan
from kvplan.offline.cli.question import ModelQuestion, Question
from kvplan.offline.cli.search import largest

#: Ranks and stages that are tried. TP ranks divide heads, MLPs and the vocabulary's multiple of 64,
#: which leaves hardly a published model another number.
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Tokens of a step beyond which nobody goes.
MAX_BATCH = 1 << 20


def requests_at_once(plan: kvplan.Plan, steady: bool = False) -> int:
    """Whole requests of the full length that run at once.

    Args:
        plan: The plan.
        steady: Whether the tokens in flight are counted once per engine, as a running server holds
            them; else each request is charged all of them, by vLLM's formula.
    """
    if steady and plan.groups:
        return int(min(plan.steady_concurrency, 2**63 - 1))
    blocks = _request_blocks(plan)
    return plan.usable_blocks // blocks if blocks else 2**63 - 1


def _request_blocks(plan: kvplan.Plan) -> int:
    """Blocks of one request by vLLM's formula, on the worker where it holds most."""
    workers = [worker for worker in plan.workers if worker.bytes_per_block]
    return max((w.request_bytes // w.bytes_per_block for w in workers), default=0)


def holds(question: Question, concurrency: int, steady: bool = False) -> bool:
    """Whether that many requests of the full length fit, spread over the replicas."""
    plan = try_plan(question)
    return plan is not None and requests_at_once(plan, steady) >= _share(question, concurrency)


def _share(question: Question, concurrency: int) -> int:
    """Requests of each replica."""
    return -(-concurrency // question.replicas)


def longest_context(question: Question, concurrency: int, steady: bool = False) -> int | None:
    """The longest context, up to the one asked for (or the model's), that fits so many times."""
    limit = question.with_memory((PLENTY,)).planner_input().config.max_model_len
    return largest(1, limit, lambda n: holds(question.with_length(n), concurrency, steady))


def least_memory(question: Question, concurrency: int, steady: bool = False) -> list[int] | None:
    """The least memory of each worker for so many requests of the full length."""
    plan = plan_with_plenty(question)
    if plan is None:
        return None
    # With the null block.
    blocks = _request_blocks(plan) * _share(question, concurrency) + 1
    if steady and concurrency > 1:
        too_few = largest(
            1,
            blocks,
            lambda n: not holds(question.with_config(num_gpu_blocks_override=n), concurrency, True),
        )
        blocks = (too_few or 0) + 1
    return [blocks * worker.bytes_per_block for worker in plan.workers]


def largest_batch(question: Question, concurrency: int, steady: bool = False) -> int | None:
    """The most tokens of a step with which so many requests of the full length fit."""
    return largest(1, MAX_BATCH, lambda n: holds(question.with_batch(n), concurrency, steady))


@dataclass(frozen=True)
class Split:
    """How a number of GPUs is used.

    Attributes:
        gpus: GPUs in all.
        replicas: Engines side by side (``--dp``), each with the whole model.
        pp: Pipeline stages of each.
        dcp: Decode context parallel ranks, over which the cache of a token is spread.
        tp: Tensor parallel ranks of a stage.
    """

    gpus: int
    replicas: int
    pp: int
    dcp: int
    tp: int

    @property
    def order(self) -> tuple[int, ...]:
        """Fewest GPUs first, then what is nearest to ``--tp`` alone; if dcp at all, no copies."""
        return self.gpus, self.replicas, self.pp, self.dcp > 1, -self.dcp

    @property
    def options(self) -> str:
        """What to write on the command line."""
        others = (("--dcp", self.dcp), ("--pp", self.pp), ("--dp", self.replicas))
        return f"--tp {self.tp}" + "".join(f" {name} {n}" for name, n in others if n > 1)


#: Whether a deployment, split so, does what is wanted besides holding requests.
Keeps = Callable[[Split, ModelQuestion], bool]


def splits(
    question: ModelQuestion, fixed: Collection[str], stages: tuple[int, ...] = POWERS
) -> Iterator[tuple[Split, ModelQuestion]]:
    """The ways to run one replica on a number of GPUs, fewest GPUs first.

    Args:
        question: The deployment.
        fixed: Fields of its options, of ``pipeline_parallel_size`` and
            ``decode_context_parallel_size``, that stay as they are.
        stages: Numbers of pipeline stages to try.
    """
    options = question.options
    # One size for each stage or worker is for the stages and workers that were given.
    if "pipeline_parallel_size" in fixed or len(question.memory) > 1:
        stages = (options.pipeline_parallel_size,)
    ranks: tuple[int, ...] = POWERS
    if "decode_context_parallel_size" in fixed:
        ranks = (options.decode_context_parallel_size,)
    most = POWERS[-1] * (stages[0] if len(stages) == 1 else 1)
    found = [
        Split(tp * pp, 1, pp, dcp, tp)
        for pp in stages
        for tp in (*POWERS, *(dcp for dcp in ranks if dcp not in POWERS))
        for dcp in ranks
        if tp * pp <= most and tp % dcp == 0
    ]
    for split in sorted(found, key=lambda split: split.order):
        yield (
            split,
            question.with_options(
                tensor_parallel_size=split.tp,
                pipeline_parallel_size=split.pp,
                decode_context_parallel_size=split.dcp,
            ),
        )


def fewest_gpus(
    question: ModelQuestion,
    concurrency: int,
    steady: bool = False,
    fixed: Collection[str] = (),
    keeps: Keeps | None = None,
) -> tuple[Split, kvplan.Plan, ModelQuestion] | None:
    """The fewest GPUs that hold so many requests of the full length.

    With the plan of a replica, and the deployment that is split so.

    Tensor, pipeline and decode context parallel ranks are tried, and replicas of each.

    Args:
        question: The deployment; how it is split is found anew.
        concurrency: Requests of the full length at once.
        steady: How they are counted, as in `requests_at_once`.
        fixed: Options that stay as they are: those of `splits`, and ``replicas``.
        keeps: What a split must do besides, perhaps with more replicas than hold the requests.
    """
    best: tuple[Split, kvplan.Plan, ModelQuestion] | None = None
    most = POWERS[-1] * question.options.pipeline_parallel_size * question.replicas
    for split, changed in splits(question, fixed):
        if best is not None and split.gpus > best[0].gpus:
            break
        plan = try_plan(changed)
        at_once = 0 if plan is None else requests_at_once(plan, steady)
        if plan is None or at_once == 0:
            continue
        least = -(-concurrency // at_once)
        numbers: Iterable[int] = itertools.count(least)
        if "replicas" in fixed:
            numbers = (question.replicas,) if least <= question.replicas else ()
        for replicas in numbers:
            whole = Split(split.gpus * replicas, replicas, split.pp, split.dcp, split.tp)
            if whole.gpus > most or (best is not None and whole.order >= best[0].order):
                break
            deployment = dataclasses.replace(changed, replicas=replicas)
            if keeps is None or keeps(whole, deployment):
                best = whole, plan, deployment
                break
    return best
