"""vLLM's CPU engine as it is, with kvplan's pool, and with its manager: same tokens, same hits."""

import pytest
from engine_process import run

vllm = pytest.importorskip("vllm")

NUM_BLOCKS = 500


def serve(which, tmp_path):
    return run("pool_load.py", which, tmp_path / which)[0]


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
