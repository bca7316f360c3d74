"""vLLM 0.32.0's CPU engine makes the same tokens with its own plan and with slices.

The pool is so small that running requests are preempted and cached blocks evicted. Each model runs
in a process of its own (sliced_load.py), with either plan and with prefix caching off and on.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_dropin_engine import plugin, start  # noqa: F401

import kvplan

pytest.importorskip("vllm")

HERE = Path(__file__).parent
PACKAGES = Path(kvplan.__file__).parents[1]  # of the kvplan under test

# Model, the layers of vLLM's groups and of kvplan's, the slices, and the tokens that these bytes
# hold beyond vLLM's, in percent: less where vLLM's plan has no padding, since blocks are wider.
CASES = [
    ("gemma3_style", [1, 2, 2, 2, 2, 2], [9, 2], [1, 4], 5),
    ("odd_layer", [1] * 11, [9, 2], [1, 4], -4),
    ("llama4", [2, 2, 2, 2], [6, 2], [1, 3], -2),
]


def serve(model):
    path = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        # The plugin stays out, so that "vllm" is vLLM alone.
        "KVPLAN_DISABLE": "1",
        # The runner walks sets of request names, so that names and their hashes order the rows of
        # a batch, and with them the last bits of a sum: two tokens nearly as likely may swap.
        "PYTHONHASHSEED": "0",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    }
    done = subprocess.run(
        [sys.executable, HERE / "sliced_load.py", model],
        capture_output=True,
        text=True,
        env=env,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


@pytest.mark.parametrize(("model", "vllm", "sliced", "slices", "gain"), CASES)
def test_same_tokens(model, vllm, sliced, slices, gain):
    results = serve(model)
    for name, run in results.items():
        grouping, caching = name.split()
        stock = results[f"vllm {caching}"]
        assert len(run["tokens"]) == 64
        assert run["tokens"] == stock["tokens"], name
        assert run["preempted"] > 0, name
        assert run["usage"] == 0.0
        assert run["free"] == run["num_blocks"] - 1
        assert run["reset"]
        assert (run["hits"] > 0) == (caching == "True"), name
        if caching == "True":
            assert run["stored"] > run["hashed"] > 0, "blocks lose their hashes only by eviction"
        if grouping == "sliced":
            assert run["groups"] == sliced
            assert run["slices"] == slices
            assert run["capacity"] >= stock["capacity"] * (1 + gain / 100)
        else:
            assert sorted(run["groups"]) == vllm
    assert len({tuple(t) for t in results["vllm False"]["tokens"]}) > 32


QUICK = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def test_engine_and_two_workers_in_processes_of_their_own(plugin):  # noqa: F811
    """The workers get the slices with the config, and kvplan as a plugin."""
    both = {"multiprocessing": True, "options": {"tensor_parallel_size": 2}, **QUICK}
    sliced, log = start(plugin, "gemma3", KVPLAN_GROUPING="sliced", **both)
    stock, _ = start(plugin, "gemma3", kvplan=False, **both)
    assert "Sliced grouping: 2 groups" in log
    assert "is ignored" not in log
    assert sliced["tokens"] == stock["tokens"]
    assert 0 < sliced["num_gpu_blocks"] < stock["num_gpu_blocks"]


def test_what_cannot_run_gets_vllms_plan(plugin):  # noqa: F811
    aside, log = start(plugin, "lfm2", KVPLAN_GROUPING="sliced", KVPLAN_VERIFY="1", **QUICK)
    (line,) = [line for line in log.splitlines() if "KVPLAN_GROUPING='sliced' is ignored" in line]
    assert "keeps a Mamba state" in line
    assert (aside["stats"]["verified"], aside["stats"]["mismatches"]) == (1, 0)
    assert len(aside["tokens"]) == 64
