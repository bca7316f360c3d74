"""vLLM's real scheduler with vLLM's manager and pool beside the same with kvplan's; 0.32's, too."""

import os

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler")

import scheduler_load

NUM_RUNS = int(os.environ.get("KVPLAN_SCHEDULER_RUNS", "5"))  # of each kind


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return scheduler_load.model_config(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kind", scheduler_load.KINDS)
def test_same_schedule(kind, model):
    scheduler_load.compare_kind(kind, model, NUM_RUNS)
