"""``kvplan check``: right plans pass, and every kind of damage is found."""

import json
import os
import threading

import pytest
from built_in_kinds import KINDS
from cli_runner import answer_to, run

from kvplan.offline.cli.failures import BAD_INPUT, FITS


@pytest.fixture
def plan_file(tmp_path):
    """Write the plan of some options, changed by a function, and return the file's path."""

    def write(*args, damage=None):
        plan = answer_to("plan", *args)
        if damage is not None:
            damage(plan["placement"])
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        return path

    return write


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("grouping", ["vllm", "compact"])
def test_plans_are_correct(plan_file, name, grouping):
    args = (name, "--memory", "60GiB", "--tp", "4", "--max-model-len", "auto")
    result = run("check", plan_file(*args, "--grouping", grouping))
    assert result.exit_code == FITS, result.stderr
    assert "correct: 4 workers" in result.stdout


def test_pipeline_stages(plan_file):
    path = plan_file("llama-3.1-70b", "--memory", "60GiB", "--pp", "3", "--tp", "2")
    assert run("check", path).exit_code == FITS


GEMMA = ("gemma-3-27b", "--memory", "30GiB", "--pp", "2")


def first_tensor(placement):
    return placement["workers"][0]["tensors"][0]


def overlap(placement):
    first_tensor(placement)["block_stride"] -= 16


def leave_the_buffer(placement):
    first_tensor(placement)["offset"] += 1 << 20


def lose_a_layer(placement):
    placement["workers"][0]["groups"][0]["layer_names"].pop()


def double_a_layer(placement):
    groups = placement["workers"][0]["groups"]
    groups[0]["layer_names"].append(groups[1]["layer_names"][0])


def disagree(placement):
    placement["workers"][1]["num_blocks"] -= 1


def exceed_memory(placement):
    placement["workers"][0]["available_memory"] = 1 << 30


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (overlap, "pages_disjoint"),
        (leave_the_buffer, "inside_buffer"),
        (lose_a_layer, "one_group"),
        (double_a_layer, "one_group"),
        (disagree, "workers_agree"),
        (exceed_memory, "budget"),
    ],
)
def test_damage_is_found(plan_file, damage, rule):
    result = run("check", plan_file(*GEMMA, damage=damage), "--json")
    assert result.exit_code == 1
    assert rule in [violation["rule"] for violation in json.loads(result.stdout)]
    assert f": {rule}: " in result.stderr


def test_bad_references(plan_file):
    def no_spec(placement):
        placement["workers"][0]["groups"][0]["specs"] = [99]

    def no_worker(placement):
        placement["workers"][1] = {"available_memory": 1, "same_as": 1}

    def wrong_spec(placement):
        placement["specs"][0]["block_size"] = -1

    def two_names(placement):
        placement["workers"][0]["layers"] *= 2

    def two_block_sizes(placement):
        placement["workers"][0]["groups"][0]["block_size"] = 32

    for damage, words in (
        (two_names, "more than once"),
        (two_block_sizes, "groups[0].block_size: 32 tokens, where its spec has 16"),
        (no_spec, "no spec 99"),
        (no_worker, "no worker before"),
        (wrong_spec, "$.placement.specs[0]"),
    ):
        result = run("check", plan_file(*GEMMA, damage=damage))
        assert result.exit_code == BAD_INPUT, words
        assert words in result.stderr


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"placement": 1}', "\x00", "[" * 100_000])
def test_not_a_plan(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    result = run("check", path)
    assert result.exit_code == BAD_INPUT
    assert "plan.json" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_absent_file():
    assert run("check", "absent.json").exit_code == BAD_INPUT


def test_a_pipe(plan_file, tmp_path):
    path, pipe = plan_file(*GEMMA), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    result = run("check", pipe)
    writer.join()
    assert result.exit_code == FITS, result.stderr
