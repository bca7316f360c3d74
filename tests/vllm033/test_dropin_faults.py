"""Whatever goes wrong around kvplan, vLLM 0.33.0 plans as it would alone, and one line says why."""

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dropin_outcome as dropin
import oracle
import pytest
import vllm
import vllm.platforms.interface
from random_models import to_request
from real_models import real_layers
from vllm.v1 import kv_cache_spec_registry
from vllm.v1.core import kv_cache_planning as planning
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

import kvplan.vllm
from kvplan.vllm import decide, plugin, report, verify
from kvplan.vllm.flow import stock_mode

PACKAGES = Path(kvplan.__file__).resolve().parents[1]  # of the kvplan under test
REQUEST = to_request(
    {"max_model_len": 100000, "auto_fit": True, "kv_cache_layout": "LBNHC"},
    [real_layers("gemma-3-27b", 4)],
    [2 << 30],
)


pytestmark = pytest.mark.usefixtures("nothing_installed")


@pytest.fixture
def warnings(caplog, monkeypatch):
    """The lines of kvplan's own logger."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    logging.getLogger("vllm.kvplan").setLevel(logging.INFO)
    caplog.set_level(logging.INFO, logger="vllm.kvplan")

    def lines(level=logging.WARNING):
        return [
            record.getMessage()
            for record in caplog.records
            if record.name == "vllm.kvplan" and record.levelno >= level
        ]

    return lines


def assert_vllms_plan(request=REQUEST, reason=None, count=2):
    """Plans like vLLM; with a reason, vLLM itself did."""
    assert dropin.difference(request) is None
    fallback = kvplan.vllm.stats()["fallback"]
    if reason is None:
        assert not fallback
    else:
        assert sum(fallback.values()) == count
        assert all(reason in text for text in fallback)


def test_an_exception_inside_kvplan(warnings):
    kvplan.vllm.install()

    def broken(*args):
        raise RuntimeError("out of luck")

    kvplan.vllm.installed_flow().planner = SimpleNamespace(global_groups=broken, plan=broken)
    assert_vllms_plan(reason="RuntimeError: out of luck")
    assert len(warnings()) == 1
    assert "out of luck" in warnings()[0]


def test_a_wrong_result_is_found_by_verification(monkeypatch, warnings, tmp_path):
    monkeypatch.setenv("KVPLAN_VERIFY", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kvplan.vllm.install()
    planner = kvplan.vllm.installed_flow().planner

    def wrong(*args):
        configs, effects = planner.plan(*args)
        configs[0].kv_cache_tensors[1].offset += 16
        return configs, effects

    kvplan.vllm.installed_flow().planner = SimpleNamespace(
        global_groups=planner.global_groups,
        plan=wrong,
        read_config=planner.read_config,
        to_native_layers=planner.to_native_layers,
    )
    assert dropin.difference(REQUEST) is None
    stats = kvplan.vllm.stats()
    assert (stats["verified"], stats["mismatches"]) == (2, 1)
    (line,) = warnings()
    assert "kv_cache_tensors[1].offset: 16, vLLM: 0" in line
    (file,) = tmp_path.glob("kvplan-mismatch-*.json")
    assert str(file) in line
    recorded = json.loads(file.read_text())
    assert recorded["config"]["max_model_len"] == 100000
    assert len(recorded["workers"][0]["layers"]) == 62


def test_verification_of_a_right_result_is_silent(monkeypatch, warnings):
    monkeypatch.setenv("KVPLAN_VERIFY", "1")
    kvplan.vllm.install()
    assert dropin.difference(REQUEST) is None
    assert kvplan.vllm.stats()["verified"] == 2
    assert kvplan.vllm.stats()["mismatches"] == 0
    assert not warnings()


def test_a_fork_with_the_known_functions_is_not_verified(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.33.1rc2")
    kvplan.vllm.install()
    assert not kvplan.vllm.installed_flow().verify
    assert_vllms_plan()


@pytest.mark.parametrize("name", ["MambaSpec", "_auto_fit_max_model_len"])
def test_a_release_with_another_function_is_verified(monkeypatch, warnings, name):
    """Whatever its version says; a fingerprint of a function that it calls is enough."""
    definitions = decide._definitions
    monkeypatch.setattr(
        decide,
        "_definitions",
        lambda source: {n: t + (n == name) * " " for n, t in definitions(source).items()},
    )
    kvplan.vllm.install()
    assert dropin.difference(REQUEST) is None
    assert kvplan.vllm.stats()["verified"] == 2
    (line,) = warnings(logging.INFO)
    assert f"{name} is not that of vLLM 0.33.0, so each plan is compared" in line
    kvplan.vllm.uninstall()
    monkeypatch.setenv("KVPLAN_VERIFY", "0")
    kvplan.vllm.install()
    assert not kvplan.vllm.installed_flow().verify


def test_a_vllm_without_the_hook(monkeypatch, warnings):
    platform = vllm.platforms.interface.Platform
    monkeypatch.delattr(platform, "get_kv_cache_config_builder_cls")
    before = planning.get_kv_cache_configs
    assert not kvplan.vllm.install()
    assert not kvplan.vllm.is_installed()
    assert planning.get_kv_cache_configs is before
    (line,) = warnings()
    assert "get_kv_cache_config_builder_cls" in line


def test_a_vllm_whose_classes_are_others(monkeypatch, warnings):
    @dataclasses.dataclass
    class KVCacheTensor:
        size: int
        where: str

    monkeypatch.setattr(oracle.interface, "KVCacheTensor", KVCacheTensor)
    assert not kvplan.vllm.install()
    (line,) = warnings()
    assert "KVCacheTensor has no layers" in line


def test_a_plugin_that_patched_a_planning_function_before(monkeypatch, warnings):
    monkeypatch.setattr(planning, "_approximate_gcd", lambda values, lower_bound=None: 1)
    kvplan.vllm.install()
    assert_vllms_plan(reason="kv_cache_planning._approximate_gcd was replaced by")
    assert len(warnings()) == 1


def test_a_plugin_that_patches_a_planning_function_later(monkeypatch, warnings):
    kvplan.vllm.install()
    groups_of_two = planning._get_kv_cache_groups_uniform_page_size

    def patched(specs):
        groups = groups_of_two(specs)
        groups[0].enable_kv_transfer = False
        return groups

    monkeypatch.setattr(planning, "_get_kv_cache_groups_uniform_page_size", patched)
    assert_vllms_plan(reason="_get_kv_cache_groups_uniform_page_size was replaced by")
    assert not dropin.plan(REQUEST).groups[0].enable_kv_transfer
    assert len(warnings()) == 1


def test_a_plugin_that_patches_a_spec_class(monkeypatch):
    kvplan.vllm.install()
    cls = oracle.interface.SlidingWindowSpec
    monkeypatch.setattr(cls, "max_memory_usage_bytes", lambda self, config: 1 << 20)
    assert_vllms_plan(reason="SlidingWindowSpec was changed: max_memory_usage_bytes")


def test_a_plugin_that_replaces_the_flow_later(monkeypatch, warnings):
    original = planning.get_kv_cache_configs
    kvplan.vllm.install()
    ours = planning.get_kv_cache_configs

    def wrapped(*args):
        return ours(*args)

    monkeypatch.setattr(planning, "get_kv_cache_configs", wrapped)
    assert_vllms_plan()
    kvplan.vllm.uninstall()
    assert planning.get_kv_cache_configs is wrapped
    assert "get_kv_cache_configs was replaced after kvplan" in warnings()[0]
    # The wrapper still calls what kvplan had put there.
    config, specs, memory = oracle.inputs(REQUEST)
    groups = planning.get_global_kv_cache_groups(config, specs)
    theirs = original(config, specs, memory, groups)
    assert verify.difference(wrapped(config, specs, memory, groups), theirs) is None


def test_an_unknown_subclass_of_a_spec(warnings):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class VendorAttentionSpec(oracle.interface.FullAttentionSpec):
        def max_memory_usage_bytes(self, vllm_config):
            return super().max_memory_usage_bytes(vllm_config) + self.page_size_bytes

    kvplan.vllm.install()
    seen = []
    for _ in range(2):
        config, specs, memory = oracle.inputs(REQUEST)
        names = list(specs[0])
        for name in names:
            fields = vars(specs[0][name]).copy()
            for unknown in ("sliding_window", "extra_retained_tokens"):
                fields.pop(unknown, None)
            specs[0][name] = VendorAttentionSpec(**fields)
        with stock_mode() if seen else contextlib.nullcontext():
            groups = planning.get_global_kv_cache_groups(config, specs)
            seen.append(planning.get_kv_cache_configs(config, specs, memory, groups))
    assert verify.difference(*seen) is None
    reasons = list(kvplan.vllm.stats()["fallback"])
    assert any("VendorAttentionSpec is not known to kvplan" in reason for reason in reasons)
    assert len(warnings()) == len(reasons)


def test_a_spec_class_that_is_registered_to_group_otherwise(monkeypatch):
    """Registering one's own class changes nothing; another group for a known class does."""
    kvplan.vllm.install()
    kv_cache_spec_registry.KVCacheSpecRegistry._ensure_registered()
    table = dict(kv_cache_spec_registry._REGISTRY_KVCACHESPEC_LIST)
    mla = oracle.interface.MLAAttentionSpec
    table[mla] = kv_cache_spec_registry.KVCacheSpecMetadata(mla, FullAttentionManager, mla)
    table[int] = table[mla]  # of another length, as after a registration
    monkeypatch.setattr(kv_cache_spec_registry, "_REGISTRY_KVCACHESPEC_LIST", table)
    assert_vllms_plan(reason="MLAAttentionSpec is registered to be grouped as MLAAttentionSpec")


