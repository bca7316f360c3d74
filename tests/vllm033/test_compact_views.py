"""Compact groupings through vLLM 0.33.0's own placement and tensors-to-views code, on real tensors;
and plans with slices, which its planner does not make, through the latter.

Within a group every (layer, block) page must be bytes of its own; between groups, which lie over
each other, the pages of one block must not touch those of another.
"""

from dataclasses import fields
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from spec_makers import full, layers, mamba, sliding  # noqa: E402
from to_vllm import vllm_config, vllm_groups, vllm_spec  # noqa: E402
from vllm.v1 import kv_cache_interface as interface  # noqa: E402
from vllm.v1.attention.backend import MultipleOf  # noqa: E402
from vllm.v1.core import (  # noqa: E402
    kv_cache_config_builder,
    kv_cache_planning,
    kv_cache_utils,
)
from vllm.v1.worker.utils import allocate_kv_cache, prepare_kernel_block_sizes  # noqa: E402

import kvplan  # noqa: E402
from kvplan import specs, tensors  # noqa: E402
from kvplan.vllm.sliced.config import SlicedKVCacheConfig  # noqa: E402

NUM_BLOCKS = 4


def deepseek(scale):
    """Case 1's kinds: windows on every layer, MLA and an indexer on some."""
    packing = {"dtype": "uint8", "alignment": 576}
    rows = {}
    for i in range(11 * scale):
        rows[f"layers.{i}.swa"] = specs.SlidingWindowMLASpec(
            block_size=64,
            num_kv_heads=1,
            head_size=512,
            sliding_window=128,
            state_content_bytes=584,
            **packing,
        )
        if i % 4 == 2:
            shared = {"block_size": 128, "num_kv_heads": 1, "tokens_per_state": 2}
            rows[f"layers.{i}.mla"] = specs.MLAAttentionSpec(
                head_size=512, state_content_bytes=584, **shared, **packing
            )
            rows[f"layers.{i}.indexer"] = specs.MLAAttentionSpec(head_size=132, **shared, **packing)
    return rows


MODELS = {
    "two kinds": layers((3, full(2, 32)), (11, sliding(128, 2, 32))),
    "head sizes side by side": layers(
        (6, mamba(16896, 32)), (5, full(2, 64, 32)), (1, full(1, 128, 32))
    ),
    "block scaled, page padded": layers(
        (10, sliding(64, 8, 32, state_content_bytes=72)),
        (2, full(2, 64, state_content_bytes=136)),
    ),
    "block scaled to a state": layers((6, full(1, 32, 64)), (9, mamba(67584, 64))),
    "MLA and indexers": deepseek(1),
}
LAYOUTS = ["LBNHC", "LBHNC", "BLNHC", "BLHNC"]


class Backend:
    """An attention backend that takes what vLLM's FlashAttention takes."""

    @staticmethod
    def get_name():
        return "BACKEND"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(16)]


@pytest.fixture(autouse=True)
def _builder(monkeypatch):
    builder = kv_cache_planning.DefaultKVCacheConfigBuilder()
    monkeypatch.setattr(
        kv_cache_config_builder, "get_kv_cache_config_builder", lambda vllm_config: builder
    )


def vllm_plan(model, config, groups, memory):
    """The `KVCacheConfig` of vLLM for groups that kvplan chose."""
    vllm_specs = [{name: vllm_spec(s) for name, s in model.items()}]
    return kv_cache_planning.get_kv_cache_configs(
        vllm_config(config), vllm_specs, [memory], vllm_groups(groups)
    )[0]


def spec_of(group, name):
    spec = group.kv_cache_spec
    if isinstance(spec, interface.UniformTypeKVCacheSpecs):
        return spec.kv_cache_specs[name]
    return spec


def kernel_block_sizes(kv_cache_config):
    """What vLLM would cut every group's blocks into for `Backend`."""
    attn_groups = [
        [
            SimpleNamespace(backend=Backend, kv_cache_spec=spec_of(g, name))
            for name in g.layer_names
            if isinstance(spec_of(g, name), interface.AttentionSpec)
        ]
        for g in kv_cache_config.kv_cache_groups
    ]
    return prepare_kernel_block_sizes(kv_cache_config, attn_groups)


def pages(view, num_blocks):
    """The bytes of every block, kernel blocks of one block together."""
    raw = view.view(torch.uint8)
    return raw.unflatten(0, (num_blocks, -1))


def every_grouping():
    for name, model in MODELS.items():
        for layout in LAYOUTS:
            config = kvplan.PlanningConfig(
                max_model_len=4096,
                max_in_flight_tokens=256,
                kv_cache_layout=layout,
                grouping="compact",
                max_groups=64,
            )
            try:
                points = kvplan.frontier(config, [model]).points
            except kvplan.PageSizeError:
                continue  # MLA pages that only a block-outermost layout can hold
            for p in points:
                yield pytest.param(
                    model,
                    config.replace(max_groups=p.num_groups),
                    id=f"{name}-{layout}-{p.num_groups} groups",
                )


