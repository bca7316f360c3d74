"""What a plan chosen for a load gains: requests a second that are served in time.

    python benchmarks/workload.py > benchmarks/results/workload.jsonl
    python scripts/make_replay_page.py

Chosen before any was measured: the ten built-in models of docs/compact.md's table, one a series,
as released and without drafters; the four loads of `kvplan.offline.replay.generate`; and for each
model the fewest H100s on which vLLM starts for a request of 131,072 tokens, so that memory is what
a plan has to do with. MLPerf Inference asks 2 s and 200 ms of Llama 2 70B's server. Every cell is
printed, those without a gain, too.

The bound is vLLM's plan with as many bytes more as its padding is of a request of the load's mean
length, and with groups that take no time: what groupings can give by tokens alone.
"""

import argparse
import dataclasses
import json

import kvplan
from kvplan.frontier import step_seconds
from kvplan.offline.cli import plan
from kvplan.offline.cli.deployment_options import read_question
from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.fit_search import fewest_gpus
from kvplan.offline.cli.replay import policy_of
from kvplan.offline.cli.workload import PlanSearch, SustainedRate
from kvplan.offline.replay.generate import LOADS, generate
from kvplan.offline.replay.limits import Limits

MODELS = (
    *("gemma-3-27b", "mimo-v2-flash", "gemma-4-31b", "gpt-oss-120b", "llama-4-scout"),
    *("nemotron-3-nano-30b", "qwen3.6-35b-a3b", "qwen3-next-80b", "jamba-1.5-large"),
    "deepseek-v4-flash",
)
GROUPING = ("--grouping", "--max-groups", "--reference-model-len")
GPU, CONTEXT = "H100", 131_072
LIMITS = Limits(first_token=2.0, token_time=0.1)
#: Requests of a load, whatever its rate.
FEWEST, MOST = 1_500, 4_000


def asked(name, *options):
    """A question as the command line reads it, with the values of its options."""
    words = [name, "--gpu", GPU, "--max-model-len", str(CONTEXT), *options]
    with plan.command.make_context("plan", words) as context:
        return read_question(dict(context.params)), context.params


def deployment(name):
    """The model on the fewest GPUs; with the values of the command's options."""
    question, values = asked(name)
    split, _, question = fewest_gpus(question, 1)
    return question, values, split


def with_slices(name, split, options, typical):
    """The options with slices instead of their grouping; None where that is refused."""
    pairs = [words for words in zip(options[::2], options[1::2], strict=True)]
    kept = [w for pair in pairs if pair[0] not in GROUPING for w in pair]
    sliced = ("--grouping", "sliced", "--reference-model-len", str(typical))
    try:
        return asked(name, *split.options.split(), *kept, *sliced)[0].planner_input().plan()
    except (kvplan.PlanningError, ValueError, BadInput):
        return None


def at_rate(load, seconds, seed=0):
    def make(rate):
        requests = int(min(max(FEWEST, rate * seconds), MOST))
        return generate(load, requests=requests, rate=rate, seed=seed, steady=True)

    return make


def rate_with_fp8(name, split, objective):
    """The rate under vLLM's plan of a cache in fp8, for comparison; None where that is refused."""
    try:
        question, values = asked(name, *split.options.split(), "--kv-cache-dtype", "fp8")
        given = question.planner_input()
        made = given.plan()
    except (kvplan.PlanningError, ValueError, BadInput):
        return None
    policy = policy_of(question, given, made, values)
    return dataclasses.replace(objective, policy=policy).measure(made, 0.0)[0]


def with_vllms_manager(step_time):
    fixed = step_seconds(1, manager="vllm", num_requests=0)
    row = step_seconds(1, manager="vllm", num_requests=1) - fixed
    return dataclasses.replace(step_time, group=fixed, row=row)


def free_of_padding(question, given, typical):
    """The same with as much more memory as its padding takes, for requests of so many tokens."""
    curve = kvplan.frontier(
        given.config.replace(grouping="compact", reference_model_len=typical),
        given.kv_cache_specs,
    )
    factor = curve.vllm.request_bytes / curve.lower_bound_bytes
    return question.with_memory([int(memory * factor) for memory in given.available_memory]), factor


def cell(name, load, seconds):
    question, values, split = deployment(name)
    given = question.planner_input()
    policy = policy_of(question, given, given.plan(), values)
    make = at_rate(load, seconds)
    typical = make(1.0).typical_tokens
    objective = SustainedRate(LIMITS, make, policy)
    search = PlanSearch(question, objective, typical)
    best, vllms = search.best(), search.vllms
    roomy, factor = free_of_padding(question, given, typical)
    free = dataclasses.replace(policy, step_time=dataclasses.replace(policy.step_time, group=0.0))
    start = vllms.score or 1.0
    bound, _ = SustainedRate(LIMITS, make, free, start).measure(roomy.planner_input().plan(), 0.0)
    stock = dataclasses.replace(policy, step_time=with_vllms_manager(policy.step_time))
    with_stock, _ = SustainedRate(LIMITS, make, stock, start).measure(vllms.plan, 0.0)
    fresh = SustainedRate(LIMITS, at_rate(load, seconds, seed=1), policy, start)
    sliced = with_slices(name, split, best.options.split(), typical)
    near = dataclasses.replace(objective, start=start)
    blocks = vllms.report.result["peak_used_blocks"] / vllms.plan.usable_blocks
    return {
        "model": name,
        "gpu": GPU,
        "options": split.options,
        "load": load,
        "vllm": vllms.score,
        "chosen": best.score,
        "plan": best.options,
        "vllm_hits": vllms.report.hit_rate,
        "chosen_hits": best.report.hit_rate,
        "peak_blocks": blocks,
        "padding": factor,
        "bound": bound,
        "vllm_with_vllms_manager": with_stock,
        "sliced": None if sliced is None else near.measure(sliced, 0.0)[0],
        "fp8": rate_with_fp8(name, split, near),
        "tried": len(search.tried),
        "vllm_other_seed": fresh.measure(vllms.plan, 0.0)[0],
        "chosen_other_seed": fresh.measure(best.plan, 0.0)[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--load", action="append", choices=list(LOADS))
    parser.add_argument("--seconds", type=float, default=240.0, help="of a load")
    args = parser.parse_args()
    for name in args.model or MODELS:
        for load in args.load or LOADS:
            print(json.dumps(cell(name, load, args.seconds)), flush=True)


if __name__ == "__main__":
    main()
