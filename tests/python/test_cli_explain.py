"""``kvplan explain``: the bill adds up, and says why."""

import json

import pytest
from built_in_kinds import KINDS
from cli_runner import answer_to, run

from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.cli.plan_facts import layer_ranges


@pytest.mark.parametrize("name", KINDS)
def test_the_bill_adds_up(name):
    bill = answer_to("explain", name)
    assert sum(group["bytes"] for group in bill["groups"]) == bill["request_bytes"]
    assert bill["num_blocks"] is None
    lengths = [row["request_bytes"] for row in bill["by_length"]]
    assert lengths == sorted(lengths)
    assert lengths[-1] == bill["request_bytes"]


def test_words():
    result = run("explain", "gemma-3-27b", "--memory", "30GiB")
    assert result.exit_code == FITS
    text = " ".join(result.stdout.split())
    assert "Groups 0-3, each with 9 layers of sliding window of 1,024: 1,089 blocks" in text
    assert "It keeps 1,023 tokens of the window and the 16,384 tokens in flight" in text
    assert "Group 6 with 10 layers (5-59 by 6) of full attention: 8,192 blocks" in text
    assert "One more block every 16 tokens." in text
    assert "7.98 GiB fixed from 17,393 tokens on and 80 KiB for each token" in text
    assert "1.67 such requests at once" in text


def test_short_request_keeps_everything():
    result = run("explain", "gemma-3-27b", "--max-model-len", "8K")
    assert "shorter than its window" in " ".join(result.stdout.split())

    assert "it holds more up to 17,393 tokens" in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_fixed_is_so_from_the_length_said(name):
    """Bills of the lengths around it, taken apart into fixed and growing bytes."""

    def bill(length):
        return answer_to("explain", name, "--max-model-len", str(length))

    longest = answer_to("explain", name)["max_model_len"]
    start = bill(longest)["fixed_from_tokens"]
    if start > 1:
        below, above = bill(start - 1), bill(start)
        assert below["fixed_bytes_per_request"] < above["fixed_bytes_per_request"]
        assert bill(start + 4096)["fixed_bytes_per_request"] == above["fixed_bytes_per_request"]
    else:
        fixed = {bill(length)["fixed_bytes_per_request"] for length in (1, 500, longest)}
        assert len(fixed) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("gemma-2-9b",), "growing up to 20,465 tokens"),
        (
            ("gemma-3-12b", "--max-model-len", "500"),
            "165 MiB growing up to 17,393 tokens",
        ),
        (("llama-4-scout", "--max-model-len", "20000"), "shorter than its chunk"),
    ],
)
def test_a_short_request_is_not_said_to_cost_the_same_at_any_length(args, words):
    text = " ".join(run("explain", *args).stdout.split())
    assert words in text
    assert " fixed" not in text
    assert "hold no more" not in text
    plan = run("plan", *args, "--memory", "100GiB").stdout
    assert "growing up to" in plan
    assert " fixed" not in plan


def test_states_do_not_grow():
    result = run("explain", "jamba-1.5-large")
    assert "A state has the same size at any length." in " ".join(result.stdout.split())


def test_does_not_fit():
    result = run("explain", "gemma-3-27b", "--memory", "3GiB")
    assert result.exit_code == DOES_NOT_FIT
    assert "gemma-3-27b does not fit: 'kvplan plan' says what would help." in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        ("diff", "gemma-3-27b"),
        ("explain", "--max-model-len", "auto"),
        ("map", "-o", "m.svg"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_says_alike_what_does_not_fit(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *options = command
    result = run(name, "gemma-3-27b", *options, "--memory", "1KiB")
    assert result.exit_code == DOES_NOT_FIT
    assert result.stderr.startswith("kvplan: gemma-3-27b does not fit: ")


def test_auto_needs_memory():
    assert run("explain", "gemma-3-27b", "--max-model-len", "auto").exit_code == BAD_INPUT
    result = run("explain", "gemma-3-27b", "--memory", "3GiB", "--max-model-len", "auto")
    assert result.exit_code == FITS
    assert "One request of 5,600 tokens" in result.stdout


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0, 1, 2, 3], "0-3"),
        ([5, 11, 17, 23], "5-23 by 6"),
        ([7], "7"),
        ([0, 1], "0-1"),
        ([0, 4], "0, 4"),
        ([0, 1, 2, 9, 12, 15, 40], "0-2, 9-15 by 3, 40"),
        ([0, 2, 3, 7, 8, 20, 29, 100], "0, 2-3, 7-8, ..."),
    ],
)
def test_layer_ranges(numbers, text):
    assert layer_ranges(f"model.layers.{n}.self_attn" for n in numbers) == text


def test_layers_without_numbers():
    assert layer_ranges(["mtp.block"]) == ""


def test_a_recorded_length_that_is_fitted_is_explained(tmp_path):
    recorded = tmp_path / "rec.json"
    args = ("gemma-3-27b", "--memory", "12GiB", "--max-model-len", "auto")
    run("plan", *args, "--write-request", recorded)
    bill = answer_to("explain", "--request", recorded)
    assert bill["max_model_len"] == 52720
    assert bill["request_blocks"] == 9829
    assert bill["by_length"][-1]["length"] == 52720


@pytest.mark.parametrize("command", ["explain", "frontier"])
def test_estimated_memory_counts(command):
    args = (command, "gemma-3-27b", "--gpu", "H200", "--weights", "54GB", "--json")
    answer = json.loads(run(*args).stdout)
    if command == "explain":
        assert answer["num_blocks"] > 0
        assert answer["max_concurrency"] > 1
    else:
        assert all(point["capacity_tokens"] > 0 for point in answer["points"])


def test_a_recorded_request_has_its_memory(tmp_path):
    recorded = tmp_path / "rec.json"
    run("plan", "gemma-3-27b", "--memory", "12GiB", "--write-request", recorded)
    for command in ("plan", "explain", "frontier"):
        result = run(command, "--request", recorded, "--gpu", "H100", "--weights", "54GB")
        assert result.exit_code == BAD_INPUT
        assert "a recorded request has its own" in result.stderr
