"""vLLM 0.33.0's planning functions with kvplan in them do what they do without it.

`KVPLAN_FUZZ_MODELS` sets how many random models are compared (default 2000),
`KVPLAN_FUZZ_SEED` where to start.
"""

import dataclasses
import json
import multiprocessing
import os
import pickle
from types import SimpleNamespace

import dropin_outcome as dropin
import oracle
import pytest
from random_models import LAYOUTS, random_request, to_request
from real_models import REAL_MODELS, real_layers
from vllm.v1.core import kv_cache_planning as planning

import kvplan.vllm
from kvplan import _core
from kvplan.vllm import conversion, report, verify
from kvplan.vllm.flow import stock_mode

MODELS = int(os.environ.get("KVPLAN_FUZZ_MODELS", "2000"))
FIRST_SEED = int(os.environ.get("KVPLAN_FUZZ_SEED", "0"))
CHUNK = 100


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Put kvplan into vLLM, with empty counts."""
    monkeypatch.setenv("KVPLAN_BLOCK_POOL", "0")
    report.reset()
    assert kvplan.vllm.install()
    yield kvplan.vllm.installed_flow()
    kvplan.vllm.uninstall()


def real_requests():
    for name in sorted(REAL_MODELS):
        for layout in LAYOUTS:
            layers = real_layers(name, 4)
            half = len(layers) // 2
            for workers in ([layers], [layers[:half], layers[half:]] * 2):
                for extra in (
                    {},
                    {"auto_fit": True, "max_model_len": 10**7},
                    {"num_gpu_blocks_override": 100000},
                    {"disable_hybrid_kv_cache_manager": True},
                ):
                    config = {"max_model_len": 131072, "kv_cache_layout": layout} | extra
                    memory = [(20 + w) << 30 for w in range(len(workers))]
                    yield to_request(config, workers, memory) | {"model": f"{name} {layout}"}


def compare_seeds(first):
    """`(seed, difference, fallback reasons)` of a chunk."""
    found = []
    for seed in range(first, min(first + CHUNK, FIRST_SEED + MODELS)):
        report.reset()
        request = random_request(seed)
        difference = dropin.difference(request)
        fallback = [] if "HiSparse" in json.dumps(request["specs"]) else report.stats()["fallback"]
        if difference or fallback:
            found.append((seed, difference, list(fallback)))
    return found


def test_random_models_plan_alike():
    """Results, types, aliasing, errors, log lines and the config afterwards."""
    chunks = range(FIRST_SEED, FIRST_SEED + MODELS, CHUNK)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        found = sorted(row for rows in pool.imap_unordered(compare_seeds, chunks) for row in rows)
    differing = [row for row in found if row[1]]
    shown = "\n\n".join(
        f"seed {seed}: {difference}\n{json.dumps(random_request(seed))}"
        for seed, difference, _ in differing[:3]
    )
    assert not differing, f"{len(differing)} of {MODELS} differ\n{shown}"
    # vLLM answers instead only where a block is too small for a state, which kvplan refuses.
    assert all("holds no state" in reason for row in found for reason in row[2])
    assert len(found) <= max(1, MODELS // 100)


def test_real_models_plan_alike():
    for request in real_requests():
        assert dropin.difference(request) is None, request["model"]
    assert report.stats()["native"]["get_kv_cache_configs"] > 0
    assert not report.stats()["fallback"]


@pytest.mark.parametrize("changes", [{}, {"auto_fit": True}, {"num_gpu_blocks_override": 5000}])
def test_a_rank_without_kv_layers_is_what_vllm_makes_of_it(changes):
    """A stage whose layers share another's cache, or have no attention: vLLM's own answer."""
    answers = set()
    for name in sorted(REAL_MODELS):
        layers = real_layers(name, 4)
        for workers in ([layers, {}], [{}, layers], [layers, {}, layers, {}], [{}, {}]):
            config = {"max_model_len": 131072, "kv_cache_layout": "LBNHC"} | changes
            config["pipeline_parallel_size"] = len(workers)
            request = to_request(config, workers, [30 << 30] * len(workers))
            assert dropin.difference(request) is None, (name, [len(w) for w in workers])
            answers.add((dropin.plan(request, stock=True).error or ("planned",))[0])
    # With nothing on any rank it is planned; beside others vLLM fails in several ways.
    assert answers >= {"planned", "ZeroDivisionError"}


def test_the_builder_alone_plans_alike(installed):
    """The flow of vLLM around kvplan's builder; no block is placed to see how large it is."""
    from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

    flow = SimpleNamespace(**installed.stock)
    with dropin.builder(KvplanKVCacheConfigBuilder()):
        for seed in range(300):
            request = random_request(seed)
            assert dropin.difference(request, flow) is None, request["model"]
    counts = report.stats()["native"]
    assert counts["get_kv_cache_groups"] > 100
    # One placement a worker and none for probes: far fewer than the steps of the fit loops.
    assert counts["get_kv_cache_config_from_groups"] < 1500


