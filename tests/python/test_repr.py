"""Results print their numbers, in one line."""

import kvplan
from kvplan import specs


def layers():
    full = specs.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    window = specs.SlidingWindowSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", sliding_window=1024
    )
    return {"a": full, "b": full, "c": window, "d": window, "e": window, "f": window}


CONFIG = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout="BLNHC")


def test_plan_groups_and_workers():
    plan = kvplan.plan(CONFIG, [layers()] * 2, [1 << 30] * 2)
    assert repr(plan) == (
        f"Plan(max_model_len=4096, num_blocks={plan.num_blocks}, "
        f"bytes_per_block={plan.bytes_per_block}, max_concurrency={plan.max_concurrency:.2f}, "
        f"groups={len(plan.groups)}, workers=2)"
    )
    group = plan.groups[0]
    assert repr(group) == (
        f"GroupReport(kind={group.kind!r}, num_layers={group.num_layers}, block_size=16, "
        f"page_size_bytes={group.page_size_bytes}, padding_bytes={group.padding_bytes}, "
        f"pages_per_request={group.pages_per_request})"
    )
    worker = plan.workers[1]
    assert repr(worker) == (
        f"WorkerReport(available_bytes={1 << 30}, num_blocks={plan.num_blocks}, "
        f"bytes_per_block={plan.bytes_per_block}, num_layers=6, "
        f"request_bytes={worker.request_bytes})"
    )


def test_a_plan_without_groups():
    plan = kvplan.plan(CONFIG, [{}], [1 << 30])
    assert repr(plan).endswith("groups=0, workers=1)")


def test_groupings():
    curve = kvplan.frontier(CONFIG, [layers()])
    point = curve.points[0]
    assert repr(point) == (
        f"GroupingPoint(num_groups={point.num_groups}, "
        f"max_layers_per_group={point.max_layers_per_group}, "
        f"bytes_per_block={point.bytes_per_block}, request_bytes={point.request_bytes}, "
        f"is_vllm={point.is_vllm})"
    )
    assert repr(curve) == (
        f"Frontier(reference_model_len=4096, points={len(curve.points)}, chosen={curve.chosen!r}, "
        f"exact={curve.exact})"
    )
    sliced = kvplan.sliced_point(CONFIG, [layers()])
    assert repr(sliced) == (
        f"SlicedPoint(num_groups=2, slices={sliced.slices}, "
        f"bytes_per_block={sliced.bytes_per_block}, request_bytes={sliced.request_bytes}, "
        f"request_blocks={sliced.request_blocks})"
    )
    plan = kvplan.plan(CONFIG.replace(grouping="sliced"), [layers()], [1 << 30])
    cut = next(group for group in plan.groups if group.slices > 1)
    assert f", slices={cut.slices}, " in repr(cut)


def test_pools():
    pool = kvplan.BlockPool(10)
    pool.get_new_blocks(3)
    assert repr(pool) == "BlockPool(num_blocks=10, num_free_blocks=6, num_cached_hashes=0)"
    sliced = kvplan.SlicedBlockPool(10, [1, 4])
    assert repr(sliced) == (
        "SlicedBlockPool(num_large_blocks=10, slices=[1, 4], num_free_large_blocks=9, "
        "num_cached_hashes=0)"
    )


def test_cache_manager():
    group = kvplan.CacheGroup("sliding_window", 16, window=128)
    assert repr(group) == "CacheGroup(kind='sliding_window', block_size=16, window=128)"
    manager = kvplan.CacheManager([group], num_blocks=10, max_model_len=64)
    hit = manager.find_prefix(manager.add_request(), 1)
    assert repr(hit) == "PrefixHit(num_tokens=0, num_groups=1)"


def test_every_public_result_has_one():
    plain = {
        name
        for name in kvplan.__all__
        if isinstance(cls := getattr(kvplan, name), type)
        and not issubclass(cls, BaseException)
        and cls.__repr__ is object.__repr__
    }
    assert not {name for name in plain if getattr(kvplan, name).__module__ == "kvplan._core"}
