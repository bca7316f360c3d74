"""Spec classes of plugins, in vLLM 0.33.0 with kvplan in it: planned exactly, or left to vLLM.

`KVPLAN_FUZZ_MODELS` sets how many random models are compared (default 2000),
`KVPLAN_FUZZ_SEED` where to start.
"""

import abc
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import multiprocessing
import os
import subprocess
import sys
from collections import Counter

import dropin_outcome as dropin
import oracle
import pytest
from plugin_specs import as_plugin, in_some_layers, is_broken, plugin_class
from random_models import random_request, to_request
from real_models import deepseek_v3_2, gemma_3_27b, jamba_1_5_large
from vllm.v1 import kv_cache_spec_registry as registry
from vllm.v1.core import kv_cache_planning as planning
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

import kvplan.vllm
from kvplan.vllm import conversion, installation, report, verify

MODELS = int(os.environ.get("KVPLAN_FUZZ_MODELS", "2000"))
FIRST_SEED = int(os.environ.get("KVPLAN_FUZZ_SEED", "0"))
CHUNK = 100

interface = oracle.interface
Full, Sliding = interface.FullAttentionSpec, interface.SlidingWindowSpec

pytestmark = pytest.mark.usefixtures("nothing_installed")


def request_of(layers, **config):
    config = {"max_model_len": 4096, "kv_cache_layout": "BLHNC"} | config
    return to_request(config, [layers], [40 << 30])


GEMMA = request_of(gemma_3_27b(tp=4, block_size=16))


@pytest.fixture
def warnings(caplog, monkeypatch):
    """The lines of kvplan's own logger."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="vllm.kvplan")

    def lines():
        return [r.getMessage() for r in caplog.records if r.name == "vllm.kvplan"]

    return lines


@pytest.fixture
def registered(monkeypatch):
    """Registers classes until the test is over."""
    registry.KVCacheSpecRegistry._ensure_registered()
    table = dict(registry._REGISTRY_KVCACHESPEC_LIST)
    monkeypatch.setattr(registry, "_REGISTRY_KVCACHESPEC_LIST", table)
    return registry.register_kv_cache_spec


def name_of(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def plan_with(monkeypatch, request, cls, *, stock=False):
    """The outcome where every spec that `cls` can stand for is one of its objects."""
    base = next(b for b in cls.__mro__[1:] if b in KNOWN)
    inputs = oracle.inputs

    def with_plugin(described):
        config, specs, memory = inputs(described)
        made = {}

        def one(spec):
            if type(spec) is not base:
                return spec
            return made.setdefault(id(spec), as_plugin(spec, cls))

        return config, [{n: one(s) for n, s in layers.items()} for layers in specs], memory

    with monkeypatch.context() as patch:
        patch.setattr(oracle, "inputs", with_plugin)
        return dropin.plan(request, stock=stock)


KNOWN = {getattr(interface, n) for n in dir(interface) if n.endswith("Spec")}
KNOWN -= {interface.KVCacheSpec, interface.AttentionSpec}


# --- random models -------------------------------------------------------------------------------


def compare_seeds(first):
    """`(seed, difference, stats)` of what is not as it should be, and what was planned."""
    found, counts = [], Counter()
    for seed in range(first, min(first + CHUNK, FIRST_SEED + MODELS)):
        report.reset()
        request = random_request(seed)
        with in_some_layers(seed):
            difference = dropin.difference(request)
        stats = report.stats()
        fallback = [reason for reason in stats["fallback"] if not is_broken(reason)]
        hisparse = "HiSparse" in json.dumps(request["specs"])
        if difference or stats["mismatches"] or (fallback and not hisparse):
            found.append((seed, difference, stats))
        counts.update(stats["native"])
        counts["verified"] += stats["verified"]
        counts["errors"] += sum(stats["errors"].values())
    return found, counts


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_random_models_with_plugin_classes_plan_alike():
    """On trial and afterwards: results, types, aliasing, errors, log lines and the config."""
    kvplan.vllm.install()
    counts = Counter()
    differing = []
    chunks = range(FIRST_SEED, FIRST_SEED + MODELS, CHUNK)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for found, counted in pool.imap_unordered(compare_seeds, chunks):
            differing += found
            counts += counted
    differing.sort(key=lambda row: row[0])
    assert not differing, f"{len(differing)} of {MODELS}: {differing[:3]}"
    # Many calls are kvplan's own, past the trial.
    calls = counts["get_kv_cache_configs"] + counts["get_global_kv_cache_groups"]
    assert 0 < counts["verified"] < calls - MODELS // 4


# --- what qualifies ------------------------------------------------------------------------------

MODELS_OF = {
    "FullAttentionSpec": gemma_3_27b,
    "SlidingWindowSpec": gemma_3_27b,
    "MLAAttentionSpec": deepseek_v3_2,
    "MambaSpec": jamba_1_5_large,
}


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
@pytest.mark.parametrize("kind", MODELS_OF)
def test_other_page_sizes_are_planned(monkeypatch, warnings, kind, layout):
    """The first plan is compared; the second is kvplan's own and equal in everything."""
    kvplan.vllm.install()
    cls = plugin_class(kind, "Twice")
    request = request_of(MODELS_OF[kind](tp=4, block_size=16), kv_cache_layout=layout)
    stock = plan_with(monkeypatch, request, cls, stock=True)
    assert stock.error is None
    assert kvplan.vllm.stats()["plugin_classes"] == {}

    plan_with(monkeypatch, request, cls)
    stats = kvplan.vllm.stats()
    assert (stats["verified"], stats["mismatches"], stats["fallback"]) == (2, 0, {})
    assert stats["plugin_classes"] == {name_of(cls): "planned"}

    ours = plan_with(monkeypatch, request, cls)
    assert verify.difference(ours, stock) is None
    assert kvplan.vllm.stats()["verified"] == 2
    assert kvplan.vllm.stats()["native"] == {
        "get_global_kv_cache_groups": 2,
        "get_kv_cache_configs": 2,
    }
    layer_specs = [
        spec
        for group in ours.groups
        for spec in interface.iter_layer_specs(group.kv_cache_spec)
        if isinstance(spec, getattr(interface, kind))
    ]
    assert layer_specs
    assert all(type(spec) is cls for spec in layer_specs)
    assert not any("steps aside" in line for line in warnings())


