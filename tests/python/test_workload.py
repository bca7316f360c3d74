"""The plan that is chosen for a load."""

import json

import pytest
from cli_runner import run

from kvplan.offline import models
from kvplan.offline.cli.question import ModelQuestion
from kvplan.offline.cli.workload import EQUAL, PlanSearch
from kvplan.offline.replay.generate import generate
from kvplan.offline.replay.run import Policy
from kvplan.offline.replay.step_time import StepTime

#: A plan may be this much worse than the best of all that can be made.
REGRET = 0.03


def search(name, load, gibibytes, requests=50):
    options = models.ModelOptions(max_model_len=32768)
    question = ModelQuestion(models.load(name), options, memory=(int(gibibytes * 2**30),))
    # A step's base is small, so that what the cache does decides.
    policy = Policy(step_time=StepTime(base=1e-3))
    return PlanSearch(question, generate(load, requests=requests, rate=5.0), policy)


@pytest.mark.parametrize(
    ("name", "load", "gibibytes"),
    [
        ("gemma-3-4b", "agents", 3),
        ("gpt-oss-20b", "mixed", 2),
        ("qwen3.6-27b", "chat", 5),
    ],
)
def test_the_choice_is_near_the_best_and_never_below_vllms(name, load, gibibytes):
    found = search(name, load, gibibytes)
    chosen = found.best()
    assert chosen.goodput >= found.vllms.goodput
    assert chosen in found.tried
    best = found.best(exhaustive=True)
    most = max(candidate.goodput for candidate in found.tried)
    assert best.goodput >= most * (1 - 2 * EQUAL)
    assert chosen.goodput >= (1 - REGRET) * best.goodput


def test_hits_inside_blocks_are_found_where_they_pay():
    found = search("qwen3.6-27b", "chat", 20, requests=200)
    chosen = found.best()
    assert "--prefix-match-unit" in chosen.options
    assert chosen.report.hit_rate > found.vllms.report.hit_rate
    assert chosen.goodput > found.vllms.goodput


def test_the_command_takes_the_plan_chosen():
    args = ("plan", "qwen3.6-27b", "--memory", "20GiB", "--max-model-len", "32K")
    args = (*args, "--workload", "chat:requests=60", "--step-time", "base=1ms")
    answer = json.loads(run(*args, "--json").stdout)
    workload = answer["workload"]
    assert workload["chosen"]["goodput"] >= workload["vllm"]["goodput"]
    assert answer["hit_tokens"] == workload["chosen"]["hit_tokens"]
    assert set(workload["other_loads"]) == {"agents", "documents", "mixed"}


def test_a_load_that_is_none():
    result = run("plan", "qwen3-8b", "--memory", "10GiB", "--workload", "nothing.jsonl")
    assert result.exit_code == 2
    assert "is no file, and no load" in result.stderr