def test_the_builder_groups_one_workers_layers_in_place(installed):
    """As the worker's profiling calls it: the caller's dict is changed and kept."""
    from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

    changed = kept = 0
    for seed in range(400):
        request = random_request(seed)
        if seed % 2:
            request["config"]["disable_hybrid_kv_cache_manager"] = True
        seen = []
        for stock in (False, True):
            config, specs, _ = oracle.inputs(request)
            before = dict(specs[0])
            builder = KvplanKVCacheConfigBuilder()
            if stock:
                builder = planning.DefaultKVCacheConfigBuilder()
            try:
                groups = planning.get_kv_cache_groups_from_builder(builder, config, specs[0])
                error = None
            except Exception as e:
                groups, error = None, (type(e).__name__, str(e))
            keeps = bool(groups) and any(
                getattr(g.kv_cache_spec, "kv_cache_specs", None) is specs[0] for g in groups
            )
            seen.append((groups, error, specs[0] if error is None else None, keeps))
            changed += before != specs[0]
            kept += keeps
        assert verify.difference(*seen) is None, request["model"]
    assert changed > 20
    assert kept > 20


def sized_by(builder, request):
    """What vLLM's functions make of a builder on a request's first worker, in a row."""
    config, specs, memory = oracle.inputs(request)
    try:
        groups = planning.get_kv_cache_groups(config, dict(specs[0]))
    except Exception:
        return None
    calls = (
        ("_pool_bytes_per_block_from_builder", groups),
        ("_max_memory_usage_bytes_from_groups", groups),
        ("_estimate_max_model_len_from_groups", groups, memory[0]),
        ("_auto_fit_max_model_len", [groups], [memory[0]]),
    )
    answers = []
    for name, *arguments in calls:
        try:
            answers.append(getattr(planning, name)(builder, config, *arguments))
        except Exception as e:
            answers.append((type(e).__name__, str(e)))
    return answers, dropin.plain(config)


def test_vllms_functions_size_alike_with_either_builder():
    from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

    answered = 0
    for seed in range(150):
        request = random_request(seed)
        ours = sized_by(KvplanKVCacheConfigBuilder(), request)
        with stock_mode():
            theirs = sized_by(planning.DefaultKVCacheConfigBuilder(), request)
        assert verify.difference(ours, theirs) is None, request["model"]
        answered += ours is not None and isinstance(ours[0][1], int)
    assert answered > 20


def test_specs_survive_the_way_into_kvplan_and_back(installed):
    kinds = set()
    for seed in range(400):
        request = random_request(seed)
        try:
            specs = [oracle.make_spec(s) for s in request["specs"]]
        except Exception:
            continue
        for spec in specs:
            if "HiSparse" in type(spec).__name__:
                continue
            native = installed.planner.to_native(spec)
            assert verify.difference(installed.planner.from_native(native), spec) is None
            kinds.add(type(spec).__name__)
    assert len(kinds) == 12


def test_distinct_objects_of_equal_specs_are_one_spec():
    """Specs arrive from each worker process as objects of their own."""
    request = random_request(12)
    request["workers"] = [request["workers"][0]] * 2
    config, specs, memory = oracle.inputs(request)
    specs[1] = {name: dataclasses.replace(spec) for name, spec in specs[1].items()}
    groups = planning.get_global_kv_cache_groups(config, specs)
    configs = planning.get_kv_cache_configs(config, specs, memory, groups)
    with stock_mode():
        expected = planning.get_kv_cache_configs(config, specs, memory, groups)
    assert verify.difference(configs, expected) is None


