"""grouping="compact" from Python: what a curve has, what bounds it. C++ tests the search."""

import json

import pytest
import reported_cases as cases
from spec_makers import full, layers, mamba

import kvplan
from kvplan import request, specs
from kvplan.frontier import DEFAULT_MAX_GROUPS, to_dict


def inputs(described, **changes):
    """The config and the layers of a reported case."""
    read = request.loads(json.dumps(described))
    return read.planning_config().replace(**changes), read.kv_cache_specs()


def test_points_fall_and_stay_above_the_bounds():
    config, workers = inputs(cases.mimo(), grouping="compact")
    curve = kvplan.frontier(config, workers)
    assert curve.exact
    groups = [p.num_groups for p in curve.points]
    sizes = [p.request_bytes for p in curve.points]
    assert groups == sorted(set(groups))
    assert sizes == sorted(set(sizes), reverse=True)
    for p in curve.points:
        assert p.request_bytes == p.bound_bytes >= curve.lower_bound_bytes
        assert p.min_request_bytes >= p.num_groups * p.bytes_per_block, (
            "one token pins a block each"
        )
    assert curve.vllm.num_groups == 11
    assert curve.chosen.num_groups <= DEFAULT_MAX_GROUPS
    assert json.loads(json.dumps(to_dict(curve)))["chosen"]["num_groups"] == curve.chosen.num_groups


def test_kernel_block_sizes_limit_the_scaling():
    model = layers((6, full(1, 128, 64)), (23, mamba(540672, 64)))
    for sizes, scaled in (([16, 64, 256], 256), ([specs.MultipleOf(512)], 1024), (None, 1024)):
        given = {} if sizes is None else {"attention_kernel_block_sizes": sizes}
        config = kvplan.PlanningConfig(max_model_len=131072, grouping="compact", **given)
        plan = kvplan.plan(config, [model], [1 << 42])
        assert {group.block_size for group in plan.groups} == {64, scaled}


def test_what_a_plan_is_chosen_by():
    config, workers = inputs(cases.mimo(), grouping="compact", max_groups=18)
    plan = kvplan.plan(config, workers, [1 << 42])
    assert max(len(group.layer_names) for group in plan.kv_cache_groups) == 3
    with pytest.raises(kvplan.InvalidArgument, match=r"max_groups is 2, but .* at least 3"):
        kvplan.plan(config.replace(max_groups=2), workers, [1 << 42])
    short = kvplan.frontier(config.replace(reference_model_len=512), workers)
    assert short.reference_model_len == 512
