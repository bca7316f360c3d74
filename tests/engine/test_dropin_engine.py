"""vLLM 0.32.0's CPU engine with and without kvplan: the same plan, the same tokens.

Every start is a process of its own, with kvplan found through its plugin entry point.
"""

import json
import os
import subprocess
import sys

import pytest
from engine_process import HERE, PACKAGES, run

pytest.importorskip("vllm")

GENERATING = (
    "dense",
    "gemma3",
    "gemma2",
    "gpt_oss",  # sliding windows and attention sinks
    "llama4",
    "deepseek_v2",  # MLA
    "mamba2",
    "lfm2",
)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """A directory that makes kvplan an installed plugin, as `pip install` does."""
    site = tmp_path_factory.mktemp("site")
    info = site / "kvplan-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvplan\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nkvplan = kvplan.vllm.plugin:register\n"
    )
    return site


def start(plugin, model, *, kvplan=True, options=None, multiprocessing=False, **environment):
    """One engine: what it printed as its result, and its log."""
    path = [plugin, PACKAGES, HERE]
    return run(
        "dropin_start.py",
        model,
        json.dumps(options or {}),
        PYTHONPATH=os.pathsep.join(map(str, path)),
        VLLM_ENABLE_V1_MULTIPROCESSING="1" if multiprocessing else "0",
        VLLM_LOGGING_LEVEL="INFO",
        KVPLAN_DISABLE="0" if kvplan else "1",
        **environment,
    )


def planning_lines(log):
    """What vLLM logs about the KV cache, without time and place."""
    words = ("padding layers", "Auto-fit", "Overriding num_gpu_blocks", "KV cache size")
    return [
        line.split("] ", 1)[-1] for line in log.splitlines() if any(word in line for word in words)
    ]


def same(plugin, model, **arguments):
    """Both starts, compared; the one with kvplan."""
    ours, log = start(plugin, model, **arguments)
    theirs, stock_log = start(plugin, model, kvplan=False, **arguments)
    assert ours["plans"] == theirs["plans"]
    for key in ("tokens", "error", "max_model_len", "num_gpu_blocks"):
        assert ours.get(key) == theirs.get(key), key
    assert planning_lines(log) == planning_lines(stock_log)
    assert theirs["stats"] is None
    return ours


@pytest.mark.parametrize("model", GENERATING)
def test_same_plan_and_same_tokens(plugin, model):
    ours = same(plugin, model)
    assert len(ours["tokens"]) == 64
    assert ours["stats"]["native"] == {"get_kv_cache_configs": 1}
    assert not ours["stats"]["fallback"]


def test_an_embedding_model_without_a_cache(plugin):
    assert len(same(plugin, "bert")["tokens"]) == 64


def replay(record):
    """The plan of `kvplan plan --request`, by a process that knows nothing of the engine."""
    done = subprocess.run(
        [sys.executable, "-m", "kvplan.offline.cli", "plan", "--request", str(record), "--json"],
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_engine_in_a_process_of_its_own(plugin, tmp_path):
    record = tmp_path / "request.json"
    ours = same(plugin, "gemma3", multiprocessing=True, KVPLAN_RECORD=str(record))
    assert len(ours["tokens"]) == 64
    # Written by the engine's process, so kvplan planned there.
    assert replay(record)["num_blocks"] == ours["num_gpu_blocks"]


def test_auto_fit(plugin, tmp_path):
    record = tmp_path / "request.json"
    ours = same(
        plugin,
        "gemma3",
        options={"max_model_len": -1, "kv_cache_memory_bytes": 2 << 20},
        KVPLAN_RECORD=str(record),
    )
    assert 0 < ours["max_model_len"] < 2048
    replayed = replay(record)
    assert replayed["max_model_len"] == ours["max_model_len"]
    assert replayed["num_blocks"] == ours["num_gpu_blocks"]


def test_override(plugin):
    ours = same(plugin, "gemma3", options={"num_gpu_blocks_override": 100})
    assert ours["num_gpu_blocks"] == 100


def test_not_enough_memory(plugin):
    ours = same(plugin, "gemma3", options={"kv_cache_memory_bytes": 1 << 20})
    assert "is needed, which is larger than the available KV cache memory" in ours["error"][1]
    assert ours["stats"]["errors"] == {"get_kv_cache_configs": 1}


def test_verification_agrees(plugin):
    ours, _ = start(plugin, "gemma3", KVPLAN_VERIFY="1")
    assert (ours["stats"]["verified"], ours["stats"]["mismatches"]) == (1, 0)


def test_compact_grouping_runs(plugin, tmp_path):
    record = tmp_path / "request.json"
    compact, _ = start(plugin, "gemma3", KVPLAN_GROUPING="compact", KVPLAN_RECORD=str(record))
    stock, _ = start(plugin, "gemma3", kvplan=False)
    assert compact["tokens"] == stock["tokens"]
    assert not compact["stats"]["fallback"]
    # The sizes that the CPU's attention backend takes.
    config = json.loads(record.read_text())["config"]
    assert config["attention_kernel_block_sizes"] == [{"multiple_of": 32}]
    assert replay(record)["num_blocks"] == compact["num_gpu_blocks"]
