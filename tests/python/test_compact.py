"""grouping="compact" from Python: the reported cases, the curve, and what every plan keeps to."""

import json

import pytest
from spec_makers import full, layers, mamba, sliding

import kvplan
from kvplan import specs
from kvplan.frontier import DEFAULT_MAX_GROUPS, to_dict

GIB = 1 << 30


def config(length, max_groups=None, **fields):
    return kvplan.PlanningConfig(
        max_model_len=length, grouping="compact", max_groups=max_groups, **fields
    )


def mimo():
    shape = {"head_size_v": 128}
    return layers(
        (9, full(2, 192, **shape)),
        (39, sliding(128, 4, 192, **shape)),
        (5, sliding(1024, 4, 192, **shape)),
    )


def one_odd_layer(*, drafter_is_marked):
    draft = {"is_draft": drafter_is_marked}
    return layers(
        (30, mamba(1081344, 528)),
        (10, full(2, 256, 528)),
        (5, sliding(4096, 2, 256, 528, **draft)),
        (1, full(1, 512, 528, **draft)),
    )


def deepseek_v4_1_flash():
    packing = {"dtype": "uint8", "alignment": 576}
    rows = {}
    for i in range(43):
        rows[f"layers.{i}.swa"] = specs.SlidingWindowMLASpec(
            block_size=64,
            num_kv_heads=1,
            head_size=512,
            sliding_window=192 if i >= 40 else 128,
            state_content_bytes=584,
            **packing,
        )
        if i in (2, 8, 14, 20):
            block_size, ratio = (64, 1) if i == 20 else (128, 2)
            shared = {"block_size": block_size, "num_kv_heads": 1, "tokens_per_state": ratio}
            rows[f"layers.{i}.mla"] = specs.MLAAttentionSpec(
                head_size=512, state_content_bytes=584, **shared, **packing
            )
            rows[f"layers.{i}.indexer"] = specs.MLAAttentionSpec(head_size=132, **shared, **packing)
    return rows


def plan_both(model, cfg, memory=1 << 42):
    return (
        kvplan.plan(cfg.replace(grouping="vllm"), [model], [memory]),
        kvplan.plan(cfg, [model], [memory]),
    )


@pytest.mark.parametrize(
    ("length", "max_groups", "gain"),
    [(524288, 25, 1.34), (524288, 47, 1.52), (1000000, 25, 1.35), (1000000, 47, 1.62)],
)
def test_deepseek_v4_1_flash_holds_more_tokens(length, max_groups, gain):
    cfg = config(length, max_groups, max_in_flight_tokens=16384, kv_cache_layout="BLHNC")
    vllm, compact = plan_both(deepseek_v4_1_flash(), cfg, 4509715660)
    assert len(vllm.kv_cache_groups) == 17
    assert len(compact.kv_cache_groups) <= max_groups
    assert compact.capacity_tokens >= gain * vllm.capacity_tokens


def test_one_odd_layer_of_the_drafter():
    curve = kvplan.frontier(config(262144, 10), [one_odd_layer(drafter_is_marked=True)])
    gib = {p.num_groups: round(p.request_bytes / GIB, 2) for p in curve.points}
    assert gib[46] == 5.66
    assert gib[24] == 6.19
    assert gib[10] == 7.66
    assert gib[6] == 10.29
    assert 17 not in gib, "10 groups take fewer bytes than 17 of three layers"
    assert curve.vllm.num_groups == 46
    assert (curve.chosen.num_groups, curve.chosen.max_layers_per_group) == (10, 5)


def test_one_odd_layer_of_the_model_shares_a_block_table():
    model = one_odd_layer(drafter_is_marked=False)
    plan = kvplan.plan(config(262144, 10), [model], [1 << 42])
    assert len(plan.kv_cache_groups) == 5
    assert plan.request_bytes / GIB == pytest.approx(5.82, abs=0.005)


@pytest.mark.parametrize(
    ("max_groups", "width", "groups", "gib"), [(11, 9, 7, 3.90), (18, 3, 18, 3.72)]
)
def test_mimo(max_groups, width, groups, gib):
    vllm, compact = plan_both(mimo(), config(262144, max_groups))
    assert (len(vllm.kv_cache_groups), round(vllm.request_bytes / GIB, 2)) == (11, 4.03)
    assert (len(compact.kv_cache_groups), round(compact.request_bytes / GIB, 2)) == (groups, gib)
    assert max(len(g.layer_names) for g in compact.kv_cache_groups) == width


