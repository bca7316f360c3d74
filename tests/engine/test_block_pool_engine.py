"""vLLM's CPU engine as it is, with kvplan's pool, and with its manager: same tokens, same hits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvplan

vllm = pytest.importorskip("vllm")

HERE = Path(__file__).parent
NUM_BLOCKS = 500


def serve(which, tmp_path):
    packages = Path(kvplan.__file__).parents[1]  # of the kvplan under test
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "pool_load.py"), which, str(tmp_path / which)],
        capture_output=True,
        text=True,
        timeout=600,
        # The plugin stays out, so that "vllm" is vLLM alone.
        env={**os.environ, "PYTHONPATH": path, "KVPLAN_DISABLE": "1"},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def test_same_tokens_hits_and_free_blocks(tmp_path):
    theirs = serve("vllm", tmp_path)
    ours = serve("kvplan", tmp_path)
    with_manager = serve("manager", tmp_path)
    assert theirs.pop("pool") == "vllm.v1.core.block_pool"
    assert ours.pop("pool") == "kvplan.vllm.block_pool"
    assert with_manager.pop("pool") == "kvplan.vllm.block_pool"
    assert with_manager.pop("manager") == "kvplan.vllm.cache_manager"
    assert theirs.pop("manager") == ours.pop("manager") == "vllm.v1.core.kv_cache_manager"
    assert ours == theirs
    # The native manager stores blocks without a call that could be counted.
    assert with_manager == theirs | {"stored": 0}
    assert sum(ours["hits"]) > 0
    assert ours["usage"] == 0.0
    assert len(ours["free"]) == NUM_BLOCKS - 1
    assert ours["reset"]
    assert ours["cached_after_reset"] == 0
    # Blocks lose their hashes only by eviction.
    assert ours["stored"] > ours["hashed"] > 0