def test_a_group_carries_the_plugins_own_objects(monkeypatch):
    kvplan.vllm.install()
    cls = plugin_class("FullAttentionSpec", "Header")
    for _ in range(2):
        config, specs, memory = oracle.inputs(GEMMA)
        heads = {"num_kv_heads": 4, "dtype": oracle.torch.bfloat16}
        specs = [{f"layers.{h}": cls(block_size=16, head_size=h, **heads) for h in (128, 64)}]
        groups = planning.get_global_kv_cache_groups(config, specs)
        configs = planning.get_kv_cache_configs(config, specs, memory, groups)
        for name, spec in specs[0].items():
            assert groups[0].kv_cache_spec.kv_cache_specs[name] is spec
            assert configs[0].kv_cache_groups[0].kv_cache_spec.kv_cache_specs[name] is spec
    assert kvplan.vllm.stats()["native"]["get_kv_cache_configs"] == 2


def test_a_class_registered_to_share_the_groups_of_its_parent(monkeypatch, registered):
    kvplan.vllm.install()
    cls = plugin_class("FullAttentionSpec", "Slots")
    registered(FullAttentionManager, Full)(cls)
    ours = [plan_with(monkeypatch, GEMMA, cls) for _ in range(2)]
    assert verify.difference(ours[1], plan_with(monkeypatch, GEMMA, cls, stock=True)) is None
    assert kvplan.vllm.stats()["plugin_classes"] == {name_of(cls): "planned"}


