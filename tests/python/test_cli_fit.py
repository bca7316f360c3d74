"""``kvplan fit``: each answer is the best one, checked with ``kvplan plan``."""

import json

import pytest
from cli_runner import answer_to, run

from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.cli.search import largest


def found(*args):
    return answer_to("fit", *args)


def plan(*args):
    result = run("plan", *args, "--json")
    return json.loads(result.stdout) if result.exit_code == FITS else None


def requests_at_once(answer):
    return answer["usable_blocks"] // answer["request_blocks"]


@pytest.mark.parametrize("limit", range(12))
def test_largest(limit):
    asked = []

    def holds(n):
        asked.append(n)
        return n <= limit

    assert largest(1, 10, holds) == (None if limit < 1 else min(limit, 10))
    assert len(asked) <= 6


def test_longest_context_is_what_auto_fit_finds():
    args = ("gemma-3-27b", "--memory", "3GiB")
    assert found(*args)["found"] == plan(*args, "--max-model-len", "auto")["max_model_len"] == 5600


@pytest.mark.parametrize("model", ["gemma-3-27b", "qwen3-next-80b", "deepseek-v4.1-flash"])
def test_longest_context_for_several_requests(model):
    args = (model, "--memory", "6GiB")
    length = found(*args, "--concurrency", "3")["found"]
    best = plan(*args, "--max-model-len", str(length))
    assert requests_at_once(best) >= 3
    longer = plan(*args, "--max-model-len", str(length + 1))
    assert longer is None or requests_at_once(longer) < 3


def test_least_memory():
    args = ("gemma-3-27b", "--max-model-len", "64K", "--tp", "2")
    least = found(*args, "--find", "memory", "--concurrency", "3")["found"]
    assert requests_at_once(plan(*args, "--memory", str(least))) == 3
    assert requests_at_once(plan(*args, "--memory", str(least - 1))) == 2


def test_least_memory_of_uneven_stages():
    args = ("llama-3.1-70b", "--pp", "3")
    sizes = found(*args, "--find", "memory")["memory_by_stage"]
    assert len(sizes) == 3
    assert sizes[0] == sizes[1] > sizes[2]
    assert plan(*args, "--memory", ",".join(map(str, sizes))) is not None
    for stage in range(3):
        less = [size - (i == stage) for i, size in enumerate(sizes)]
        assert plan(*args, "--memory", ",".join(map(str, less))) is None


