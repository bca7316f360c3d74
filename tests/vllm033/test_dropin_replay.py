"""What vLLM is given through the drop-in is what the command line plans from its recording."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dropin_outcome as dropin
import oracle
import pytest
import reported_cases as cases
from random_models import to_request
from real_models import real_layers
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core import kv_cache_planning as planning

import kvplan.vllm
from kvplan.vllm import grouping

PACKAGES = Path(kvplan.__file__).resolve().parents[1]  # of the kvplan under test

REQUESTS = {
    "auto-fit": to_request(
        {"max_model_len": 1 << 17, "auto_fit": True, "kv_cache_layout": "LBNHC"},
        [real_layers("gemma-3-27b", 4)],
        [2 << 30],
    ),
    "pipeline stages of unequal memory": cases.uneven_stages(
        (16, 32), [int(3.18 * cases.GIB), int(6.37 * cases.GIB)], auto_fit=True
    ),
    "mixed pages": cases.deepseek_v4_1_flash(),
    "states and an override": cases.nemotron_3_nano()
    | {"config": {"max_model_len": 131072, "num_gpu_blocks_override": 2500}},
}


pytestmark = pytest.mark.usefixtures("nothing_installed")


def replay(path):
    """The plan of `kvplan plan --request`, by an interpreter that cannot import vLLM or torch."""
    program = (
        "import runpy, sys\n"
        "sys.modules['vllm'] = sys.modules['torch'] = None\n"
        "sys.argv[0] = 'kvplan'\n"
        "runpy.run_module('kvplan.offline.cli', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", "--request", str(path), "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def plan_and_record(monkeypatch, path, request, layers=None):
    """Objects of vLLM for a request, planned with kvplan in vLLM and recorded."""
    monkeypatch.setenv("KVPLAN_RECORD", str(path))
    kvplan.vllm.install()
    config, specs, memory = oracle.inputs(request)
    if layers is not None:
        config.compilation_config = SimpleNamespace(static_forward_context=layers)
    groups = planning.get_global_kv_cache_groups(config, specs)
    configs = planning.get_kv_cache_configs(config, specs, memory, groups)
    assert not kvplan.vllm.stats()["fallback"]
    return config, groups, configs


def assert_replayed(answer, config, groups, configs):
    assert answer["max_model_len"] == config.model_config.max_model_len
    assert answer["num_blocks"] == configs[0].num_blocks
    assert [g["layer_names"] for g in answer["groups"]] == [g.layer_names for g in groups]
    assert [g["block_size"] for g in answer["groups"]] == [
        g.kv_cache_spec.block_size for g in groups
    ]
    workers = answer["placement"]["workers"]
    for worker, planned in zip(workers, configs, strict=True):
        placed = workers[worker["same_as"]] if worker.get("same_as") is not None else worker
        assert [
            (t["size"], t["layers"], t["layer_stride"], t["block_stride"], t.get("offset", 0))
            for t in placed["tensors"]
        ] == [
            (t.size, t.layers, t.layer_stride, t.block_stride, t.offset)
            for t in planned.kv_cache_tensors
        ]


@pytest.mark.parametrize("name", REQUESTS)
def test_the_command_line_plans_what_was_recorded(monkeypatch, tmp_path, name):
    path = tmp_path / "request.json"
    planned = plan_and_record(monkeypatch, path, REQUESTS[name])
    assert_replayed(replay(path), *planned)


class Layer(AttentionLayerBase):
    """A layer of a model in this process, whose backend takes blocks of the given sizes."""

    def __init__(self, sizes):
        self.sizes = sizes

    def get_attn_backend(self):
        return SimpleNamespace(get_supported_kernel_block_sizes=lambda spec=None: self.sizes)

    def get_kv_cache_spec(self, vllm_config):
        raise NotImplementedError


GEMMA = cases.gemma_4_26b()
NAMES = [name for name, _ in GEMMA["workers"][0]["layers"]]


@pytest.mark.parametrize(
    ("sizes", "block_size"),
    [
        ([MultipleOf(16)], 32),  # the smaller page grows before it is padded
        ([16, 32], 32),
        ([16], 16),
        ([MultipleOf(64)], 16),
        (None, 16),  # the layers are in other processes
    ],
)
def test_compact_grouping_enlarges_blocks_that_the_backend_takes(
    monkeypatch, tmp_path, sizes, block_size
):
    monkeypatch.setenv("KVPLAN_GROUPING", "compact")
    path = tmp_path / "request.json"
    layers = {} if sizes is None else {name: Layer(sizes) for name in NAMES}
    planned = plan_and_record(monkeypatch, path, GEMMA, layers)
    full = {
        g.kv_cache_spec.block_size
        for g in planned[1]
        if type(g.kv_cache_spec).__name__ == "FullAttentionSpec"
    }
    assert full == {block_size}
    # The recording knows the sizes, too.
    assert_replayed(replay(path), *planned)


def test_the_sizes_of_several_backends_are_those_that_all_take():
    specs = oracle.inputs(GEMMA)[1]
    layers = {name: Layer([MultipleOf(16)]) for name in NAMES}
    layers[NAMES[3]] = Layer([16, 32, 48, 100])
    layers[NAMES[-1]] = Layer([MultipleOf(32), 48])
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    found = grouping.kernel_block_sizes(config, specs)
    assert found["attention_kernel_block_sizes"] == (32, 48)
    assert found["mla_kernel_block_sizes"] == (kvplan.specs.MultipleOf(1),)
    del layers[NAMES[7]]
    found = grouping.kernel_block_sizes(config, specs)
    assert found["attention_kernel_block_sizes"] == found["mla_kernel_block_sizes"] == ()


def test_mla_layers_have_sizes_of_their_own():
    request = cases.deepseek_v4_1_flash()
    specs = oracle.inputs(request)[1]
    layers = {name: Layer([64]) for name in specs[0]}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    found = grouping.kernel_block_sizes(config, specs)
    assert found["mla_kernel_block_sizes"] == (64,)
    assert found["attention_kernel_block_sizes"] == (kvplan.specs.MultipleOf(1),)


def test_vllms_own_grouping_asks_no_layer(monkeypatch, tmp_path):
    class Silent(Layer):
        def get_attn_backend(self):
            raise AssertionError("nobody needs the backend")

    layers = {name: Silent([]) for name in NAMES}
    plan_and_record(monkeypatch, tmp_path / "request.json", GEMMA, layers)
    assert dropin.difference(GEMMA) is None