@pytest.mark.parametrize("kind", ["FullAttentionSpec", "MambaSpec"])
def test_the_builder_alone_plans_them(monkeypatch, kind):
    """As for any builder, vLLM's flow probes what a block takes."""
    from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

    monkeypatch.setenv("KVPLAN_VLLM_FLOW", "0")
    kvplan.vllm.install()
    cls = plugin_class(kind, "Scales")
    request = request_of(MODELS_OF[kind](tp=4, block_size=16))
    with dropin.builder(KvplanKVCacheConfigBuilder()):
        outcomes = [plan_with(monkeypatch, request, cls) for _ in range(2)]
        stock = plan_with(monkeypatch, request, cls, stock=True)
    assert stock.error is None
    assert [verify.difference(ours, stock) for ours in outcomes] == [None, None]
    stats = kvplan.vllm.stats()
    assert (stats["mismatches"], stats["fallback"]) == (0, {})
    assert stats["verified"] == 2
    assert set(stats["native"]) == {"get_kv_cache_groups", "get_kv_cache_config_from_groups"}


# --- what does not -------------------------------------------------------------------------------


def cached(cls):
    cls.page_size_bytes = functools.cached_property(lambda self: 1 << 20)
    cls.page_size_bytes.__set_name__(cls, "page_size_bytes")
    return cls


class OverridesMerge(Full):
    @classmethod
    def merge(cls, specs):
        return specs[0]


class OverridesUniformity(Sliding):
    def is_uniform_with_collection(self, kv_cache_specs):
        return False


class OverridesDemand(Full):
    def max_memory_usage_bytes(self, vllm_config):
        return super().max_memory_usage_bytes(vllm_config) * 2


class OverridesAdmission(Sliding):
    def max_admission_blocks_per_request(self, max_in_flight_tokens, max_model_len):
        return 7


class OverridesWindows(Full):
    @classmethod
    def merge_window_sizes(cls, window_sizes):
        return None


class OverridesPostInit(Full):
    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "page_size_padded", 1 << 20)


class OverridesEquality(Full):
    def __eq__(self, other):
        return type(self) is type(other)

    __hash__ = None


class OverridesCopying(Sliding):
    def __deepcopy__(self, memo):
        return self


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritesItsOwnHash(Full):
    def __hash__(self):
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class HasAnotherField(Full):
    scale_bytes: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class HasAnotherDefault(Full):
    non_causal: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakesMoreThanFields(Full):
    scale_bytes: dataclasses.InitVar[int] = 4

    def __post_init__(self, scale_bytes):
        super().__post_init__()


@cached
class CachesItsPage(Full):
    pass


class WatchesAttributes(Full):
    def __getattribute__(self, name):
        return super().__getattribute__(name)


class HasSlots(Full):
    __slots__ = ()


class Mixin:
    def max_memory_usage_bytes(self, vllm_config):
        return 1 << 20


class HasMixin(Mixin, Full):
    pass


class HasOtherBase(Full, Mixin):
    pass


@dataclasses.dataclass(frozen=True)
class EqualToAll:
    """Its generated `__eq__` compares no field."""

    def __init__(self, **fields):
        Full.__init__(self, **fields)


class HasDataclassMixin(EqualToAll, Full):
    pass


class HasMetaclass(Full, metaclass=type("Meta", (type,), {})):
    pass


class BeneathNoKnownClass(interface.AttentionSpec):
    def max_memory_usage_bytes(self, vllm_config):
        return 1 << 20