def test_gemma_4_26b_scales_the_block_before_it_pads():
    model = layers(
        (25, sliding(1024, 8, 256, state_content_bytes=520)),
        (5, full(2, 512, state_content_bytes=1032)),
    )
    vllm, compact = plan_both(model, config(32768), int(15.18 * GIB))
    assert round(vllm.max_concurrency, 2) == 9.93
    assert round(compact.max_concurrency, 2) == 12.53
    assert compact.capacity_tokens == pytest.approx(410500, abs=300)
    assert {g.kv_cache_spec.block_size for g in compact.kv_cache_groups} == {16, 32}


def test_nemotron_3_nano_gets_blocks_of_1024_tokens():
    model = layers((6, full(1, 128, 64)), (23, mamba(540672, 64)))
    vllm, compact = plan_both(model, config(131072))
    assert round(vllm.request_bytes / GIB, 2) == 6.20
    assert round(compact.request_bytes / GIB, 2) == 0.40
    assert {g.kv_cache_spec.block_size for g in compact.kv_cache_groups} == {64, 1024}


def test_kernel_block_sizes_limit_the_scaling():
    model = layers((6, full(1, 128, 64)), (23, mamba(540672, 64)))
    cfg = config(131072, attention_kernel_block_sizes=[16, 64, 256])
    blocks = [g.block_size for g in kvplan.plan(cfg, [model], [1 << 42]).groups]
    assert set(blocks) == {64, 256}
    multiples = cfg.replace(attention_kernel_block_sizes=[specs.MultipleOf(512)])
    blocks = [g.block_size for g in kvplan.plan(multiples, [model], [1 << 42]).groups]
    assert set(blocks) == {64, 1024}


def test_steady_capacity_counts_in_flight_tokens_once():
    model = layers(
        (7, full(1, 256, 32)), (35, sliding(512, 1, 256, 32)), (42, sliding(4, 8, 256, 4))
    )
    cfg = kvplan.PlanningConfig(max_model_len=131072, max_in_flight_tokens=32768)
    plan = kvplan.plan(cfg, [model], [535530 * 7 * 32768])
    assert round(plan.max_concurrency, 2) == 9.16
    assert plan.steady_concurrency == pytest.approx(115, abs=1)
    assert plan.steady_capacity_tokens > 12 * plan.capacity_tokens


def test_the_reference_length_decides():
    model = layers((6, full(2, 64)), (40, sliding(1024, 2, 64)))

    def width(length):
        cfg = config(262144, 12, max_in_flight_tokens=0, reference_model_len=length)
        return kvplan.frontier(cfg, [model]).chosen.max_layers_per_group

    assert width(512) == 8, "short: 40 windowed layers fill five groups"
    assert width(262144) == 6, "long: one group of six full layers has no padding"


def test_one_token_pins_a_block_in_every_group():
    for p in kvplan.frontier(config(262144, 64), [mimo()]).points:
        assert p.min_request_bytes >= p.num_groups * p.bytes_per_block


def test_points_fall_and_stay_above_the_bounds():
    curve = kvplan.frontier(config(262144), [mimo()])
    assert curve.exact
    groups = [p.num_groups for p in curve.points]
    sizes = [p.request_bytes for p in curve.points]
    assert groups == sorted(set(groups))
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(p.request_bytes == p.bound_bytes >= curve.lower_bound_bytes for p in curve.points)
    assert curve.chosen.num_groups <= DEFAULT_MAX_GROUPS
    assert json.loads(json.dumps(to_dict(curve)))["chosen"]["num_groups"] == curve.chosen.num_groups


def test_too_few_groups_is_an_error():
    with pytest.raises(kvplan.InvalidArgument, match=r"max_groups is 2, but .* at least 3"):
        kvplan.plan(config(262144, 2), [mimo()], [1 << 42])


def test_every_stage_owns_layers_of_every_large_group():
    model = mimo()
    names = list(model)
    stages = [{n: model[n] for n in names[s::2]} for s in range(2)]
    plan = kvplan.plan(config(262144, 18, pipeline_parallel_size=2), stages, [1 << 42] * 2)
    first, second = (w.bytes_per_block for w in plan.workers)
    assert abs(first - second) <= 40960, "the stages' blocks differ by one page at most"
    assert (
        plan.request_bytes
        <= kvplan.plan(
            config(262144, 18, pipeline_parallel_size=2).replace(grouping="vllm"),
            stages,
            [1 << 42] * 2,
        ).request_bytes
    )