def test_a_config_value_that_kvplan_does_not_know():
    request = json.loads(json.dumps(REQUEST))
    request["config"]["mamba_cache_mode"] = "sometimes"
    kvplan.vllm.install()
    assert_vllms_plan(request, reason="sometimes")


def test_hisparse_is_vllms(monkeypatch):
    kvplan.vllm.install()
    seen = []
    for stock in (False, True):
        config, specs, _ = oracle.inputs(REQUEST)
        config.attention_config.hisparse_config = object()
        try:
            with stock_mode() if stock else contextlib.nullcontext():
                planning.get_global_kv_cache_groups(config, specs)
        except Exception as error:
            seen.append((type(error), str(error)))
    assert len(seen) != 1
    assert seen[:1] == seen[1:]
    assert not kvplan.vllm.stats()["native"]


def test_a_model_keeps_its_own_groups(warnings):
    """That is by design: a note, no warning."""

    class Model:
        @staticmethod
        def get_kv_cache_groups(vllm_config, kv_cache_spec):
            return planning.create_kv_cache_group_specs(
                kv_cache_spec, [[name] for name in kv_cache_spec]
            )

    kvplan.vllm.install()
    seen = []
    for stock in (False, True):
        config, specs, memory = oracle.inputs(REQUEST)
        config.model_config.supports_kv_cache_grouping = True
        config.model_config.architectures = ["Own"]
        config.model_config.registry = SimpleNamespace(
            resolve_model_cls=lambda architectures, model_config: (Model, "Own")
        )
        with stock_mode() if stock else contextlib.nullcontext():
            groups = planning.get_global_kv_cache_groups(config, specs)
            seen.append((groups, planning.get_kv_cache_configs(config, specs, memory, groups)))
    assert verify.difference(*seen) is None
    assert len(seen[0][0]) == 62
    assert kvplan.vllm.stats()["native"] == {"get_kv_cache_configs": 1}
    assert not warnings()
    assert "declares its own" in warnings(logging.INFO)[0]


