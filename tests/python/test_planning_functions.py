"""The mirrored functions: both call forms, in-place effects, and nothing changed on failure."""

import copy
import gc
import pickle
from types import SimpleNamespace

import pytest

import kvplan
from kvplan import planning
from kvplan.builder import DefaultKVCacheConfigBuilder
from kvplan.specs import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheLayout,
    KVCacheTensor,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

ATTENTION = {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
FULL = FullAttentionSpec(block_size=16, **ATTENTION)
WINDOW = SlidingWindowSpec(block_size=16, sliding_window=128, **ATTENTION)
PAGE = FULL.page_size_bytes


def vllm_config(max_model_len=4096, **fields):
    """The attributes of a VllmConfig that planning reads, and no others."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=max_model_len,
            original_max_model_len=fields.get("original_max_model_len", max_model_len),
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=fields.get("override"),
            mamba_cache_mode="none",
            block_size=16,
            enable_prefix_caching=True,
            prefix_match_unit=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: fields.get("layout", KVCacheLayout.LBNHC),
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=fields.get("disable_hybrid", False),
            max_num_encoder_input_tokens=0,
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        kv_transfer_config=None,
        max_in_flight_tokens=8192,
        num_prefill_lookahead_tokens=0,
    )


def full_layers(count=4):
    return {f"layers.{i}": FULL for i in range(count)}


def hybrid_layers():
    return {f"layers.{i}": FULL if i % 3 == 2 else WINDOW for i in range(6)}


class TestGetKVCacheConfigs:
    def test_groups_may_be_given_or_found(self):
        config = kvplan.PlanningConfig(max_model_len=4096)
        layers = hybrid_layers()
        groups = planning.get_global_kv_cache_groups(config, [layers])
        given = kvplan.get_kv_cache_configs(config, [layers], [1 << 30], groups)
        found = kvplan.get_kv_cache_configs(config, [layers], [1 << 30])
        assert given == found
        assert [g.layer_names for g in given[0].kv_cache_groups] == [
            ["layers.0", "layers.3"],
            ["layers.1", "layers.4"],
            ["layers.2", "layers.5"],
        ]

    def test_auto_fit_writes_the_length_to_a_vllm_config(self):
        config = vllm_config(max_model_len=1 << 20, original_max_model_len=-1)
        memory = PAGE * 4 * 101
        configs = kvplan.get_kv_cache_configs(config, [full_layers()], [memory])
        assert config.model_config.max_model_len == 1600
        assert configs[0].max_model_len == 1600

    def test_auto_fit_leaves_a_planning_config_alone(self):
        config = kvplan.PlanningConfig(max_model_len=1 << 20, auto_fit=True)
        configs = kvplan.get_kv_cache_configs(config, [full_layers()], [PAGE * 4 * 101])
        assert config.max_model_len == 1 << 20
        assert configs[0].max_model_len == 1600

    def test_a_failure_changes_nothing(self):
        config = vllm_config(max_model_len=1 << 20, original_max_model_len=-1, disable_hybrid=True)
        layers = hybrid_layers()
        before = dict(layers)
        with pytest.raises(kvplan.NotEnoughMemory):
            kvplan.get_kv_cache_configs(config, [layers], [PAGE])
        assert config.model_config.max_model_len == 1 << 20
        assert layers == before

    def test_results_are_fresh_and_writable(self):
        config = kvplan.PlanningConfig(max_model_len=4096)
        first, second = kvplan.get_kv_cache_configs(config, [full_layers()] * 2, [1 << 30] * 2)
        assert first == second
        first.kv_cache_groups[0].layer_names.append("other")
        first.num_blocks = 7
        assert second.kv_cache_groups[0].layer_names == list(full_layers())
        assert second.num_blocks != 7
        assert copy.deepcopy(second) == second

    def test_a_plan_outlives_its_input(self):
        config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout="BLHNC")
        names = [f"layers.{i}" for i in range(6)]
        specs = [
            FullAttentionSpec(block_size=16, num_kv_heads=1 + i, head_size=128, dtype="bfloat16")
            for i in range(6)
        ]
        layers = dict(zip(names, specs, strict=True))
        plan = kvplan.plan(config, [layers], [1 << 30])
        layers.clear()
        del layers, specs
        gc.collect()
        (group,) = plan.kv_cache_groups
        assert group.layer_names == names
        # The very strings that came in.
        assert all(a is b for a, b in zip(group.layer_names, names, strict=True))
        heads = [spec.num_kv_heads for spec in group.kv_cache_spec.kv_cache_specs.values()]
        assert heads == [1, 2, 3, 4, 5, 6]
        (found,) = plan.kv_cache_configs
        assert [tensor.layers for tensor in found.kv_cache_tensors] == [[n] for n in names]

    def test_workers_may_spell_and_order_the_same_layers_with_other_objects(self):
        config = kvplan.PlanningConfig(max_model_len=4096)
        ours = hybrid_layers()
        theirs = {f"layers.{i}": copy.copy(ours[f"layers.{i}"]) for i in reversed(range(6))}
        alike = pickle.loads(pickle.dumps(ours))
        found = kvplan.get_kv_cache_configs(config, [ours, theirs, alike], [1 << 30] * 3)
        assert found[0] == found[1] == found[2]

    def test_specs_that_a_mapping_makes_anew_are_told_apart(self):
        """Their memory may be reused while the layers are still being read."""

        class Group(KVCacheGroupSpec):
            @property
            def kv_cache_spec(self):
                return UniformTypeKVCacheSpecs(
                    16,
                    {
                        name: FullAttentionSpec(
                            block_size=16,
                            num_kv_heads=int(name),
                            head_size=128,
                            dtype="bfloat16",
                        )
                        for name in self.layer_names
                    },
                )

            @kv_cache_spec.setter
            def kv_cache_spec(self, value):
                pass

        groups = [Group([str(i)], FULL) for i in range(1, 40)]
        widest = max(group.kv_cache_spec.page_size_bytes for group in groups)
        assert planning._get_kv_cache_bytes_per_block(groups, "BLHNC") == widest
        assert planning._get_kv_cache_bytes_per_block(groups[:20], "BLHNC") == widest * 20 // 39

    def test_memory_for_every_worker(self):
        config = kvplan.PlanningConfig(max_model_len=64)
        with pytest.raises(ValueError, match="kv_cache_specs has 1 workers, available_memory 2"):
            kvplan.get_kv_cache_configs(config, [full_layers()], [1 << 30, 1 << 30])
        with pytest.raises(ValueError, match="no workers"):
            kvplan.get_kv_cache_configs(config, [], [])

    @pytest.mark.parametrize("bad", [float("nan"), 1e9, "1GiB", None, True])
    def test_memory_in_whole_bytes(self, bad):
        with pytest.raises(TypeError, match=r"available_memory\[0\] must be an integer"):
            kvplan.get_kv_cache_configs(
                kvplan.PlanningConfig(max_model_len=64), [full_layers()], [bad]
            )

    @pytest.mark.parametrize("field", ["attention_kernel_block_sizes", "mla_kernel_block_sizes"])
    def test_kernel_block_sizes_are_named(self, field):
        for bad in (16, None, "16", ["16"], [None], {"multiple_of": 16}, [1.5]):
            with pytest.raises(TypeError, match=f"{field} must be a sequence of tokens"):
                kvplan.PlanningConfig(max_model_len=64, **{field: bad})
        with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
            kvplan.PlanningConfig(max_model_len=64, **{field: [16, 0]})

    def test_workers_come_in_order(self):
        config = kvplan.PlanningConfig(max_model_len=64)
        for bad in ({1 << 30}, {1 << 30: 0}, iter([1 << 30]), "1"):
            with pytest.raises(TypeError, match="available_memory must be a list, got"):
                kvplan.get_kv_cache_configs(config, [full_layers()], bad)
        for bad in (full_layers(), None, "ab"):
            with pytest.raises(TypeError, match="kv_cache_specs must be a list, got"):
                kvplan.get_kv_cache_configs(config, bad, [1 << 30])

    def test_a_spec_that_was_never_initialised(self):
        empty = FullAttentionSpec.__new__(FullAttentionSpec)
        with pytest.raises(TypeError, match="made without calling __init__"):
            kvplan.get_kv_cache_configs(
                kvplan.PlanningConfig(max_model_len=64), [{"layers.0": empty}], [1 << 30]
            )

    def test_layer_names_of_a_group_are_not_one_string(self):
        with pytest.raises(TypeError, match="layer_names of a KV cache group must be a list"):
            planning._get_kv_cache_bytes_per_block([KVCacheGroupSpec("ab", FULL)], "LBNHC")

    @pytest.mark.parametrize("bad", [None, 5, float("nan"), ["LBNHC"]])
    def test_a_layout_is_a_name(self, bad):
        with pytest.raises(TypeError, match="kv_cache_layout must be a string"):
            planning.validate_kv_cache_layout(bad, [])
        with pytest.raises(TypeError, match="kv_cache_layout must be a string"):
            planning._get_kv_cache_bytes_per_block([], bad)

    def test_grouped_names_are_names_of_layers(self):
        with pytest.raises(TypeError, match="a layer name must be a string"):
            planning.create_kv_cache_group_specs(full_layers(), [[["layers.0"]]])
        with pytest.raises(KeyError, match="elsewhere"):
            planning.create_kv_cache_group_specs(full_layers(), [["elsewhere"]])

    @pytest.mark.parametrize("layout", ["LBNHC", "BLHNC"])
    def test_ten_thousand_layers_that_all_differ(self, layout):
        """Every pair compared by trying to merge it would take minutes."""
        attention = {"block_size": 16, "head_size": 128, "dtype": "bfloat16"}
        layers = {}
        for i in range(5000):
            layers[f"full.{i}"] = FullAttentionSpec(num_kv_heads=1 + i, **attention)
            layers[f"window.{i}"] = SlidingWindowSpec(
                num_kv_heads=1 + i, sliding_window=128 + i, **attention
            )
        config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout=layout)
        (found,) = kvplan.get_kv_cache_configs(config, [layers], [1 << 60])
        names = [name for group in found.kv_cache_groups for name in group.layer_names]
        assert sorted(names) == sorted(layers)

    def test_hisparse_is_left_to_vllm(self):
        config = vllm_config()
        config.attention_config.hisparse_config = object()
        with pytest.raises(ValueError, match="hisparse_config is set"):
            kvplan.get_kv_cache_configs(config, [full_layers()], [1 << 30])


class TestPrivateFunctions:
    def test_call_forms_with_and_without_a_builder(self):
        config = kvplan.PlanningConfig(max_model_len=4096)
        groups = planning.get_global_kv_cache_groups(config, [full_layers()])
        builder = DefaultKVCacheConfigBuilder()
        plain = planning._max_memory_usage_bytes_from_groups(config, groups)
        assert plain == 4096 // 16 * PAGE * 4
        assert planning._max_memory_usage_bytes_from_groups(builder, config, groups) == plain
        assert planning._estimate_max_model_len_from_groups(config, groups, plain // 2) == 2048
        assert planning._estimate_max_model_len_from_groups(builder, config, groups, plain) == 4096
        with pytest.raises(TypeError, match="expected 2 arguments, or 3 with a builder"):
            planning._max_memory_usage_bytes_from_groups(config)

    def test_auto_fit_of_projected_groups(self):
        config = vllm_config(max_model_len=1 << 20)
        groups = planning.get_global_kv_cache_groups(config, [full_layers()])
        memory = [PAGE * 4 * 100, PAGE * 4 * 10]
        planning._auto_fit_max_model_len(config, [groups, groups], memory)
        assert config.model_config.max_model_len == 160

    def test_disabled_hybrid_manager_changes_the_dict(self):
        config = vllm_config(disable_hybrid=True)
        layers = hybrid_layers()
        groups = planning.get_kv_cache_groups(config, layers)
        assert len(groups) == 1
        assert all(type(spec) is FullAttentionSpec for spec in layers.values())
        assert layers["layers.0"].sliding_window == 128

    def test_projection_hands_whole_groups_through(self):
        config = kvplan.PlanningConfig(max_model_len=64)
        layers = hybrid_layers()
        groups = planning.get_global_kv_cache_groups(config, [layers])
        same = planning._project_kv_cache_groups_to_worker(groups, layers)
        assert [a is b for a, b in zip(same, groups, strict=True)] == [True] * 3
        some = planning._project_kv_cache_groups_to_worker(groups, {"layers.0": WINDOW})
        assert [g.layer_names for g in some] == [["layers.0"], [], []]

    def test_shared_slots_add_up_page_sizes(self):
        small = FULL.replace(num_kv_heads=4)
        mixed = {"a": FULL, "b": FULL, "c": small}
        groups = [
            KVCacheGroupSpec(list(mixed), UniformTypeKVCacheSpecs(16, mixed)),
            KVCacheGroupSpec(["d"], FULL),
        ]
        assert planning._bucket_layers_by_page_size(groups) == {
            PAGE: [["a", "d"], ["b"]],
            PAGE // 2: [["c"]],
        }

    def test_seed_rules_flag_the_group_of_the_last_layer(self):
        config = kvplan.PlanningConfig(
            max_model_len=64, speculative_method="mtp", use_eagle=True, use_eagle_block_drop=True
        )
        layers = hybrid_layers()
        assert planning._uses_trailing_mtp_layers(config)
        groups = planning.get_kv_cache_groups(config, layers)
        planning._annotate_eagle_groups(config, layers, groups, use_trailing_layer_fallback=True)
        assert [g.is_eagle_group for g in groups] == [False, False, True]
        drafts = {**layers, "layers.0": WINDOW.replace(is_draft=True)}
        groups = planning.get_global_kv_cache_groups(config, [drafts])
        assert [g.is_eagle_group for g in groups] == [True, False, False]

    def test_every_function_of_the_interface_is_there(self):
        for name in planning.__all__:
            assert callable(getattr(kvplan, name)), name
            assert getattr(kvplan, name).__doc__, name


class HeaderBuilder(kvplan.builder.DefaultKVCacheConfigBuilder):
    """Places a header of 4096 bytes before the pages of each block."""

    def get_kv_cache_config_from_groups(self, vllm_config, kv_cache_groups, num_blocks):
        config = super().get_kv_cache_config_from_groups(vllm_config, kv_cache_groups, num_blocks)
        for tensor in config.kv_cache_tensors:
            tensor.size += 4096 * num_blocks
        return config


class TestBuilders:
    def test_a_builders_placement_is_sized_by_placing_one_block(self):
        config = kvplan.PlanningConfig(max_model_len=64)
        memory = (PAGE * 4 + 4096) * 50 + 17
        (result,) = kvplan.get_kv_cache_configs(
            config, [full_layers()], [memory], builder=HeaderBuilder()
        )
        assert result.num_blocks == 50
        assert {t.size for t in result.kv_cache_tensors} == {(PAGE * 4 + 4096) * 50}

    def test_several_allocations_must_be_declared(self):
        class Split(kvplan.builder.DefaultKVCacheConfigBuilder):
            def get_kv_cache_config_from_groups(self, vllm_config, kv_cache_groups, num_blocks):
                config = super().get_kv_cache_config_from_groups(
                    vllm_config, kv_cache_groups, num_blocks
                )
                config.kv_cache_tensors.append(KVCacheTensor(1, ["x"], 1, 1))
                return config

        config = kvplan.PlanningConfig(max_model_len=64)
        with pytest.raises(ValueError, match="must share one device backing allocation"):
            kvplan.get_kv_cache_configs(config, [full_layers()], [1 << 30], builder=Split())

    def test_a_builders_groups_must_hold_every_layer_once(self):
        class Forgetful(kvplan.builder.DefaultKVCacheConfigBuilder):
            def get_kv_cache_groups(self, vllm_config, kv_cache_spec):
                return [KVCacheGroupSpec(["layers.0"], FULL)]

        config = kvplan.PlanningConfig(max_model_len=64)
        with pytest.raises(AssertionError, match=r"miss layers: layers\.1, layers\.2"):
            kvplan.get_kv_cache_configs(config, [full_layers()], [1 << 30], builder=Forgetful())

    def test_a_model_declares_its_own_groups(self):
        class Model:
            @staticmethod
            def get_kv_cache_groups(vllm_config, kv_cache_spec):
                return [KVCacheGroupSpec([name], spec) for name, spec in kv_cache_spec.items()]

        config = vllm_config()
        config.model_config.supports_kv_cache_grouping = True
        config.model_config.architectures = ["Model"]
        config.model_config.registry = SimpleNamespace(
            resolve_model_cls=lambda architectures, model_config: (Model, "Model")
        )
        (result,) = kvplan.get_kv_cache_configs(config, [full_layers()], [1 << 30])
        assert len(result.kv_cache_groups) == 4


def mixed_layers():
    return {f"model.layers.{i}.attn": WINDOW if i % 6 else FULL for i in range(11)}


@pytest.mark.parametrize("grouping", ["compact", "sliced"])
def test_every_function_heeds_the_grouping_or_refuses(grouping):
    config = kvplan.PlanningConfig(max_model_len=4096, grouping=grouping, kv_cache_layout="BLNHC")
    layers = mixed_layers()
    planned = kvplan.plan(config, [layers], [1 << 30]).kv_cache_configs[0]
    names = [group.layer_names for group in planned.kv_cache_groups]
    of_vllm = planning.get_kv_cache_groups(config.replace(grouping="vllm"), dict(layers))
    assert names != [group.layer_names for group in of_vllm]
    builder = DefaultKVCacheConfigBuilder()
    for groups in (
        planning.get_kv_cache_groups(config, dict(layers)),
        planning.get_global_kv_cache_groups(config, [dict(layers)]),
        planning.get_global_kv_cache_groups(config, [dict(layers)], builder),
        planning.get_kv_cache_groups_from_builder(builder, config, dict(layers)),
        planning.get_kv_cache_configs(config, [dict(layers)], [1 << 30])[0].kv_cache_groups,
    ):
        assert [group.layer_names for group in groups] == names
    with pytest.raises(ValueError, match=r"kvplan\.plan heed"):
        planning._get_packed_kv_cache_groups(config, dict(layers))


def hybrid_plan(**fields):
    """Two layers of full attention and four of windows, on two workers."""
    config = kvplan.PlanningConfig(max_model_len=4096, **fields)
    layers = {f"full.{i}": FULL for i in range(2)} | {f"window.{i}": WINDOW for i in range(4)}
    return kvplan.plan(config, [layers, layers], [1 << 30, 1 << 30])


def test_a_plan_at_other_lengths():
    plan = hybrid_plan()
    assert plan.request_blocks_at(4096) == plan.request_blocks
    assert plan.max_concurrency_at(4096) == plan.max_concurrency
    # One block, and in both groups of windows another one for where they begin.
    assert plan.request_blocks_at(16) == 1 + 2 * 2
    assert plan.max_concurrency_at(16) == plan.num_blocks / 5
    with pytest.raises(kvplan.InvalidArgument):
        plan.request_blocks_at(0)
    scheduler, unit = plan.block_sizes
    assert (scheduler, unit) == (16, 16)


def test_where_a_plans_layers_lie():
    plan = hybrid_plan(kv_cache_layout="BLHNC")
    views = plan.views(1)
    assert sorted(name for view in views for name in view.layer_names) == sorted(
        name for group in plan.kv_cache_groups for name in group.layer_names
    )
    for view in views:
        layers, blocks, heads, states, bytes_of_state = view.shape
        assert layers == len(view.layer_names)
        assert blocks == plan.num_blocks
        assert heads * states * bytes_of_state == PAGE
        assert view.strides[1] == plan.bytes_per_block
        assert set(view.layer_names) <= set(plan.groups[view.group].layer_names)
        assert (view.offset, view.strides[0]) == (0, PAGE)
    with pytest.raises(IndexError):
        plan.views(2)


def test_the_pool_of_a_plan():
    plan = hybrid_plan()
    pool = plan.make_pool(enable_events=True)
    assert isinstance(pool, kvplan.BlockPool)
    assert pool.num_blocks == plan.num_blocks
    wide = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=256, dtype="bfloat16")
    config = kvplan.PlanningConfig(
        max_model_len=4096, grouping="sliced", kv_cache_layout="BLHNC", min_large_blocks=100
    )
    layers = {f"full.{i}": wide for i in range(8)} | {"window": WINDOW}
    sliced = kvplan.plan(config, [layers], [1 << 30])
    assert max(group.slices for group in sliced.groups) > 1
    pool = sliced.make_pool()
    assert isinstance(pool, kvplan.SlicedBlockPool)
    assert list(pool.slices) == [g.slices for g in sliced.groups]
