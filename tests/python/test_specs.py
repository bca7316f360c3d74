"""Native specs: vLLM's names, values, equality, and errors that name the field."""

import copy
import pickle
from fractions import Fraction

import pytest

import kvplan
from kvplan import specs
from kvplan.specs import (
    CustomDemand,
    CustomSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    MultipleOf,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

ATTENTION = {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
EXAMPLES = {
    "FullAttentionSpec": {"block_size": 16, **ATTENTION, "sliding_window": 512},
    "MLAAttentionSpec": {
        "block_size": 64,
        "num_kv_heads": 1,
        "head_size": 512,
        "dtype": "uint8",
        "state_content_bytes": 584,
        "alignment": 576,
        "tokens_per_state": 2,
        "cache_role": "indexer",
        "block_stride_alignment": MultipleOf(64),
    },
    "HiddenStateCacheSpec": {
        "block_size": 1,
        "num_kv_heads": 4,
        "head_size": 1024,
        "dtype": "float32",
    },
    "RSWASpec": {"block_size": 16, **ATTENTION, "rswa_window": 256},
    "SinkFullAttentionSpec": {"block_size": 16, **ATTENTION, "sink_len": 4},
    "ChunkedLocalAttentionSpec": {"block_size": 16, **ATTENTION, "attention_chunk_size": 8192},
    "SlidingWindowSpec": {"block_size": 16, **ATTENTION, "sliding_window": 1024},
    "SlidingWindowMLASpec": {
        "block_size": 64,
        "num_kv_heads": 1,
        "head_size": 512,
        "dtype": "uint8",
        "sliding_window": 128,
        "model_version": "deepseek_v4",
        "bounded_replay": True,
    },
    "CircularBufferSpec": {"block_size": 8, **ATTENTION},
    "EncoderOnlyAttentionSpec": {"block_size": 16, **ATTENTION},
    "CrossAttentionSpec": {"block_size": 16, **ATTENTION, "tokens_per_state": Fraction(1, 4)},
    "MambaSpec": {
        "block_size": 1024,
        "shapes": ((4, 8), (16,)),
        "dtypes": ("bfloat16", "float32"),
        "mamba_type": "gdn_attn",
        "num_speculative_blocks": 2,
    },
    "HiSparseHotSpec": {"block_size": 16, "page_size": 4096, "blocks_per_request": 3},
    "HiSparseResidentSpec": {"block_size": 16, "page_size": 4096},
    "CustomSpec": {
        "block_size": 16,
        "page_size": 4096,
        "custom_class": "vendor.Spec",
        "demand": CustomDemand(cap_tokens=128, cap_includes_in_flight=True, extra_pages=1),
    },
}


@pytest.fixture(params=sorted(EXAMPLES))
def example(request):
    return getattr(specs, request.param)(**EXAMPLES[request.param])


class TestEveryKind:
    def test_survives_pickle_copy_and_dict(self, example):
        assert pickle.loads(pickle.dumps(example)) == example
        assert copy.deepcopy(example) == example
        assert specs.from_dict(example.to_dict()) == example
        assert type(specs.from_dict(example.to_dict())) is type(example)

    def test_equality_follows_the_fields(self, example):
        other = example.replace(block_size=example.block_size * 2)
        assert other != example
        assert other.replace(block_size=example.block_size) == example
        assert hash(example.replace()) == hash(example)

    def test_a_drafts_spec_equals_the_targets(self, example):
        draft = example.replace(is_draft=True)
        assert draft == example
        assert hash(draft) == hash(example)
        assert draft.is_draft
        assert not example.is_draft

    def test_is_immutable(self, example):
        with pytest.raises(AttributeError):
            example.block_size = 1

    def test_repr_names_the_class_and_the_fields(self, example):
        assert repr(example).startswith(f"{type(example).__name__}(block_size=")

    def test_merges_with_itself(self, example):
        assert type(example).merge([example, example]) == example.replace(
            **({"alignment": None} if hasattr(example, "alignment") else {})
        )

    def test_unknown_field_is_named(self, example):
        with pytest.raises(TypeError, match="no_such_field"):
            example.replace(no_such_field=1)

    @pytest.mark.parametrize("bad", [0, -1])
    def test_block_size_must_be_positive(self, example, bad):
        with pytest.raises(ValueError, match=f"block_size must be positive, got {bad}"):
            example.replace(block_size=bad)

    @pytest.mark.parametrize("bad", [1.0, float("nan"), "16", None])
    def test_block_size_must_be_an_integer(self, example, bad):
        with pytest.raises(TypeError, match="block_size must be an integer"):
            example.replace(block_size=bad)

    def test_huge_numbers_are_refused(self, example):
        with pytest.raises(ValueError, match="64-bit"):
            example.replace(block_size=10**30)


def test_isinstance_follows_vllms_hierarchy():
    mla = specs.MLAAttentionSpec(**EXAMPLES["MLAAttentionSpec"])
    window = specs.SlidingWindowMLASpec(**EXAMPLES["SlidingWindowMLASpec"])
    assert isinstance(mla, FullAttentionSpec)
    assert isinstance(mla, specs.AttentionSpec)
    assert isinstance(window, SlidingWindowSpec)
    assert not isinstance(window, FullAttentionSpec)
    assert isinstance(specs.MambaSpec(**EXAMPLES["MambaSpec"]), specs.KVCacheSpec)


def test_pages_of_known_formats():
    # bf16 K and V of 8 heads x 128, 16 tokens.
    assert FullAttentionSpec(block_size=16, **ATTENTION).page_size_bytes == 16 * 8 * 256 * 2
    # 64 tokens, two a state, of 584 bytes, padded to 576.
    mla = MLAAttentionSpec(**EXAMPLES["MLAAttentionSpec"])
    assert mla.unpadded_page_size_bytes == 32 * 584
    assert mla.page_size_bytes == 33 * 576
    assert mla.num_states == 32
    # An fp32 scale for each token and head, inline: 260 bytes a token and head, K and V.
    packed = FullAttentionSpec(
        block_size=16,
        num_kv_heads=8,
        head_size=256,
        dtype="uint8",
        kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
        state_content_bytes=520,
    )
    assert packed.page_size_bytes == 66_560
    mamba = MambaSpec(**EXAMPLES["MambaSpec"])
    assert mamba.page_size_bytes == 4 * 8 * 2 + 16 * 4


def test_stride_alignment_counts_kernel_blocks():
    spec = MLAAttentionSpec(
        block_size=128,
        num_kv_heads=1,
        head_size=576,
        dtype="bfloat16",
        block_stride_alignment=MultipleOf(64),
    )
    assert spec.get_block_stride_alignment() == 64 * 576 * 2
    assert spec.replace(block_size=64).get_block_stride_alignment() == 1
    assert spec.replace(block_stride_alignment=512).get_block_stride_alignment() == 512


def test_a_padded_page_smaller_than_its_content_is_refused_when_asked_for():
    spec = FullAttentionSpec(block_size=16, page_size_padded=100, **ATTENTION)
    with pytest.raises(kvplan.InconsistentSpec, match="page_size_padded 100 is smaller"):
        _ = spec.page_size_bytes
    assert issubclass(kvplan.InconsistentSpec, AssertionError)
    assert issubclass(kvplan.InconsistentSpec, ValueError)


class TestBadFields:
    def test_missing_fields_are_named(self):
        with pytest.raises(TypeError, match="FullAttentionSpec needs num_kv_heads"):
            FullAttentionSpec(block_size=16)

    def test_unknown_dtypes_list_the_known(self):
        with pytest.raises(ValueError, match="unknown dtype 'bf16'; known: bfloat16"):
            FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype="bf16")

    @pytest.mark.parametrize("field", ["num_kv_heads", "head_size", "sliding_window"])
    def test_zero_and_negative_sizes(self, field):
        for bad in (0, -3):
            with pytest.raises(ValueError, match=f"{field} must be positive, got {bad}"):
                SlidingWindowSpec(**{**EXAMPLES["SlidingWindowSpec"], field: bad})

    def test_flags_are_not_numbers(self):
        with pytest.raises(TypeError, match="dcp_sharded must be True or False"):
            FullAttentionSpec(block_size=16, dcp_sharded=1, **ATTENTION)
        with pytest.raises(TypeError, match="block_size must be an integer, got True"):
            FullAttentionSpec(block_size=True, **ATTENTION)

    def test_the_head_size_of_v_is_a_size_or_none(self):
        same = FullAttentionSpec(block_size=16, head_size_v=None, **ATTENTION)
        assert same.head_size_v == same.head_size
        with pytest.raises(ValueError, match=r"head_size_v must be 0 or more.* got -1"):
            FullAttentionSpec(block_size=16, head_size_v=-1, **ATTENTION)
        with pytest.raises(ValueError, match=r"head_size_v must be 0 or more.* got -1"):
            same.replace(head_size_v=-1)

    def test_a_quantization_mode_is_not_negative(self):
        with pytest.raises(ValueError, match="kv_quant_mode must be 0 or more, got -1"):
            FullAttentionSpec(block_size=16, kv_quant_mode=-1, **ATTENTION)

    def test_one_dtype_for_each_state(self):
        with pytest.raises(ValueError, match="one entry for each state"):
            MambaSpec(block_size=16, shapes=((1,), (2,)), dtypes=("bfloat16",))

    def test_pages_beyond_64_bits(self):
        spec = FullAttentionSpec(block_size=2**40, num_kv_heads=2**20, head_size=128, dtype="int8")
        with pytest.raises(kvplan.Overflow, match="page size leaves the 64-bit range"):
            _ = spec.page_size_bytes

    def test_unknown_model_version(self):
        with pytest.raises(AssertionError, match="Unsupported model version: v5"):
            SlidingWindowMLASpec(**{**EXAMPLES["SlidingWindowMLASpec"], "model_version": "v5"})

    def test_dict_without_kind(self):
        with pytest.raises(ValueError, match="needs a kind"):
            specs.from_dict({"block_size": 16})
        with pytest.raises(ValueError, match="unknown KV cache spec class 'NopeSpec'"):
            specs.from_dict({"kind": "NopeSpec", "block_size": 16})


class TestSubclasses:
    def test_a_subclass_that_adds_nothing_is_planned_by_its_base(self):
        class Tagged(FullAttentionSpec):
            pass

        spec = Tagged(block_size=16, **ATTENTION)
        plan = kvplan.plan(kvplan.PlanningConfig(max_model_len=64), [{"layer": spec}], [1 << 20])
        assert plan.groups[0].kind == "FullAttentionSpec"

    def test_a_subclass_that_changes_the_page_is_refused(self):
        class Bigger(FullAttentionSpec):
            @property
            def page_size_bytes(self):
                return 1

        with pytest.raises(TypeError, match=r"overrides page_size_bytes.*CustomSpec"):
            kvplan.plan(
                kvplan.PlanningConfig(max_model_len=64),
                [{"layer": Bigger(block_size=16, **ATTENTION)}],
                [1 << 20],
            )

    def test_a_custom_spec_is_planned_from_its_numbers(self):
        spec = CustomSpec(
            block_size=16,
            page_size=4096,
            custom_class="vendor.Spec",
            demand=CustomDemand(extra_pages=2),
        )
        plan = kvplan.plan(
            kvplan.PlanningConfig(max_model_len=160), [{"layer": spec}], [4096 * 100]
        )
        assert plan.num_blocks == 100
        assert plan.groups[0].pages_per_request == 10 + 2


class TestUniformType:
    def test_holds_layers_of_one_type(self):
        layers = {
            "a": FullAttentionSpec(block_size=16, **ATTENTION),
            "b": FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=64, dtype="bfloat16"),
        }
        uniform = UniformTypeKVCacheSpecs.from_specs(layers)
        assert uniform.block_size == 16
        assert uniform.page_size_bytes == sum(s.page_size_bytes for s in layers.values())
        assert uniform.kv_cache_specs == layers
        assert uniform.first_spec is layers["a"]
        config = kvplan.PlanningConfig(max_model_len=100)
        assert uniform.max_memory_usage_pages(config) == 7
        assert pickle.loads(pickle.dumps(uniform)) == uniform

    def test_other_block_sizes_are_another_type(self):
        layers = {
            "a": FullAttentionSpec(block_size=16, **ATTENTION),
            "b": FullAttentionSpec(block_size=32, **ATTENTION),
        }
        assert UniformTypeKVCacheSpecs.from_specs(layers) is None


def test_registry_knows_bases():
    registry = specs.KVCacheSpecRegistry
    mla = MLAAttentionSpec(**EXAMPLES["MLAAttentionSpec"])
    assert registry.get_uniform_type_base_spec(mla) is FullAttentionSpec

    @specs.register_kv_cache_spec(uniform_type_base_spec=FullAttentionSpec)
    class Registered(FullAttentionSpec):
        pass

    spec = Registered(block_size=16, **ATTENTION)
    assert registry.get_uniform_type_base_spec(spec) is FullAttentionSpec
    with pytest.raises(ValueError, match="Conflicting registration"):
        registry.register(Registered, uniform_type_base_spec=Registered)
    encoder = specs.EncoderOnlyAttentionSpec(**EXAMPLES["EncoderOnlyAttentionSpec"])
    with pytest.raises(ValueError, match="Unsupported KV cache spec type for layer enc"):
        registry.check_kv_cache_spec_registry({"enc": encoder})
