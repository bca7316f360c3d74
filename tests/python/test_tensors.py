"""Plans as torch tensors: what a layer's view covers is exactly what the plan gives it."""

from __future__ import annotations

import random

import pytest
from torch_or_skip import DEVICES, torch

import kvplan
from kvplan import specs, tensors

LAYOUTS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
NUM_BLOCKS = 3


def random_spec(rng):
    block_size = rng.choice((4, 8, 16))
    heads = rng.choice((1, 2, 3))
    head_size = rng.choice((4, 8, 12))
    dtype = rng.choice(("bfloat16", "float32", "uint8"))
    fields = dict(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype=dtype)
    kind = rng.randrange(5)
    if kind == 0:
        return specs.SlidingWindowSpec(**fields, sliding_window=rng.choice((8, 64)))
    if kind == 1:
        return specs.MLAAttentionSpec(**fields | {"num_kv_heads": 1})
    if kind == 2:
        return specs.MambaSpec(
            block_size=block_size,
            shapes=((rng.choice((48, 96, 200)),), (16, 2)),
            dtypes=("float32", "bfloat16"),
        )
    spec = specs.FullAttentionSpec(**fields)
    if kind == 3:
        return spec.replace(page_size_padded=spec.page_size_bytes + rng.choice((4, 64, 128)))
    return spec