REFUSED = {
    OverridesMerge: "it overrides merge",
    OverridesUniformity: "it overrides is_uniform_with_collection",
    OverridesDemand: "it overrides max_memory_usage_bytes",
    OverridesAdmission: "it overrides max_admission_blocks_per_request",
    OverridesWindows: "it overrides merge_window_sizes",
    OverridesPostInit: "it overrides __post_init__",
    OverridesCopying: "it overrides __deepcopy__",
    WritesItsOwnHash: "it overrides __hash__",
    HasAnotherField: "it adds or changes the fields scale_bytes",
    HasAnotherDefault: "it adds or changes the fields non_causal",
    TakesMoreThanFields: "it adds or changes the fields scale_bytes",
    CachesItsPage: "it overrides page_size_bytes",
    WatchesAttributes: "it overrides __getattribute__",
    HasSlots: "it overrides __slots__",
    HasMixin: "it overrides max_memory_usage_bytes",
    HasOtherBase: "it has base classes beside FullAttentionSpec",
    HasDataclassMixin: "it adds or changes the fields ",
    HasMetaclass: "HasMetaclass has the metaclass Meta",
}


def assert_left_to_vllm(monkeypatch, warnings, cls, reason, request=GEMMA):
    """Both calls are vLLM's, one line says why, and nothing that a caller sees is changed."""
    ours = plan_with(monkeypatch, request, cls)
    stats = kvplan.vllm.stats()
    assert verify.difference(ours, plan_with(monkeypatch, request, cls, stock=True)) is None
    assert ours.error is None
    assert stats["native"] == {}
    assert stats["plugin_classes"] == {name_of(cls): "left to vLLM"}
    ((text, count),) = stats["fallback"].items()
    assert count == 2
    assert f"KV cache spec class {name_of(cls)} is not known to kvplan: {reason}" in text
    (line,) = warnings()
    assert text in line


@pytest.mark.parametrize("cls", REFUSED, ids=lambda cls: cls.__name__)
def test_a_class_with_more_than_other_numbers_is_left_to_vllm(monkeypatch, warnings, cls):
    kvplan.vllm.install()
    assert_left_to_vllm(monkeypatch, warnings, cls, REFUSED[cls])


@pytest.mark.parametrize("cls", [OverridesEquality, BeneathNoKnownClass])
def test_a_class_that_vllm_cannot_plan_either_keeps_vllms_error(cls):
    kvplan.vllm.install()
    outcomes = []
    for stock in (False, True):
        config, specs, _ = oracle.inputs(GEMMA)
        fields = dict(block_size=16, num_kv_heads=4, head_size=128, dtype=oracle.torch.bfloat16)
        specs = [{name: cls(**fields) for name in specs[0]}]
        with installation.stock_mode() if stock else contextlib.nullcontext():
            try:
                outcomes.append(len(planning.get_global_kv_cache_groups(config, specs)))
            except Exception as error:
                outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    assert not kvplan.vllm.stats()["native"]


def test_an_abstract_class_is_left_to_vllm(monkeypatch, warnings):
    kvplan.vllm.install()
    cls = abc.ABCMeta("Abstract", (Full,), {"__module__": __name__})
    assert_left_to_vllm(monkeypatch, warnings, cls, "Abstract has the metaclass ABCMeta")


def test_a_class_registered_to_have_groups_of_its_own(monkeypatch, warnings, registered):
    kvplan.vllm.install()
    # Of the very name that the class above is grouped by.
    cls = type("FullAttentionSpec", (Full,), {"__module__": __name__})
    registered(FullAttentionManager)(cls)
    ours = plan_with(monkeypatch, GEMMA, cls)
    assert verify.difference(ours, plan_with(monkeypatch, GEMMA, cls, stock=True)) is None
    (line,) = warnings()
    assert f"is not known to kvplan: it is registered to be grouped as {name_of(cls)}" in line


def test_an_object_with_more_than_its_fields(monkeypatch, warnings):
    """Copied with a sliding-window spec by vLLM's `deepcopy`, lost where it is replaced."""
    kvplan.vllm.install()
    cls = plugin_class("SlidingWindowSpec", "Plain")
    make = plan_with.__globals__["as_plugin"]

    def marked(spec, cls):
        made = make(spec, cls)
        object.__setattr__(made, "note", "mine")
        return made

    monkeypatch.setitem(plan_with.__globals__, "as_plugin", marked)
    ours = plan_with(monkeypatch, GEMMA, cls)
    assert verify.difference(ours, plan_with(monkeypatch, GEMMA, cls, stock=True)) is None
    assert "an object holds more than its fields" in warnings()[0]


