"""Cross attention on the command line: vLLM's formula beside what a running server holds."""

import json
import math
import re

import pytest
from cli_runner import answer_to, run

import kvplan
from kvplan.offline import models
from kvplan.offline.cli.sizes import floor_hundredths

MEMORY = 20 << 30
ENCODER_TOKENS = 1500
BLOCK = 16


def words(*args):
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def running_requests(batch):
    """Requests whose own encoder tokens and text the pool holds, without the null block."""
    options = models.ModelOptions(max_num_batched_tokens=batch)
    found = models.kv_cache_specs("whisper-large-v3", options)
    plan = kvplan.plan(found.planning_config(), found.kv_cache_specs, [MEMORY])
    blocks = math.ceil(ENCODER_TOKENS / BLOCK) + math.ceil(plan.max_model_len / BLOCK)
    assert math.ceil(ENCODER_TOKENS / BLOCK) == 94
    return (plan.num_blocks - 1) / blocks


@pytest.mark.parametrize("command", ["plan", "explain"])
@pytest.mark.parametrize("batch", [16384, 8192, 2048])
def test_a_running_server_holds_the_encoder_tokens_of_each_request(command, batch):
    text = words(
        command, "whisper-large-v3", "--memory", "20GiB", "--max-num-batched-tokens", batch
    )
    assert f"charges each request {batch:,} encoder tokens" in text
    assert "1,500 at most for this model, as the steady figures count them" in text
    steady = {
        "plan": r"Steady ([\d.,]+) requests",
        "explain": r"([\d.,]+) if tokens in flight are counted once",
    }
    found = re.search(steady[command], text)
    assert found is not None
    assert found[1] == floor_hundredths(running_requests(batch))


def test_the_json_has_the_encoder_tokens():
    arguments = ("plan", "whisper-large-v3", "--memory", "20GiB", "--json")
    answer = json.loads(run(*arguments).stdout)
    assert answer["encoder_tokens_per_request"] == ENCODER_TOKENS
    assert answer["config"]["encoder_tokens_per_request"] == ENCODER_TOKENS
    assert answer["steady_concurrency"] == running_requests(8192)
    assert answer["max_concurrency"] < answer["steady_concurrency"]
    other = answer_to("plan", "llama-3.1-8b", "--memory", "40GiB")
    assert other["encoder_tokens_per_request"] is None


def test_a_recorded_request_that_does_not_know_them(tmp_path):
    path = tmp_path / "request.json"
    result = run("plan", "whisper-large-v3", "--memory", "20GiB", "--write-request", path)
    assert result.exit_code == 0
    recorded = json.loads(path.read_text())
    assert recorded["config"].pop("encoder_tokens_per_request") == ENCODER_TOKENS
    assert "as the steady figures count them" in words("plan", "--request", path)
    path.write_text(json.dumps(recorded))
    text = words("plan", "--request", path)
    assert "not known here (encoder_tokens_per_request): all figures are by the formula" in text
    assert "--max-num-batched-tokens" not in text


def test_a_smaller_batch_is_no_advice_for_cross_attention():
    text = words("plan", "whisper-large-v3", "--memory", "20GiB")
    assert "Would help --kv-cache-dtype fp8" in text
    assert "--max-num-batched-tokens" not in text
    assert "--max-num-batched-tokens 2048" in words("plan", "gemma-3-27b", "--memory", "40GiB")


def test_other_models_have_no_encoder():
    assert "encoder" not in words("plan", "llama-3.1-8b", "--memory", "40GiB").lower()


def test_fp8_is_no_advice_where_vllm_refuses_it():
    arguments = ("plan", "gemma-3-12b", "--memory", "20GiB", "--device-capability")
    assert "--kv-cache-dtype fp8" not in words(*arguments, "8.0")
    assert "--kv-cache-dtype fp8" in words(*arguments, "8.9")
    refused = run(*arguments, "8.0", "--kv-cache-dtype", "fp8")
    assert refused.exit_code == 2
    assert "needs compute capability 8.9" in refused.stderr


def test_fit_says_that_its_answer_is_by_the_formula():
    fails = run("fit", "whisper-large-v3", "--memory", "20GiB", "--concurrency", "20")
    assert fails.exit_code == 1
    fits = run("fit", "whisper-large-v3", "--find", "memory", "--concurrency", "20")
    assert fits.exit_code == 0
    for result in (fails, fits):
        assert (
            "By vLLM's formula, which charges each request 8,192 encoder tokens; a running server "
            "holds 1,500 at most"
        ) in result.stderr
    assert "formula" not in fits.stdout
    other = run("fit", "llama-3.1-8b", "--find", "memory")
    assert "formula" not in other.stderr
