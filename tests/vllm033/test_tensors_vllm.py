"""Tensors and views like vLLM 0.33.0's: shapes, strides, offsets, dtypes and refusals."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import random_models  # noqa: E402
from to_vllm import vllm_groups, vllm_spec  # noqa: E402
from vllm.v1 import kv_cache_interface as interface  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache  # noqa: E402

import kvplan  # noqa: E402
from kvplan import specs, tensors  # noqa: E402

NUM_BLOCKS = 3


def geometry(views):
    return {
        name: (tuple(v.shape), tuple(v.stride()), v.storage_offset(), v.dtype)
        for name, v in views.items()
    }


def ends_inside(view, size):
    """What torch checks on a real device."""
    last = view.storage_offset() + sum(
        (n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True)
    )
    return (last + 1) * view.element_size() <= size


def outcome(function, config, *args):
    try:
        views = function(config, *args)
        size = config.kv_cache_tensors[0].size if config.kv_cache_tensors else 0
        if not all(ends_inside(v, size) for v in views.values()):
            return RuntimeError
        return geometry(views)
    except (AssertionError, ValueError, RuntimeError) as error:
        return AssertionError if isinstance(error, AssertionError) else type(error)


def random_configs():
    """Placements of a few blocks of random models, on no device: the numbers are what matters."""
    for seed in range(1500):
        request = random_models.random_request(seed)
        layers = {
            n: specs.from_dict(request["specs"][i]) for n, i in request["workers"][0]["layers"]
        }
        layout = request["config"].get("kv_cache_layout", "LBNHC")
        config = kvplan.PlanningConfig(max_model_len=256, kv_cache_layout=layout)
        try:
            groups = kvplan.get_kv_cache_groups(config, dict(layers))
            bytes_per_block = kvplan.planning._get_kv_cache_bytes_per_block(groups, layout)
            placed = kvplan.get_kv_cache_config_from_groups(
                config, groups, NUM_BLOCKS * bytes_per_block
            )
        except (ValueError, NotImplementedError, AssertionError):
            continue
        yield seed, layout, placed


def theirs(config):
    return interface.KVCacheConfig(
        num_blocks=config.num_blocks,
        kv_cache_tensors=[
            interface.KVCacheTensor(
                size=t.size,
                layers=list(t.layers),
                layer_stride=t.layer_stride,
                block_stride=t.block_stride,
                offset=t.offset,
            )
            for t in config.kv_cache_tensors
        ],
        kv_cache_groups=vllm_groups(config.kv_cache_groups),
    )


def test_random_models_have_the_same_views():
    compared = split = refused = 0
    for seed, layout, config in random_configs():
        rng = random.Random(seed)
        sizes = None
        if rng.random() < 0.6:
            # States of other kinds are never split (vLLM's prepare_kernel_block_sizes).
            sizes = [
                rng.choice((s.block_size, 16, 8))
                if isinstance(s, specs.AttentionSpec | specs.UniformTypeKVCacheSpecs)
                else s.block_size
                for s in (g.kv_cache_spec for g in config.kv_cache_groups)
            ]
        expected = outcome(
            allocate_kv_cache,
            theirs(config),
            torch.device("meta"),
            interface.KVCacheLayout[layout],
            sizes,
        )
        actual = outcome(tensors.allocate_kv_cache, config, "meta", layout, sizes)
        if isinstance(expected, type):
            assert isinstance(actual, type), (seed, expected, actual)
            # AssertionError of vLLM is InconsistentSpec here; what torch refuses, the core does.
            assert issubclass(actual, (ValueError, AssertionError)), (seed, expected, actual)
            refused += 1
        else:
            assert actual == expected, (seed, layout, sizes)
            compared += 1
            split += sizes is not None
    assert compared > 300
    assert split > 50
    assert refused > 50


@pytest.mark.parametrize("layout", random_models.LAYOUTS)
def test_views_of_a_real_buffer(layout):
    ours = specs.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
    config = kvplan.PlanningConfig(max_model_len=64, kv_cache_layout=layout)
    plan = kvplan.plan(config, [{"a": ours, "b": ours}], [1 << 16])
    placed = plan.kv_cache_configs[0]
    expected = allocate_kv_cache(
        theirs(placed), torch.device("cpu"), interface.KVCacheLayout[layout]
    )
    actual = tensors.allocate_kv_cache(plan, "cpu")
    for cache in (expected, actual):
        for i, view in enumerate(cache.values()):
            view.copy_(torch.arange(view.numel()).view(view.shape) + i)
    for name in expected:
        assert torch.equal(expected[name], actual[name])
    assert bytes(expected["a"].untyped_storage()) == bytes(actual["a"].untyped_storage())


def test_grouping_kernel_blocks():
    cache = torch.zeros(12, 2, 3)
    for num_blocks in (12, 6, 4, 3, 1):
        expected = interface.group_kernel_blocks(cache, num_blocks)
        actual = tensors.group_kernel_blocks(cache, num_blocks)
        assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
    for function in (interface.group_kernel_blocks, tensors.group_kernel_blocks):
        with pytest.raises(AssertionError):
            function(cache, 5)


def test_vllm_enums_are_accepted():
    spec = specs.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
    tensor = specs.KVCacheTensor(8192, ["a"], 4096, 1024)
    raw = torch.zeros(8192, dtype=torch.int8)
    ours = tensors.create_kv_cache_views(raw, spec, 4, interface.KVCacheLayout.LBNHC, tensor)
    other = interface.create_kv_cache_views(
        raw, vllm_spec(spec), 4, interface.KVCacheLayout.LBNHC, tensor
    )
    assert geometry({"a": ours[0]}) == geometry({"a": other[0]})