# --- numbers that lie ----------------------------------------------------------------------------


def lying(base, number):
    return type("Lying", (base,), {"page_size_bytes": property(number), "__module__": __name__})


def test_a_number_that_changes_with_each_reading(monkeypatch, warnings):
    kvplan.vllm.install()
    calls = itertools.count()
    cls = lying(Full, lambda self: (1 << 20) + 4096 * (next(calls) % 2))
    plan_with(monkeypatch, GEMMA, cls)
    (line,) = warnings()
    assert "Lying is not known to kvplan: its numbers change from one reading to the" in line
    assert not kvplan.vllm.stats()["native"]


@pytest.mark.parametrize("value", [4096.0, True, None, "big"])
def test_a_number_that_is_none(monkeypatch, warnings, value):
    kvplan.vllm.install()
    plan_with(monkeypatch, GEMMA, lying(Full, lambda self: value))
    assert not kvplan.vllm.stats()["native"]
    assert kvplan.vllm.stats()["plugin_classes"] != {f"{__name__}.Lying": "planned"}


@pytest.mark.parametrize("value", [0, -4096])
def test_a_page_without_bytes(monkeypatch, value):
    kvplan.vllm.install()
    plan_with(monkeypatch, GEMMA, lying(Full, lambda self: value))
    assert not kvplan.vllm.stats()["native"]


def test_a_number_that_is_another_for_vllm_is_found_by_comparing(monkeypatch, warnings):
    """One warning; from then on the class is left to vLLM without another comparison."""
    kvplan.vllm.install()
    cls = lying(Full, lambda self: (1 << 20) * (2 if installation._stock.get() else 1))
    request = request_of(gemma_3_27b(tp=4, block_size=16), kv_cache_layout="BLHNC")
    for _ in range(3):
        ours = plan_with(monkeypatch, request, cls)
        stock = plan_with(monkeypatch, request, cls, stock=True)
        assert verify.difference(ours.configs, stock.configs) is None
    stats = kvplan.vllm.stats()
    assert stats["mismatches"] == 1
    assert stats["plugin_classes"] == {name_of(cls): "left to vLLM"}
    (text,) = stats["fallback"]
    assert "get_kv_cache_configs differed from vLLM's: " in text
    assert len(warnings()) == 1
    assert text in warnings()[0]


def test_a_class_that_is_patched_later_is_looked_at_again(monkeypatch):
    kvplan.vllm.install()
    cls = type("Patched", (Full,), {"__module__": __name__})
    for _ in range(2):
        plan_with(monkeypatch, GEMMA, cls)
    assert kvplan.vllm.stats()["native"]["get_kv_cache_configs"] == 2
    cls.page_size_bytes = property(lambda self: 1 << 20)
    before = kvplan.vllm.stats()["verified"]
    plan_with(monkeypatch, GEMMA, cls)
    assert kvplan.vllm.stats()["verified"] == before + 2
    cls.merge = classmethod(lambda cls, specs: specs[0])
    ours = plan_with(monkeypatch, GEMMA, cls)
    assert verify.difference(ours, plan_with(monkeypatch, GEMMA, cls, stock=True)) is None
    assert any("it overrides merge" in text for text in kvplan.vllm.stats()["fallback"])


def test_no_other_grouping_is_planned_with_a_plugins_class(monkeypatch, warnings):
    """Nothing of vLLM's could be compared with it."""
    monkeypatch.setenv("KVPLAN_GROUPING", "compact")
    kvplan.vllm.install()
    cls = plugin_class("FullAttentionSpec", "Rounded")
    ours = plan_with(monkeypatch, GEMMA, cls)
    assert verify.difference(ours, plan_with(monkeypatch, GEMMA, cls, stock=True)) is None
    assert any("RoundedFullAttentionSpec, no other grouping" in line for line in warnings())