def test_fewest_gpus():
    args = ("llama-3.1-70b", "--memory", "30GiB")
    answer = found(*args, "--find", "gpus", "--concurrency", "4")
    gpus = answer["found"]
    assert answer["options"] == f"--tp {gpus}"
    assert requests_at_once(plan(*args, "--tp", str(gpus))) >= 4
    half = plan(*args, "--tp", str(gpus // 2))
    assert half is None or requests_at_once(half) < 4


def test_ranks_of_a_latent_cache_share_it_instead_of_copying_it():
    args = ("deepseek-r1", "--gpu", "H200", "--weights", "689GB", "--concurrency", "10")
    answer = found(*args, "--find", "gpus")
    assert (answer["found"], answer["options"]) == (8, "--tp 8 --dcp 8")
    assert answer["cache_copies"] == 1
    alone = found(*args, "--find", "gpus", "--dcp", "1", "--dp", "1", "--pp", "1")
    assert alone["found"] > 8
    assert alone["cache_copies"] == alone["found"]
    words = run("fit", *args, "--find", "gpus", "--dcp", "1", "--dp", "1", "--pp", "1").stdout
    assert f"each token's cache is replicated on {alone['found']} GPUs" in words


def test_replicas_hold_what_one_engine_cannot():
    # No rank may hold more than one request of a model with 8 KV heads and one GPU each.
    args = ("llama-3.1-8b", "--memory", "20GiB", "--max-model-len", "128K", "--pp", "1")
    answer = found(*args, "--tp", "1", "--concurrency", "3")
    assert answer["found"] < 131072
    more = found(*args, "--find", "gpus", "--concurrency", "100", "--dcp", "1")
    split = more["split"]
    assert split["data_parallel_size"] > 1
    each = -(-100 // split["data_parallel_size"])
    held = plan(*args, "--tp", str(split["tensor_parallel_size"]))
    assert requests_at_once(held) >= each
    words = run("fit", *args, "--find", "gpus", "--concurrency", "100", "--dcp", "1").stdout
    assert f"the weights are replicated in {split['data_parallel_size']} engines" in words


def test_concurrency_is_spread_over_replicas():
    args = ("gemma-3-27b", "--memory", "30GiB", "--concurrency")
    assert found(*args, "8", "--dp", "4")["found"] == found(*args, "2")["found"]


@pytest.mark.parametrize(
    "args",
    [("gemma-3-27b", "--memory", "30GiB"), ("deepseek-v4-flash", "--tp", "4", "--memory", "8GiB")],
    ids=lambda args: args[0],
)
def test_steady_counts_tokens_in_flight_once(args):
    by_vllm = found(*args, "--concurrency", "4")
    steady = found(*args, "--concurrency", "4", "--steady")
    assert steady["found"] == by_vllm["found_steady"] > by_vllm["found"] == steady["found_by_vllm"]
    best = plan(*args, "--max-model-len", str(steady["found"]))
    assert best["steady_concurrency"] >= 4
    longer = plan(*args, "--max-model-len", str(steady["found"] + 1))
    assert longer is None or longer["steady_concurrency"] < 4
    said = run("fit", *args, "--concurrency", "4")
    assert f"--max-model-len {by_vllm['found']}" in said.stdout
    assert f"--max-model-len {steady['found']}" in said.stderr


def test_least_memory_by_the_steady_figure():
    args = ("gemma-3-27b", "--max-model-len", "64K")
    least = found(*args, "--find", "memory", "--concurrency", "4", "--steady")["found"]
    assert plan(*args, "--memory", str(least))["steady_concurrency"] >= 4
    assert plan(*args, "--memory", str(least - 1))["steady_concurrency"] < 4


def test_largest_batch():
    args = ("gemma-3-27b", "--memory", "15GiB", "--max-model-len", "64K")
    batch = found(*args, "--find", "batch")["found"]
    assert plan(*args, "--max-num-batched-tokens", str(batch)) is not None
    assert plan(*args, "--max-num-batched-tokens", str(batch + 1)) is None


def test_recorded_request(tmp_path):
    request = tmp_path / "request.json"
    run("plan", "gemma-3-27b", "--memory", "3GiB", "--write-request", request)
    assert found("--request", request)["found"] == 5600
    split = run("fit", "--request", request, "--find", "gpus")
    assert split.exit_code == BAD_INPUT
    assert "recorded request" in split.stderr


def test_words():
    result = run("fit", "gemma-3-27b", "--memory", "30GiB", "--concurrency", "4")
    assert result.stdout.startswith("--max-model-len ")
    assert "for 4 requests at once, of 131,072 asked for" in result.stdout


@pytest.mark.parametrize("find", ["context", "gpus", "batch"])
def test_nothing_is_enough(find):
    result = run("fit", "gemma-3-27b", "--memory", "1MiB", "--find", find)
    assert result.exit_code == DOES_NOT_FIT
    assert "give more --memory" in result.stderr
    assert result.stdout == ""


def test_bad_input():
    result = run("fit", "gemma-3-27b", "--memory", "1GiB", "--max-model-len", "auto")
    assert result.exit_code == BAD_INPUT
    assert "--find context" in result.stderr
    assert run("fit", "gemma-3-27b").exit_code == BAD_INPUT
    assert run("fit", "gemma-3-27b", "--memory", "1GiB", "--find", "x").exit_code == BAD_INPUT
