"""Every mirrored function, one by one, against vLLM 0.33.0's on random inputs."""

import random

import native
import oracle
import pytest
import random_models

from kvplan import planning
from kvplan import specs as ours

theirs = oracle.interface
their_planning = oracle.kv_cache_planning
their_utils = oracle.kv_cache_utils

SEEDS = range(400)
PROPERTIES = (
    "page_size_bytes",
    "unpadded_page_size_bytes",
    "real_page_size_bytes",
    "num_heads",
    "num_states",
    "tokens_per_state",
    "state_content_size_bytes",
    "prefix_cacheable",
    "prefix_replay_tokens",
    "block_table_token_alignment",
    "has_layer_views",
    "uses_slot_mapping",
    "num_retained_tokens",
)


def describe(value):
    """Specs, groups, configs and plain values, from either side, as comparable data."""
    if isinstance(value, dict):
        return {key: describe(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    name = type(value).__name__
    if name in oracle.SPEC_FIELDS:
        return oracle.describe_spec(value)
    describers = {
        "KVCacheGroupSpec": oracle.describe_group,
        "KVCacheConfig": oracle.describe_kv_cache_config,
        "KVCacheTensor": oracle.describe_tensor,
    }
    return describers[name](value) if name in describers else oracle.plain(value)


def outcome(function, *args, **kwargs):
    """What a call returns, described, or the name of what it raises."""
    try:
        return describe(function(*args, **kwargs))
    except Exception as e:
        return e


def assert_alike(vllm_call, kvplan_call, context=None):
    """The same value, or an error of the kind that vLLM demands; anything where it is abstract."""
    expected, found = outcome(*vllm_call), outcome(*kvplan_call)
    if isinstance(expected, NotImplementedError) and not str(expected):
        return
    if isinstance(expected, Exception):
        described = {"error": type(expected).__name__, "message": str(expected)}
        assert native.same_error(described, {"error": found}), (context, expected, found)
    else:
        assert found == expected, context


def consistent(spec):
    """Whether the spec's page holds something and fits its padding; others have a test below."""
    page = outcome(lambda: oracle.make_spec(spec).page_size_bytes)
    return not isinstance(page, Exception) and page > 0


def spec_dicts(seeds=SEEDS):
    """Random models on one worker: (config dictionary, {layer: spec description}, memory)."""
    for seed in seeds:
        request = random_models.random_request(seed)
        layers = {}
        for rows in oracle.expand_workers(request):
            layers |= {name: request["specs"][index] for name, index in rows}
        if layers and all(map(consistent, layers.values())):
            yield request["config"], layers, request["workers"][0]["available_memory"]


def both_specs(layers):
    """The described specs as vLLM's and as kvplan's objects; equal ones are one object."""
    made = {}
    for spec in layers.values():
        if id(spec) not in made:
            made[id(spec)] = outcome_pair(spec)
    return tuple({name: made[id(spec)][side] for name, spec in layers.items()} for side in (0, 1))


def outcome_pair(spec):
    return oracle.make_spec(spec), ours.from_dict(spec)


def both_configs(described):
    return oracle.make_config(described), native.planning_config(described)


def both_groups(config, layers):
    """The groups of a model as vLLM's and as kvplan's objects, or None if it has none."""
    try:
        groups = their_planning.get_kv_cache_groups(oracle.make_config(config), dict(layers))
    except Exception:
        return None
    return groups, [native.make_group(oracle.describe_group(g)) for g in groups]


def distinct_specs(seeds=SEEDS):
    seen = []
    for config, layers, _ in spec_dicts(seeds):
        for spec in layers.values():
            if spec not in seen:
                seen.append(spec)
                yield config, spec


def test_spec_fields_and_properties():
    for _, spec in distinct_specs():
        vllm_spec, kvplan_spec = outcome_pair(spec)
        assert describe(kvplan_spec) == describe(vllm_spec)
        for name in PROPERTIES:
            if hasattr(type(vllm_spec), name) or name in oracle.SPEC_FIELDS[spec["kind"]]:
                assert_alike((getattr, vllm_spec, name), (getattr, kvplan_spec, name), (name, spec))


def test_spec_methods():
    rng = random.Random(0)
    for config, spec in distinct_specs():
        vllm_spec, kvplan_spec = outcome_pair(spec)
        vllm_config, kvplan_config = both_configs(config)
        length = rng.choice((1, 100, 4096, config["max_model_len"]))
        block_size = rng.choice((1, 16, 64, spec["block_size"] * 2))
        kernel_block_size = rng.choice((1, 16, spec["block_size"]))

        def alike(name, vllm_args, kvplan_args=None):
            ours_args = vllm_args if kvplan_args is None else kvplan_args
            assert_alike(
                (lambda: getattr(vllm_spec, name)(*vllm_args),),  # noqa: B023
                (lambda: getattr(kvplan_spec, name)(*ours_args),),  # noqa: B023
                (name, spec),  # noqa: B023
            )

        alike("max_memory_usage_bytes", (vllm_config,), (kvplan_config,))
        alike("max_num_blocks_per_req", (vllm_config, length), (kvplan_config, length))
        alike("get_block_stride_alignment", ())
        alike("get_num_kernel_states", (kernel_block_size,))
        alike("copy_with_new_block_size", (block_size,))
        if hasattr(vllm_spec, "max_admission_blocks_per_request"):
            alike("max_admission_blocks_per_request", (8192, length))


def test_spec_equality_and_hash():
    described = [spec for _, spec in distinct_specs(range(120))]
    described += [spec | {"is_draft": True} for spec in described[:40]]
    pairs = [outcome_pair(spec) for spec in described]
    for vllm_a, kvplan_a in pairs:
        for vllm_b, kvplan_b in pairs:
            assert (kvplan_a == kvplan_b) == (vllm_a == vllm_b)
            if kvplan_a == kvplan_b:
                assert hash(kvplan_a) == hash(kvplan_b)


def variations(rng, spec):
    """The spec several times, some with one field changed to another value it may have."""
    changes = [
        {},
        {},
        {"is_draft": True},
        {"block_size": spec["block_size"] * 2},
        {"dcp_sharded": False},
        {"block_stride_alignment": 64},
        {"page_size_padded": 1 << 24},
    ]
    if "num_kv_heads" in spec:
        changes += [{"max_tp_shards": 4}, {"tokens_per_state": 2}, {"kv_quant_mode": 1}]
    changes += {
        "FullAttentionSpec": [{"sliding_window": 64}, {"sliding_window": 65}, {"non_causal": True}]
        + [{"attention_chunk_size": 128}],
        "MLAAttentionSpec": [{"cache_dtype_str": "fp8"}, {"is_index_group_leader": True}]
        + [{"non_causal_multi_token_decode": True}, {"topk_buffer_width": 8}, {"alignment": 64}]
        + [{"sliding_window": 64}, {"non_causal": True}, {"head_size_v": 64}],
        "SlidingWindowMLASpec": [{"sliding_window": 77}, {"bounded_replay": True}]
        + [{"extra_retained_tokens": 1}, {"alignment": 64}, {"head_size_v": 64}],
        "SlidingWindowSpec": [{"sliding_window": 77}, {"extra_retained_tokens": 1}],
        "RSWASpec": [{"rswa_window": 99}, {"sliding_window": 5}],
        "SinkFullAttentionSpec": [{"sink_len": 3}, {"sliding_window": 5}],
        "MambaSpec": [{"num_speculative_blocks": 3}, {"tp_replicated": True}],
    }.get(spec["kind"], [])
    changes = [c for c in changes if set(c) <= set(oracle.SPEC_FIELDS[spec["kind"]])]
    chosen = [spec | rng.choice(changes) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        chosen[-1] = rng.choice(
            (
                {"kind": "FullAttentionSpec", "block_size": spec["block_size"]},
                {"kind": "MLAAttentionSpec", "block_size": spec["block_size"]},
            )
        ) | {"num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
    return chosen


def test_merge_per_class():
    rng = random.Random(1)
    merged = refused = 0
    for _, spec in distinct_specs():
        for _ in range(8):
            chosen = variations(rng, spec)
            vllm_specs = [oracle.make_spec(s) for s in chosen]
            kvplan_specs = [ours.from_dict(s) for s in chosen]
            expected = outcome(lambda specs: type(specs[0]).merge(specs), vllm_specs)
            found = outcome(lambda specs: type(specs[0]).merge(specs), kvplan_specs)
            if isinstance(expected, Exception):
                # Callers tell the two apart, so here the very kind counts.
                assert isinstance(found, type(expected)), (chosen, expected, found)
                refused += 1
            else:
                assert found == expected, chosen
                merged += 1
    assert min(merged, refused) > 100


def test_uniform_type():
    made = 0
    for config, layers, _ in spec_dicts():
        vllm_layers, kvplan_layers = both_specs(layers)
        first = next(iter(layers))
        assert_alike(
            (vllm_layers[first].is_uniform_with_collection, vllm_layers),
            (kvplan_layers[first].is_uniform_with_collection, kvplan_layers),
            layers,
        )
        assert_alike(
            (theirs.UniformTypeKVCacheSpecs.from_specs, vllm_layers),
            (ours.UniformTypeKVCacheSpecs.from_specs, kvplan_layers),
            layers,
        )
        expected = outcome(theirs.UniformTypeKVCacheSpecs.from_specs, vllm_layers)
        if expected is None or isinstance(expected, Exception):
            continue
        made += 1
        vllm_spec = theirs.UniformTypeKVCacheSpecs.from_specs(vllm_layers)
        kvplan_spec = ours.UniformTypeKVCacheSpecs.from_specs(kvplan_layers)
        vllm_config, kvplan_config = both_configs(config)
        for name in ("page_size_bytes", "prefix_cacheable", "dcp_sharded", "first_spec"):
            assert_alike((getattr, vllm_spec, name), (getattr, kvplan_spec, name), name)
        assert_alike(
            (vllm_spec.get_max_layers_per_page_size,), (kvplan_spec.get_max_layers_per_page_size,)
        )
        for name in ("max_memory_usage_bytes", "max_memory_usage_pages"):
            assert_alike(
                (getattr(vllm_spec, name), vllm_config),
                (getattr(kvplan_spec, name), kvplan_config),
                name,
            )
    assert made > 20


# What each function is called with, of a model's config, its layers and a worker's memory.
FUNCTIONS_OF_SPECS = {
    "is_kv_cache_spec_uniform": lambda config, layers, memory: (layers,),
    "is_kv_cache_type_attention_free": lambda config, layers, memory: (layers,),
    "unify_kv_cache_spec_page_size": lambda config, layers, memory: (layers,),
    "_get_kv_cache_groups_uniform_page_size": lambda config, layers, memory: (layers,),
    "_get_kv_cache_groups_uniform_spec": lambda config, layers, memory: (layers,),
    "_promote_local_kv_cache_specs": lambda config, layers, memory: (layers,),
    "_try_get_full_allocation_fallback_groups": lambda config, layers, memory: (layers,),
    "get_uniform_page_size": lambda config, layers, memory: (layers.values(),),
    "get_kv_cache_groups": lambda config, layers, memory: (config, layers),
    "_get_packed_kv_cache_groups": lambda config, layers, memory: (config, layers),
    "max_memory_usage_bytes": lambda config, layers, memory: (config, layers.values()),
    "estimate_max_model_len": lambda config, layers, memory: (config, layers, memory),
    "check_enough_kv_cache_memory": lambda config, layers, memory: (config, layers, memory),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_SPECS)
def test_functions_of_specs(name):
    answers = 0
    for config, layers, memory in spec_dicts():
        sides = zip(both_configs(config), both_specs(layers), strict=True)
        vllm_call, kvplan_call = (
            (getattr(module, name), *FUNCTIONS_OF_SPECS[name](*side, memory))
            for module, side in zip((their_planning, planning), sides, strict=True)
        )
        assert_alike(vllm_call, kvplan_call, (config, layers))
        answers += not isinstance(outcome(*vllm_call), (Exception, type(None)))
    assert answers > 0 or name == "check_enough_kv_cache_memory"


def test_unify_hybrid_specs_changes_its_argument():
    changed = 0
    for _, layers, _ in spec_dicts():
        vllm_layers, kvplan_layers = both_specs(layers)
        before = describe(kvplan_layers)
        expected = outcome(their_planning.unify_hybrid_kv_cache_specs, vllm_layers)
        assert_alike(
            (their_planning.unify_hybrid_kv_cache_specs, dict(both_specs(layers)[0])),
            (planning.unify_hybrid_kv_cache_specs, kvplan_layers),
            layers,
        )
        # vLLM leaves half of the change behind when it fails, kvplan nothing.
        after = before if isinstance(expected, Exception) else describe(vllm_layers)
        assert describe(kvplan_layers) == after
        changed += after != before
    assert changed > 10


def test_create_group_specs():
    rng = random.Random(2)
    for _, layers, _ in spec_dicts():
        vllm_layers, kvplan_layers = both_specs(layers)
        names = list(layers)
        grouped = [names[i::3] for i in range(3) if names[i::3]]
        if rng.random() < 0.5:
            grouped = [[name] for name in names]
        assert_alike(
            (their_planning.create_kv_cache_group_specs, vllm_layers, grouped),
            (planning.create_kv_cache_group_specs, kvplan_layers, grouped),
            layers,
        )


def grouped_models():
    """Random models that can be grouped: configs, groups and memory, for vLLM and for kvplan."""
    for config, layers, memory in spec_dicts():
        vllm_layers, kvplan_layers = both_specs(layers)
        groups = both_groups(config, vllm_layers)
        if groups is not None and groups[0]:
            yield both_configs(config), groups, (vllm_layers, kvplan_layers), memory


def test_functions_of_groups():
    for (vllm_config, kvplan_config), groups, layers, memory in grouped_models():
        builder = oracle.BUILDER
        layout = vllm_config.cache_config.get_resolved_kv_cache_layout()
        our_layout = getattr(ours.KVCacheLayout, layout.name)
        calls = [
            ("_pool_bytes_per_block", (vllm_config,), (kvplan_config,), ()),
            ("get_kv_cache_config_from_groups", (vllm_config,), (kvplan_config,), (memory,)),
            ("_max_memory_usage_bytes_from_groups", (builder, vllm_config), (kvplan_config,), ()),
            (
                "_estimate_max_model_len_from_groups",
                (builder, vllm_config),
                (kvplan_config,),
                (memory,),
            ),
            ("validate_kv_cache_layout", (layout,), (our_layout,), ()),
        ]
        one_block = outcome(
            their_planning._pool_bytes_per_block_from_builder, builder, vllm_config, groups[0]
        )
        for name, vllm_first, kvplan_first, rest in calls:
            if builder in vllm_first and isinstance(one_block, Exception):
                continue  # vLLM learns the size of a block by placing one
            assert_alike(
                (getattr(their_planning, name), *vllm_first, groups[0], *rest),
                (getattr(planning, name), *kvplan_first, groups[1], *rest),
                (name, describe(groups[0])),
            )
        assert_alike(
            (their_planning._get_kv_cache_bytes_per_block, groups[0], layout),
            (planning._get_kv_cache_bytes_per_block, groups[1], our_layout),
        )
        some = [name for i, name in enumerate(layers[0]) if i % 2]
        assert_alike(
            (
                their_planning._project_kv_cache_groups_to_worker,
                groups[0],
                {name: layers[0][name] for name in some},
            ),
            (
                planning._project_kv_cache_groups_to_worker,
                groups[1],
                {name: layers[1][name] for name in some},
            ),
        )


def test_tp_replicas():
    for _, groups, _, _ in grouped_models():
        for tp, dcp in ((1, 1), (4, 1), (8, 2), (12, 1), (16, 4)):
            assert_alike(
                (their_planning.kv_cache_groups_tp_replicas, groups[0], tp, dcp),
                (planning.kv_cache_groups_tp_replicas, groups[1], tp, dcp),
                describe(groups[0]),
            )


def both_hidden(rng):
    described = {
        f"hidden.{i}": {
            "kind": "HiddenStateCacheSpec",
            "block_size": 16,
            "num_kv_heads": rng.choice((1, 2)),
            "head_size": rng.choice((16, 1024, 65536, 1 << 20)),
            "dtype": "bfloat16",
        }
        for i in range(rng.randint(1, 3))
    }
    return both_specs(described)


def test_ensure_min_page_size():
    rng = random.Random(3)
    for _, groups, _, _ in grouped_models():
        if any(isinstance(g.kv_cache_spec, theirs.UniformTypeKVCacheSpecs) for g in groups[0]):
            continue  # only groups of one spec each reach it
        hidden = both_hidden(rng)
        page = groups[0][0].kv_cache_spec.page_size_bytes
        assert_alike(
            (their_planning._ensure_min_page_size, groups[0], page, hidden[0]),
            (planning._ensure_min_page_size, groups[1], page, hidden[1]),
            describe(groups[0]),
        )


def test_capacity_and_block_sizes():
    for (vllm_config, kvplan_config), groups, _, _ in grouped_models():
        configs = [
            interface.KVCacheConfig(num_blocks=1000, kv_cache_tensors=[], kv_cache_groups=g)
            for interface, g in ((theirs, groups[0]), (ours, groups[1]))
        ]
        for name in ("get_max_concurrency_for_kv_cache_config", "get_kv_cache_capacity"):
            assert_alike(
                (getattr(their_utils, name), vllm_config, configs[0]),
                (getattr(planning, name), kvplan_config, configs[1]),
                name,
            )
        assert_alike(
            (their_utils.resolve_kv_cache_block_sizes, configs[0], vllm_config),
            (planning.resolve_kv_cache_block_sizes, configs[1], kvplan_config),
        )
        assert_alike(
            (their_utils.generate_scheduler_kv_cache_config, [configs[0]]),
            (planning.generate_scheduler_kv_cache_config, [configs[1]]),
        )
        for vllm_group, kvplan_group in zip(*groups, strict=True):
            assert_alike(
                (their_utils.resolve_dcp_kv_block_size, vllm_group.kv_cache_spec, 4),
                (planning.resolve_dcp_kv_block_size, kvplan_group.kv_cache_spec, 4),
            )


def test_block_and_layout_strides():
    rng = random.Random(4)
    for _, spec in distinct_specs():
        vllm_spec, kvplan_spec = outcome_pair(spec)
        assert_alike(
            (their_planning._get_layer_block_stride, vllm_spec),
            (planning._get_layer_block_stride, kvplan_spec),
            spec,
        )
        for layout in random_models.LAYOUTS:
            kernel = rng.choice((None, None, spec["block_size"], 16))
            fixed = rng.choice(((None,) * 5, (None, 1 << 20, None, None, None)))
            args = (rng.choice((1, 7, 1000)), rng.choice((1, 3)))
            vllm_call, kvplan_call = (
                (
                    side.compute_layout_strides,
                    side_spec,
                    *args,
                    getattr(side.KVCacheLayout, layout),
                    kernel,
                    fixed,
                )
                for side, side_spec in ((theirs, vllm_spec), (ours, kvplan_spec))
            )
            assert_alike(vllm_call, kvplan_call, (spec, layout, kernel, fixed))


def gcd_inputs():
    rng = random.Random(5)
    yield [6, 6, 6], None
    yield [12, 18], None
    yield [1], 5
    yield [], None
    yield [3, 0], None
    yield [-1], None
    yield [100003, 65537, 99991], None
    for _ in range(1500):
        most = rng.choice((5, 20, 100, 1000))
        values = [rng.randint(1, most) for _ in range(rng.randint(1, 6))]
        yield values, rng.choice((None, None, 0, 1, rng.randint(1, most), most + 1))


def test_approximate_gcd():
    for values, lower_bound in gcd_inputs():
        assert_alike(
            (lambda: their_planning._approximate_gcd(values, lower_bound=lower_bound),),  # noqa: B023
            (lambda: planning._approximate_gcd(values, lower_bound=lower_bound),),  # noqa: B023
            (values, lower_bound),
        )


def test_may_override_num_blocks():
    for override in (None, 0, 1, 77):
        described = {"max_model_len": 1, "num_gpu_blocks_override": override}
        vllm_config, kvplan_config = both_configs(described)
        for num_blocks in (0, 5):
            expected = their_planning.may_override_num_blocks(vllm_config, num_blocks)
            assert planning.may_override_num_blocks(kvplan_config, num_blocks) == expected


def test_specs_that_contradict_themselves_have_no_page():
    contradicting = 0
    for seed in SEEDS:
        for spec in random_models.random_request(seed)["specs"]:
            if consistent(spec):
                continue
            with pytest.raises((ValueError, AssertionError)):
                _ = ours.from_dict(spec).page_size_bytes
            contradicting += 1
    assert contradicting > 10