def plans_alike(config, specs, memory, groups):
    """Plan with and without kvplan; how often kvplan answered."""
    report.reset()
    length = config.model_config.max_model_len
    configs = planning.get_kv_cache_configs(config, specs, memory, groups)
    config.model_config.max_model_len = length
    with stock_mode():
        expected = planning.get_kv_cache_configs(config, specs, memory, groups)
    assert verify.difference(configs, expected) is None
    assert dropin.shared_objects(groups, configs) == dropin.shared_objects(groups, expected)
    return report.stats()["native"].get("get_kv_cache_configs", 0)


def from_another_process(worker, seed):
    """Nothing of a spec, not even a number or a name, is an object of another's."""
    return pickle.loads(pickle.dumps(worker))


def with_own_keys(worker, seed):
    """Of some, the fields lie in another order, in a dictionary that shares nothing with others."""
    for i, spec in enumerate(worker.values()):
        if i % 3 != seed % 3:
            vars(spec)["later"] = None
            del vars(spec)["later"]
            fields = dict(reversed(list(vars(spec).items())))
            vars(spec).clear()
            vars(spec).update(fields)
    return worker


@pytest.mark.parametrize("kept", [from_another_process, with_own_keys])
def test_specs_plan_alike_however_python_keeps_them(kept):
    answered = 0
    for seed in range(60):
        request = random_request(seed)
        request["workers"] = [request["workers"][0]] * 3
        try:
            config, specs, memory = oracle.inputs(request)
            own = [{n: dataclasses.replace(s) for n, s in worker.items()} for worker in specs]
            own = [kept(worker, seed) for worker in own]
            with stock_mode():
                expected = planning.get_global_kv_cache_groups(config, own)
                planning.get_kv_cache_configs(config, own, memory, expected)
        except Exception:
            continue  # vLLM refuses the model, or it does not fit
        config, _, memory = oracle.inputs(request)
        groups = planning.get_global_kv_cache_groups(config, own)
        assert verify.difference(groups, expected) is None
        answered += plans_alike(config, own, memory, groups)
    assert answered > 20


def test_equal_layers_but_one():
    """The one layer with another value in one field is never taken for the others."""
    layers = real_layers("gemma-3-27b", 4)
    request = to_request({"max_model_len": 4096}, [layers], [60 << 30])
    config, specs, _ = oracle.inputs(request)
    names = list(specs[0])
    fields = [f.name for f in dataclasses.fields(specs[0][names[0]])]
    differing = 0
    for name in fields:
        own = {n: dataclasses.replace(s) for n, s in specs[0].items()}
        value = getattr(own[names[1]], name)
        if type(value) is not int:
            continue
        object.__setattr__(own[names[1]], name, value * 2)
        with stock_mode():
            try:
                expected = planning.get_global_kv_cache_groups(config, [own])
            except Exception:
                continue
        groups = planning.get_global_kv_cache_groups(config, [own])
        assert verify.difference(groups, expected) is None, name
        differing += len(groups) > 1 or "UniformType" in type(groups[0].kv_cache_spec).__name__
    assert differing > 1


def test_given_groups_only_the_names_of_a_workers_layers_count():
    """Once the groups are there, vLLM looks at no spec of a worker."""
    layers = real_layers("gemma-3-27b", 4)
    half = len(layers) // 2
    request = to_request(
        {"max_model_len": 4096}, [layers[:half], layers[half:]], [60 << 30, 61 << 30]
    )
    config, specs, memory = oracle.inputs(request)
    groups = planning.get_global_kv_cache_groups(config, specs)
    names_only = [dict.fromkeys(worker, object()) for worker in specs]
    assert plans_alike(config, names_only, memory, groups) == 1


def test_a_field_that_only_this_vllm_knows_is_read():
    """Two specs that differ in `is_draft` alone are equal in vLLM, and stay apart here."""
    layers = real_layers("llama-3.1-70b", 8)
    layers = [*layers[:-1], (layers[-1][0], layers[-1][1] | {"is_draft": True})]
    config = {
        "max_model_len": 4096,
        "speculative_method": "eagle3",
        "use_eagle": True,
        "use_eagle_block_drop": True,
    }
    assert dropin.difference(to_request(config, [layers], [60 << 30])) is None


def test_the_native_module_names_every_field_of_vllms_classes():
    for name, cls in conversion.spec_classes(oracle.interface).items():
        fields = [field.name for field in dataclasses.fields(cls)]
        assert sorted(_core.spec_field_names(name)) == sorted(fields)
