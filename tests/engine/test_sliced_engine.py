"""vLLM 0.32.0's CPU engine makes the same tokens with its own plan and with slices.

The pool is so small that running requests are preempted and cached blocks evicted. Each model runs
in a process of its own (sliced_load.py), with either plan and with prefix caching off and on; and
with slices once more where every block that no request holds is filled with a large number.
"""

import pytest
from engine_process import run
from test_dropin_engine import plugin, start  # noqa: F401

pytest.importorskip("vllm")

# Model, the layers of vLLM's groups and of kvplan's, the slices, and the tokens that these bytes
# hold beyond vLLM's, in percent: less where vLLM's plan has no padding, since blocks are wider.
CASES = [
    ("gemma3_style", [1, 2, 2, 2, 2, 2], [9, 2], [1, 4], 5),
    ("odd_layer", [1] * 11, [9, 2], [1, 4], -4),
    ("llama4", [2, 2, 2, 2], [6, 2], [1, 3], -2),
]


# The runner walks sets of request names, so that names and their hashes order the rows of a batch,
# and with them the last bits of a sum: two tokens nearly as likely may swap. So does the number of
# threads that a sum is split over.
FIXED_ORDER = {"PYTHONHASHSEED": "0", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1"}


@pytest.mark.parametrize(("model", "vllm", "sliced", "slices", "gain"), CASES)
def test_same_tokens(model, vllm, sliced, slices, gain):
    results, _ = run("sliced_load.py", model, **FIXED_ORDER)
    for name, made in results.items():
        grouping, caching = name.split()
        stock = results[f"vllm {caching}"]
        assert len(made["tokens"]) == 64
        assert made["tokens"] == stock["tokens"], name
        assert made["preempted"] > 0, name
        assert made["usage"] == 0.0
        assert made["free"] == made["num_blocks"] - 1
        assert made["reset"]
        assert (made["hits"] > 0) == (caching == "True"), name
        if grouping == "vllm":
            assert sorted(made["groups"]) == vllm
            if caching == "True":
                assert made["stored"] > made["hashed"] > 0, "hashes are lost only by eviction"
        else:
            assert made["groups"] == sliced
            assert made["slices"] == slices
            assert made["capacity"] >= stock["capacity"] * (1 + gain / 100)
    assert len({tuple(t) for t in results["vllm False"]["tokens"]}) > 32


QUICK = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


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
