"""vLLM 0.32.0's planning function with kvplan in it does what it does without it.

`KVPLAN_FUZZ_MODELS` sets how many random models are compared (default 2000),
`KVPLAN_FUZZ_SEED` where to start. The models are those of the tests against 0.33.0.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("vllm")
sys.path.append(str(Path(__file__).parents[1] / "vllm033"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import dropin_outcome as dropin
    import oracle
    from random_models import random_request

import kvplan.vllm
from kvplan.vllm import report

MODELS = int(os.environ.get("KVPLAN_FUZZ_MODELS", "2000"))
FIRST_SEED = int(os.environ.get("KVPLAN_FUZZ_SEED", "0"))
LATER_FIELDS = ("is_draft", "topk_buffer_width")


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setenv("KVPLAN_BLOCK_POOL", "0")
    report.reset()
    assert kvplan.vllm.install()
    yield
    kvplan.vllm.uninstall()


def request_for_032(seed):
    """Without the fields that came later, and now and then with a drafter that leaves a mark."""
    request = random_request(seed)
    for spec in request["specs"]:
        for field in LATER_FIELDS:
            spec.pop(field, None)
        if spec.get("kv_quant_mode", 0) > 11:  # 0.33's
            spec["kv_quant_mode"] = 11
        if seed % 7 == 0 and spec["kind"] == "MLAAttentionSpec":
            spec["non_causal_multi_token_decode"] = True
    if seed % 5 == 0:
        request["config"]["model_type"] = "deepseek_v4"
    return request


def test_it_is_a_version_before_the_builder():
    assert kvplan.vllm.installed_flow().vllm.before_033


def test_random_models_plan_alike():
    differing = []
    flagged = 0
    for seed in range(FIRST_SEED, FIRST_SEED + MODELS):
        request = request_for_032(seed)
        try:
            oracle.inputs(request)
        except (ValueError, AssertionError):
            continue  # vLLM's classes refuse the specs
        difference = dropin.difference(request)
        if difference:
            differing.append(f"seed {seed}: {difference}\n{json.dumps(request)}")
        configs = dropin.plan(request).configs or ()
        flagged += any(g.is_eagle_group for c in configs for g in c.kv_cache_groups)
    assert not differing, f"{len(differing)} of {MODELS} differ\n" + "\n\n".join(differing[:3])
    assert flagged > MODELS // 50
    stats = report.stats()
    # The generator also draws specs of HiSparse, which vLLM plans.
    assert sum(stats["fallback"].values()) < MODELS // 50
    assert stats["native"]["get_kv_cache_configs"] > MODELS
    assert oracle.kv_cache_planning.get_kv_cache_configs.__globals__["__name__"] == (
        "kvplan.vllm.flow"
    )