# --- recording -----------------------------------------------------------------------------------


def plain_tensor(tensor):
    return {name: getattr(tensor, name) for name in conversion.TENSOR_FIELDS}


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
@pytest.mark.parametrize("change", ["Twice", "Scales"])
@pytest.mark.parametrize("kind", MODELS_OF)
def test_a_recorded_request_replays_without_the_plugin(
    monkeypatch, warnings, tmp_path, kind, change, layout
):
    request = pytest.importorskip("kvplan.request")
    path = tmp_path / "request.json"
    monkeypatch.setenv("KVPLAN_RECORD", str(path))
    kvplan.vllm.install()
    cls = plugin_class(kind, change)
    described = request_of(MODELS_OF[kind](tp=4, block_size=16), kv_cache_layout=layout)
    expected = plan_with(monkeypatch, described, cls)
    assert expected.error is None
    replayed = request.load(path)
    assert any(
        not isinstance(spec.subclass, request.UnsetType) and spec.subclass.name == name_of(cls)
        for spec in replayed.specs
    )
    plan = kvplan.plan(
        replayed.planning_config(), replayed.kv_cache_specs(), replayed.available_memory()
    )
    for ours, theirs in zip(plan.kv_cache_configs, expected.configs, strict=True):
        assert ours.num_blocks == theirs.num_blocks
        assert [plain_tensor(t) for t in ours.kv_cache_tensors] == [
            plain_tensor(t) for t in theirs.kv_cache_tensors
        ]
        assert [g.layer_names for g in ours.kv_cache_groups] == [
            g.layer_names for g in theirs.kv_cache_groups
        ]
    assert not warnings()


def test_a_record_replays_on_the_command_line(monkeypatch, tmp_path):
    path = tmp_path / "request.json"
    monkeypatch.setenv("KVPLAN_RECORD", str(path))
    kvplan.vllm.install()
    request = request_of(gemma_3_27b(tp=4, block_size=16), kv_cache_layout="LBNHC")
    expected = plan_with(monkeypatch, request, plugin_class("SlidingWindowSpec", "Scales"))
    command = [sys.executable, "-m", "kvplan.offline.cli", "plan", "--request", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["num_blocks"] == expected.configs[0].num_blocks


def test_numbers_that_a_record_cannot_hold(monkeypatch, warnings, tmp_path):
    """A page that depends on a field which merging changes."""
    monkeypatch.setenv("KVPLAN_RECORD", str(tmp_path / "request.json"))
    kvplan.vllm.install()
    cls = lying(Full, lambda self: (1 << 20) * (1 if self.sliding_window is None else 2))
    fields = {"num_kv_heads": 4, "head_size": 128, "dtype": oracle.torch.bfloat16}
    outcomes = []
    for stock in (False, False, True):
        config, _, memory = oracle.inputs(GEMMA)
        specs = [{f"layers.{w}": cls(block_size=16, sliding_window=w, **fields) for w in (None, 8)}]
        with installation.stock_mode() if stock else contextlib.nullcontext():
            groups = planning.get_global_kv_cache_groups(config, specs)
            outcomes.append(planning.get_kv_cache_configs(config, specs, memory, groups))
    assert verify.difference(outcomes[1], outcomes[2]) is None
    assert kvplan.vllm.stats()["plugin_classes"] == {name_of(cls): "planned"}
    (line,) = warnings()
    assert "not recorded" in line
    assert "Lying depend on more than block_size and page_size_padded" in line


def test_a_record_says_why_there_is_none(monkeypatch, warnings, tmp_path):
    monkeypatch.setenv("KVPLAN_RECORD", str(tmp_path / "request.json"))
    kvplan.vllm.install()
    plan_with(monkeypatch, GEMMA, OverridesMerge)
    line = next(line for line in warnings() if "not recorded" in line)
    assert "OverridesMerge is not known to kvplan: it overrides merge" in line
    assert not (tmp_path / "request.json").exists()