def test_a_platforms_own_builder_wins(warnings):
    class Builder(planning.DefaultKVCacheConfigBuilder):
        def get_kv_cache_config_from_groups(self, vllm_config, kv_cache_groups, num_blocks):
            config = super().get_kv_cache_config_from_groups(
                vllm_config, kv_cache_groups, num_blocks
            )
            config.kv_cache_tensors.reverse()
            return config

    kvplan.vllm.install()
    with dropin.builder(Builder()):
        assert_vllms_plan(reason="Builder")
        assert dropin.plan(REQUEST).configs[0].kv_cache_tensors[0].layers != (
            dropin.plan(REQUEST, stock=False).groups[0].layer_names
        )
    assert not warnings()


def test_the_hook_names_kvplans_builder(monkeypatch, warnings):
    monkeypatch.setattr(
        oracle.kv_cache_config_builder, "get_kv_cache_config_builder", ORIGINAL_RESOLVER
    )
    kvplan.vllm.install()
    chosen = ORIGINAL_RESOLVER(None)
    assert type(chosen).__name__ == "KvplanKVCacheConfigBuilder"
    assert_vllms_plan()
    kvplan.vllm.uninstall()
    assert type(ORIGINAL_RESOLVER(None)) is planning.DefaultKVCacheConfigBuilder