@pytest.mark.parametrize(("model", "config"), list(every_grouping()))
def test_every_page_is_its_own(model, config):
    memory = 1 << 34
    chosen = kvplan.plan(config, [model], [memory])
    assert len(chosen.kv_cache_groups) == config.max_groups
    small = config.replace(num_gpu_blocks_override=NUM_BLOCKS)
    # For the views a handful of blocks will do, too few for a request of the planned length.
    groups = vllm_groups(chosen.kv_cache_groups)
    planned = vllm_plan(model, config, chosen.kv_cache_groups, memory)
    assert planned.num_blocks == chosen.num_blocks
    placed = kv_cache_planning.get_kv_cache_config_from_groups(
        vllm_config(small),
        groups,
        NUM_BLOCKS * chosen.bytes_per_block,
    )
    assert placed.num_blocks == NUM_BLOCKS
    layout = vllm_config(config).cache_config.get_resolved_kv_cache_layout()
    views = allocate_kv_cache(placed, torch.device("cpu"), layout, kernel_block_sizes(placed))
    assert views.keys() == model.keys()
    buffer = torch.empty(0, dtype=torch.uint8).set_(next(iter(views.values())).untyped_storage())
    assert buffer.numel() == NUM_BLOCKS * chosen.bytes_per_block

    for group in groups:
        buffer.zero_()
        content = 0
        for name in group.layer_names:
            for page in pages(views[name], NUM_BLOCKS):
                assert not page.any(), f"{name} lies on another page of its group"
                page.fill_(1)
                content += page.numel()
        assert int(buffer.sum(dtype=torch.int64)) == content

    buffer.zero_()
    for group in groups:
        for name in group.layer_names:
            for block, page in enumerate(pages(views[name], NUM_BLOCKS), start=1):
                assert ((page == 0) | (page == block)).all(), f"{name} reaches into another block"
                page.fill_(block)


@pytest.mark.parametrize(("model", "config"), list(every_grouping()))
def test_scheduler_accepts_the_groups(model, config):
    chosen = kvplan.plan(config, [model], [1 << 34])
    planned = vllm_plan(model, config, chosen.kv_cache_groups, 1 << 34)
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config([planned])
    assert len(scheduler.kv_cache_groups) == len(chosen.kv_cache_groups)
    block, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(scheduler, vllm_config(config))
    assert block % hashed == 0
    for group in scheduler.kv_cache_groups:
        assert block % group.kv_cache_spec.block_size == 0


SLICED = {
    **{name: MODELS[name] for name in ("two kinds", "MLA and indexers")},
    "three kinds": layers((2, full(8, 64)), (6, sliding(64, 1, 64)), (3, sliding(256, 2, 32))),
}


@pytest.mark.parametrize("layout", ["BLHNC", "BLNHC"])
@pytest.mark.parametrize("model", SLICED)
def test_slices_in_the_workers_views(model, layout):
    config = kvplan.PlanningConfig(
        max_model_len=256, max_in_flight_tokens=64, kv_cache_layout=layout, grouping="sliced"
    )
    chosen = kvplan.plan(config, [SLICED[model]], [1 << 24])
    slices = tuple(group.slices for group in chosen.kv_cache_groups)
    assert max(slices) > 1
    (native,) = chosen.kv_cache_configs
    planned = SlicedKVCacheConfig(
        native.num_blocks,
        [
            interface.KVCacheTensor(
                **{f.name: getattr(t, f.name) for f in fields(interface.KVCacheTensor)}
            )
            for t in native.kv_cache_tensors
        ],
        vllm_groups(chosen.kv_cache_groups),
        slices=slices,
    )
    sizes = [spec_of(g, g.layer_names[0]).block_size for g in planned.kv_cache_groups]
    views = allocate_kv_cache(planned, torch.device("cpu"), interface.KVCacheLayout[layout], sizes)
    buffer = torch.empty(0, dtype=torch.uint8).set_(next(iter(views.values())).untyped_storage())
    assert buffer.numel() == native.num_blocks * chosen.bytes_per_block
    ours = tensors.allocate_kv_cache(chosen, "cpu")
    for group, k in zip(planned.kv_cache_groups, slices, strict=True):
        slice_bytes = chosen.bytes_per_block // k
        buffer.zero_()
        for name in group.layer_names:
            view = views[name]
            assert view.shape[0] == native.num_blocks * k
            assert view.shape == ours[name].shape
            assert view.stride() == ours[name].stride()
            assert view.storage_offset() == ours[name].storage_offset()
            for i in (0, 1, k, native.num_blocks * k - 1):
                view[i].view(torch.uint8).fill_(1)
        inside = buffer.view(native.num_blocks * k, slice_bytes).any(1).nonzero().flatten().tolist()
        assert inside == sorted({0, 1, k, native.num_blocks * k - 1}), "one range of bytes"