def random_plan(seed):
    """A small plan, or None where the planner refuses the model."""
    rng = random.Random(seed)
    kinds = [random_spec(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.5:  # one block size, so that pages often have one size, too
        size = kinds[0].block_size
        kinds = [k.replace(block_size=size) for k in kinds if "padded" not in repr(k)] or kinds[:1]
    layers = {f"layers.{i}": rng.choice(kinds) for i in range(rng.randrange(1, 9))}
    config = kvplan.PlanningConfig(
        max_model_len=64,
        max_in_flight_tokens=64,
        kv_cache_layout=rng.choice(LAYOUTS),
        num_gpu_blocks_override=NUM_BLOCKS,
        grouping=rng.choice(("vllm", "compact")),
    )
    try:
        # A request need not fit into a handful of blocks: place the groups for them.
        plan = kvplan.plan(config.replace(num_gpu_blocks_override=None), [layers], [1 << 26])
        return kvplan.get_kv_cache_config_from_groups(
            config, plan.kv_cache_groups, NUM_BLOCKS * plan.bytes_per_block
        ), config.kv_cache_layout
    except (ValueError, NotImplementedError, AssertionError):
        return None


PLANS = [(seed, plan) for seed in range(400) if (plan := random_plan(seed)) is not None]


def layer_spec(group, name):
    if isinstance(group.kv_cache_spec, specs.UniformTypeKVCacheSpecs):
        return group.kv_cache_spec.kv_cache_specs[name]
    return group.kv_cache_spec


def planned_bytes(config, layout, name):
    """Addresses of a layer's states, block by block, from the plan's numbers and the layout's
    name alone.
    """
    tensor = next(t for t in config.kv_cache_tensors if name in t.layers)
    group = next(g for g in config.kv_cache_groups if name in g.layer_names)
    spec = layer_spec(group, name)
    heads, states, content = spec.num_heads, spec.num_states, spec.state_content_size_bytes
    num_blocks = config.num_blocks_of(tensor)
    head_stride = {
        "LBHNC": states * content,
        "BLHNC": states * content,
        "LBNHC": content,
        "BLNHC": content,
        "LHBNC": num_blocks * tensor.block_stride,
        "BHLNC": len(tensor.layers) * tensor.layer_stride,
    }[layout]
    state_stride = heads * content if layout in ("LBNHC", "BLNHC") else content
    start = tensor.offset + tensor.layers.index(name) * tensor.layer_stride
    for block in range(num_blocks):
        for head in range(heads):
            for state in range(states):
                first = start + block * tensor.block_stride
                first += head * head_stride + state * state_stride
                yield range(first, first + content)


def test_random_plans_are_many():
    layouts = {layout for _, (_, layout) in PLANS}
    assert layouts == set(LAYOUTS)
    assert len(PLANS) > 150
    mixed = [p for _, (p, _) in PLANS if len({t.block_stride for t in p.kv_cache_tensors}) > 1]
    padded = [
        p
        for _, (p, _) in PLANS
        if any("page_size_padded=" in repr(g.kv_cache_spec) for g in p.kv_cache_groups)
    ]
    assert mixed
    assert padded
    assert any(len(p.kv_cache_groups) > 2 for _, (p, _) in PLANS)


@pytest.mark.parametrize("device", DEVICES)
def test_writing_through_a_view_changes_its_bytes_and_no_others(device):
    for seed, (config, layout) in PLANS:
        caches = tensors.allocate_kv_cache(config, device, layout)
        assert set(caches) == {n for t in config.kv_cache_tensors for n in t.layers}
        storage = next(iter(caches.values())).untyped_storage()
        buffer = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
        assert buffer.numel() == config.kv_cache_tensors[0].size
        for name, view in caches.items():
            buffer.zero_()
            view.copy_(torch.full_like(view.contiguous().view(torch.uint8), 255).view(view.dtype))
            addresses = [a for run in planned_bytes(config, layout, name) for a in run]
            expected = torch.zeros(buffer.numel(), dtype=torch.uint8)
            expected[torch.tensor(addresses)] = 255
            assert torch.equal(buffer.cpu(), expected), (seed, layout, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_are_in_logical_order(layout):
    spec = specs.FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")
    plan = kvplan.plan(
        kvplan.PlanningConfig(max_model_len=16, kv_cache_layout=layout),
        [{"a": spec, "b": spec}],
        [1 << 16],
    )
    caches = tensors.allocate_kv_cache(plan, "cpu")
    for view in caches.values():
        assert view.shape == (plan.num_blocks, 2, 4, 16)  # K and V of a state together
        assert view.dtype == torch.bfloat16
        assert not view.any()
    assert caches["a"].untyped_storage().data_ptr() == caches["b"].untyped_storage().data_ptr()


def full(**fields):
    return specs.FullAttentionSpec(
        block_size=32, num_kv_heads=2, head_size=8, dtype="bfloat16", **fields
    )


def one_group(layout, spec=None, num_layers=2):
    config = kvplan.PlanningConfig(max_model_len=32, kv_cache_layout=layout)
    layers = {f"layers.{i}": spec or full() for i in range(num_layers)}
    return kvplan.plan(config, [layers], [1 << 18])


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_kernel_blocks_subdivide_a_block(layout):
    plan = one_group(layout)
    whole = tensors.allocate_kv_cache(plan, "cpu")["layers.1"]
    split = tensors.allocate_kv_cache(plan, "cpu", kernel_block_sizes=[8])["layers.1"]
    assert split.shape == (plan.num_blocks * 4, 2, 8, 16)
    grouped = tensors.group_kernel_blocks(split, plan.num_blocks)
    assert grouped.shape == (plan.num_blocks, 4, 2, 8, 16)
    assert grouped.data_ptr() == split.data_ptr()
    assert grouped.stride(0) == whole.stride(0)
    assert grouped.storage_offset() == whole.storage_offset()
    assert tensors.group_kernel_blocks(whole, plan.num_blocks) is whole


@pytest.mark.parametrize("layout", ["BLHNC", "BLNHC", "BHLNC"])
def test_blocks_with_other_layers_between_cannot_be_split(layout):
    with pytest.raises(kvplan.LayoutError, match=r"8 tokens.*--block-size 8.*LBNHC"):
        tensors.allocate_kv_cache(one_group(layout), "cpu", kernel_block_sizes=[8])


def test_kernel_blocks_must_divide_the_block():
    with pytest.raises(ValueError, match="Kernel block size 12 must divide"):
        tensors.allocate_kv_cache(one_group("LBNHC"), "cpu", kernel_block_sizes=[12])
    with pytest.raises(kvplan.InconsistentSpec, match="10 kernel blocks are no multiple"):
        tensors.group_kernel_blocks(torch.zeros(10, 1), 4)


def test_padded_pages_cannot_be_split():
    spec = full(page_size_padded=4096)
    with pytest.raises(ValueError, match="4096"):
        tensors.allocate_kv_cache(one_group("LBNHC", spec), "cpu", kernel_block_sizes=[8])


def test_bad_buffers_are_named():
    tensor = specs.KVCacheTensor(8192, ["a"], 4096, 2048)
    args = (full(), 2, "LBNHC", tensor)
    with pytest.raises(kvplan.InvalidArgument, match="ends at byte 4096 of a buffer of 4095"):
        tensors.create_kv_cache_views(torch.zeros(4095, dtype=torch.int8), *args)
    with pytest.raises(kvplan.InvalidArgument, match="raw: needs a torch tensor, got ndarray"):
        tensors.create_kv_cache_views(torch.zeros(8192, dtype=torch.int8).numpy(), *args)
    with pytest.raises(kvplan.InvalidArgument, match=r"raw: needs dtype.*float32"):
        tensors.create_kv_cache_views(torch.zeros(8192), *args)
    with pytest.raises(kvplan.InvalidArgument, match="raw: needs one contiguous axis"):
        tensors.create_kv_cache_views(torch.zeros(2, 4096, dtype=torch.int8), *args)
    with pytest.raises(kvplan.InvalidArgument, match="raw: needs one contiguous axis"):
        tensors.create_kv_cache_views(torch.zeros(16384, dtype=torch.int8)[::2], *args)
    with pytest.raises(kvplan.InvalidArgument, match="multiples of 2 bytes; raw begins at byte 1 "):
        tensors.create_kv_cache_views(torch.zeros(8193, dtype=torch.int8)[1:], *args)
    odd = one_group("BLHNC", full(page_size_padded=2049))
    with pytest.raises(kvplan.InvalidArgument, match=r"multiples of 2 bytes.*layer_stride=2049"):
        tensors.allocate_kv_cache(odd, "cpu")
    with pytest.raises(kvplan.InconsistentSpec, match=r"got shape \(\)"):
        tensors.group_kernel_blocks(torch.zeros(()), 4)


@pytest.mark.parametrize(
    ("layout", "layer_stride", "block_stride"),
    [
        ("LBNHC", 8192, 1024),  # blocks reach into the next one
        ("LBNHC", 2048, 2048),  # layers into blocks
        ("BLHNC", 1024, 8192),
        ("BLNHC", 4096, 4096),
        ("LBHNC", 1, 2048),
    ],
)
def test_strides_with_which_pages_overlap_are_named(layout, layer_stride, block_stride):
    raw = torch.zeros(1 << 16, dtype=torch.int8)
    tensor = specs.KVCacheTensor(raw.numel(), ["a", "b"], layer_stride, block_stride)
    message = f"layer_stride={layer_stride} and block_stride={block_stride}"
    with pytest.raises(kvplan.InvalidArgument, match=f"pages lie over each other with {message}"):
        tensors.create_kv_cache_views(raw, full(), 4, layout, tensor)
    one = specs.KVCacheTensor(raw.numel(), ["a"], layer_stride, 2048)
    assert len(tensors.create_kv_cache_views(raw, full(), 4, layout, one)) == 1


def test_a_config_without_layout_asks_for_it():
    config = one_group("LBNHC").kv_cache_configs[0]
    with pytest.raises(kvplan.InvalidArgument, match="layout"):
        tensors.allocate_kv_cache(config, "cpu")
    assert tensors.allocate_kv_cache(specs.KVCacheConfig(1, [], []), "cpu", "LBNHC") == {}


def test_workers_of_a_plan_have_their_own_layers():
    plan = kvplan.plan(
        kvplan.PlanningConfig(max_model_len=32),
        [{"a": full()}, {"b": full(), "c": full()}],
        [1 << 18] * 2,
    )
    assert set(tensors.allocate_kv_cache(plan, "cpu", worker=1)) == {"b", "c"}
    for worker in (2, -1):
        with pytest.raises(kvplan.InvalidArgument, match=f"worker: {worker} is out of range.* 2"):
            tensors.allocate_kv_cache(plan, "cpu", worker=worker)


def test_a_state_that_spans_the_block_cannot_be_split():
    spec = specs.MambaSpec(block_size=32, shapes=((64,),), dtypes=("float32",))
    plan = kvplan.plan(kvplan.PlanningConfig(max_model_len=32), [{"a": spec}], [1 << 16])
    with pytest.raises(kvplan.LayoutError, match="1 states of a block of 32 tokens"):
        tensors.allocate_kv_cache(plan, "cpu", kernel_block_sizes=[8])