def ORIGINAL_RESOLVER(vllm_config):
    """What `get_kv_cache_config_builder` does; the oracle has replaced it."""
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    return resolve_obj_by_qualname(current_platform.get_kv_cache_config_builder_cls(vllm_config))()


def test_the_flow_can_be_left_to_vllm(monkeypatch):
    monkeypatch.setenv("KVPLAN_VLLM_FLOW", "0")
    before = planning.get_kv_cache_configs
    kvplan.vllm.install()
    assert planning.get_kv_cache_configs is before
    assert type(ORIGINAL_RESOLVER(None)).__name__ == "KvplanKVCacheConfigBuilder"


def test_compact_grouping_needs_the_flow(monkeypatch, warnings):
    monkeypatch.setenv("KVPLAN_VLLM_FLOW", "0")
    monkeypatch.setenv("KVPLAN_GROUPING", "compact")
    kvplan.vllm.install()
    (line,) = warnings()
    assert "KVPLAN_GROUPING='compact' is ignored: KVPLAN_VLLM_FLOW=0" in line
    assert_vllms_plan()


@pytest.mark.parametrize(
    ("grouping", "reason"),
    [
        ("sliced", "slices have run in vLLM 0.32.0 only, not in 0.33.0"),
        ("tight", "vLLM can run 'vllm', 'compact' and, as an experiment, 'sliced'"),
    ],
)
def test_a_grouping_that_vllm_cannot_run_is_ignored(monkeypatch, warnings, grouping, reason):
    monkeypatch.setenv("KVPLAN_GROUPING", grouping)
    kvplan.vllm.install()
    (line,) = warnings()
    assert f"KVPLAN_GROUPING='{grouping}' is ignored" in line
    assert reason in line
    assert_vllms_plan()


def test_import_sites_are_replaced_and_restored():
    before = planning.get_kv_cache_configs
    importer = type(sys)("an_importer_of_the_function")
    importer.get_kv_cache_configs = before
    sys.modules[importer.__name__] = importer
    try:
        kvplan.vllm.install()
        kvplan.vllm.install()
        assert importer.get_kv_cache_configs is planning.get_kv_cache_configs is not before
        kvplan.vllm.uninstall()
        assert importer.get_kv_cache_configs is planning.get_kv_cache_configs is before
    finally:
        del sys.modules[importer.__name__]


ORDERS = {
    "kvplan first": "import kvplan.vllm as k; k.install(); import vllm.v1.engine.core as core",
    "engine first": "import vllm.v1.engine.core as core; import kvplan.vllm as k; k.install()",
}


