"""``kvplan bench`` beside the real vLLM: every side answers, alike, and vLLM is left as it was."""

import pytest
from vllm.v1.core import block_pool, kv_cache_manager, kv_cache_planning

import kvplan.vllm
from kvplan.bench import DEFAULT_WORKS, Settings, manager, run
from kvplan.bench.planning import _allocation, _require_equal
from kvplan.bench.scenarios import SCENARIOS
from kvplan.bench.vllm_sides import Sides


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("workers", [1, 9])
def test_every_side_gives_the_same_configs(name, workers):
    request = SCENARIOS[name]().request(workers)
    with Sides() as sides:
        answers = {side: call() for side, call in sides.planning(request).items()}
    assert answers.keys() == {"vllm", "drop_in", "drop_in_own", "builder_only"}
    for configs in answers.values():
        assert list(map(_allocation, configs)) == list(map(_allocation, answers["vllm"]))


def test_a_run_measures_every_side_and_leaves_vllm_alone():
    before = (
        kv_cache_planning.get_kv_cache_configs,
        block_pool.BlockPool,
        kvplan.vllm.is_installed(),
    )
    settings = Settings(
        works=DEFAULT_WORKS, scenarios=["gemma-3-27b"], workers=[1, 2], budget_s=0.01
    )
    found = run(settings)
    assert found.notes == []
    assert found.machine["vllm"]
    for row in found.rows:
        assert {"vllm", "drop_in", "native"} <= row.seconds.keys(), row
    after = (
        kv_cache_planning.get_kv_cache_configs,
        block_pool.BlockPool,
        kvplan.vllm.is_installed(),
    )
    assert after == before


def test_other_answers_end_the_run():
    request = SCENARIOS["gemma-3-27b"]().request(1)
    less = SCENARIOS["gemma-3-27b"]().request(1)
    less["workers"][0]["available_memory"] -= 1 << 30
    with Sides() as sides:
        one, other = (sides.planning(r)["vllm"]() for r in (request, less))
    with pytest.raises(AssertionError, match="worker 0 differ"):
        _require_equal(one, other, "gemma-3-27b")
    with pytest.raises(AssertionError, match="workers"):
        _require_equal(one, one + one, "gemma-3-27b")


def test_a_row_of_the_cache_manager_is_of_vllms_own_and_of_kvplans():
    with Sides() as sides:
        loads = sides.managers(2)
        stock, ours = (loads[side]._manager for side in ("vllm", "drop_in"))
        row = manager.manager_row(manager.MEAN, 2, sides, 0.01)
    assert type(stock) is kv_cache_manager.KVCacheManager
    assert type(stock.block_pool) is block_pool.BlockPool
    assert type(ours).__module__ == "kvplan.vllm.cache_manager"
    assert row.seconds.keys() == {"vllm", "drop_in", "native"}
    assert not kvplan.vllm.is_installed()