def python(code, path=(PACKAGES,), **environment):
    """A fresh interpreter."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} | environment
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=env,
        cwd=path[0],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("order", ORDERS)
def test_either_may_be_imported_first(order):
    done = python(
        f"{ORDERS[order]}\n"
        "print([getattr(core, n).__globals__['__name__'] for n in "
        "('get_kv_cache_configs', 'get_global_kv_cache_groups')])"
    )
    assert done.stdout.strip() == "['kvplan.vllm.flow', 'kvplan.vllm.flow']", done.stderr[-2000:]


def test_a_missing_binary_leaves_vllm_alone(tmp_path):
    """The plugin is found, but its compiled module is not there."""
    package = tmp_path / "kvplan"
    package.mkdir()
    for entry in (PACKAGES / "kvplan").iterdir():
        if not entry.name.startswith("_core") and entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    info = tmp_path / "kvplan-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvplan\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nkvplan = kvplan.vllm.plugin:register\n"
    )
    done = python(
        "from vllm.plugins import load_general_plugins; load_general_plugins()\n"
        "from vllm.v1.core import kv_cache_planning as p\n"
        "print(p.get_kv_cache_configs.__module__, p.get_kv_cache_configs.__globals__['__name__'])",
        path=(tmp_path,),
        VLLM_LOGGING_LEVEL="WARNING",
    )
    assert done.stdout.splitlines()[-1].split() == [planning.__name__] * 2, done.stderr[-2000:]
    assert (done.stdout + done.stderr).count("Failed to load plugin kvplan") == 1
    assert "kvplan's compiled module" in done.stdout + done.stderr


def plan_in_child(queue):
    plugin.register()
    outcome = dropin.plan(REQUEST)
    queue.put((outcome.configs[0].num_blocks, kvplan.vllm.stats()["native"]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_plan_with_kvplan(method):
    kvplan.vllm.install()
    report.reset()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=plan_in_child, args=(queue,))
    child.start()
    num_blocks, native = queue.get(timeout=120)
    child.join()
    assert native == {"get_global_kv_cache_groups": 1, "get_kv_cache_configs": 1}
    assert num_blocks == dropin.plan(REQUEST, stock=True).configs[0].num_blocks


def test_the_plugin_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("KVPLAN_DISABLE", "1")
    plugin.register()
    assert not kvplan.vllm.is_installed()
    monkeypatch.setenv("KVPLAN_DISABLE", "0")
    plugin.register()
    assert kvplan.vllm.is_installed()


def test_an_install_that_fails_does_not_stop_the_server(monkeypatch, warnings):
    monkeypatch.setattr(kvplan.vllm, "install", lambda: 1 / 0)
    plugin.register()
    (line,) = warnings()
    assert "vLLM plans the KV cache itself: ZeroDivisionError" in line


def test_a_recorded_request_replays_to_the_same_plan(monkeypatch, tmp_path):
    request = pytest.importorskip("kvplan.request")
    path = tmp_path / "request-%p.json"
    monkeypatch.setenv("KVPLAN_RECORD", str(path))
    kvplan.vllm.install()
    config, specs, memory = oracle.inputs(REQUEST)
    groups = planning.get_global_kv_cache_groups(config, specs)
    expected = planning.get_kv_cache_configs(config, specs, memory, groups)
    replayed = request.load(str(path).replace("%p", str(os.getpid())))
    plan = kvplan.plan(
        replayed.planning_config(), replayed.kv_cache_specs(), replayed.available_memory()
    )
    assert plan.max_model_len == config.model_config.max_model_len < 100000
    assert [oracle.describe_kv_cache_config(c) for c in plan.kv_cache_configs] == [
        oracle.describe_kv_cache_config(c) for c in expected
    ]


def test_an_unwritable_record_is_a_warning(monkeypatch, warnings, tmp_path):
    monkeypatch.setenv("KVPLAN_RECORD", str(tmp_path / "missing" / "request.json"))
    kvplan.vllm.install()
    assert_vllms_plan()
    (line,) = warnings()
    assert "was not recorded" in line


def test_compact_grouping_is_planned_on_request(monkeypatch, warnings):
    monkeypatch.setenv("KVPLAN_GROUPING", "compact")
    monkeypatch.setenv("KVPLAN_MAX_GROUPS", "many")
    kvplan.vllm.install()
    assert "KVPLAN_MAX_GROUPS='many' is ignored" in warnings()[0]
    kvplan.vllm.uninstall()
    monkeypatch.setenv("KVPLAN_MAX_GROUPS", "12")
    kvplan.vllm.install()
    compact = dropin.plan(REQUEST)
    stock = dropin.plan(REQUEST, stock=True)
    assert compact.error is None
    assert len(compact.groups) <= 12
    assert (
        compact.config["model_config"]["max_model_len"]
        >= stock.config["model_config"]["max_model_len"]
    )
    names = [name for group in compact.groups for name in group.layer_names]
    assert sorted(names) == sorted(name for g in stock.groups for name in g.layer_names)
