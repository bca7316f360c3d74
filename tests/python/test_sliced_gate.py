"""What KVPLAN_GROUPING=sliced refuses in vLLM, and the sentences; no vLLM is needed."""

from types import SimpleNamespace

import pytest

from kvplan.enums import MultipleOf
from kvplan.vllm.sliced import gate


def config(**changed):
    """Of a plain server; ``section__field`` changes one field."""
    sections = {
        "device_config": {"device_type": "cpu"},
        "cache_config": {"kv_offloading_size": None},
        "parallel_config": {
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "enable_elastic_ep": False,
        },
        "model_config": {"enable_sleep_mode": False, "is_encoder_decoder": False},
        "scheduler_config": {"disable_hybrid_kv_cache_manager": False},
        "observability_config": {"kv_cache_metrics": False},
        "kv_events_config": {"enable_kv_cache_events": False},
    }
    whole = {"kv_transfer_config": None, "speculative_config": None}
    for name, value in changed.items():
        section, _, field = name.partition("__")
        if field:
            sections[section][field] = value
        else:
            whole[section] = value
    return SimpleNamespace(**whole, **{k: SimpleNamespace(**v) for k, v in sections.items()})


def spec(kind, dtype="bfloat16", block_size=16):
    return type(kind, (), {"dtype": dtype, "kv_quant_mode": 0, "block_size": block_size})()


def group(kind, block_size):
    return SimpleNamespace(kv_cache_spec=spec(kind, block_size=block_size))


def backend(name, layouts=None):
    declared = None if layouts is None else [SimpleNamespace(name=one) for one in layouts]
    return SimpleNamespace(get_name=lambda: name, supported_kv_cache_layouts=lambda: declared)


def test_versions():
    assert gate.version_reason("0.32.0") is None
    for version in ("0.31.2", "0.32.1", "0.33.0"):
        assert f"0.32.0 only, not in {version}" in gate.version_reason(version)


def test_a_plain_server_is_taken():
    gate.require_config(config())
    gate.require_specs([{"a": spec("FullAttentionSpec"), "b": spec("SlidingWindowSpec")}])


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("device_config__device_type", "cuda", "CPU only, not on cuda"),
        ("kv_transfer_config", object(), "KV connector"),
        ("cache_config__kv_offloading_size", 4.0, "offloading"),
        ("kv_events_config__enable_kv_cache_events", True, "KV cache events"),
        ("observability_config__kv_cache_metrics", True, "KV cache metrics"),
        ("speculative_config", object(), "speculative decoding"),
        ("parallel_config__pipeline_parallel_size", 2, "pipeline_parallel_size=2"),
        ("parallel_config__decode_context_parallel_size", 2, "decode_context_parallel_size=2"),
        ("parallel_config__prefill_context_parallel_size", 2, "prefill_context_parallel_size=2"),
        ("parallel_config__enable_elastic_ep", True, "elastic expert parallelism"),
        ("model_config__enable_sleep_mode", True, "sleep mode"),
        ("model_config__is_encoder_decoder", True, "encoder-decoder"),
        ("scheduler_config__disable_hybrid_kv_cache_manager", True, "disable_hybrid_kv_cache"),
    ],
)
def test_features_that_are_refused(field, value, reason):
    with pytest.raises(gate.Refused, match=reason):
        gate.require_config(config(**{field: value}))


def test_a_server_without_an_event_config_is_taken():
    plain = config()
    plain.kv_events_config = None
    gate.require_config(plain)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ({"m": spec("MambaSpec")}, "layer m keeps a Mamba state"),
        ({"x": spec("MLAAttentionSpec")}, "layer x has a MLAAttentionSpec"),
        ({"x": spec("SinkFullAttentionSpec")}, "SinkFullAttentionSpec"),
        (
            {"a": spec("FullAttentionSpec"), "b": spec("SlidingWindowSpec", dtype="uint8")},
            "several precisions",
        ),
    ],
)
def test_kinds_of_cache_that_are_refused(specs, reason):
    with pytest.raises(gate.Refused, match=reason):
        gate.require_specs([specs])


@pytest.mark.parametrize(
    ("resolved", "planned"),
    [("LBHNC", "BLHNC"), ("LBNHC", "BLNHC"), ("BLHNC", "BLHNC"), ("BLNHC", "BLNHC")],
)
def test_the_layout_is_the_resolved_one_with_blocks_outermost(resolved, planned):
    assert gate.block_outermost_layout(resolved, [backend("FLASH_ATTN")]) == planned
    assert gate.block_outermost_layout(resolved, [backend("A", [resolved, planned])]) == planned


def test_backends_and_layouts_that_are_refused():
    assert gate.block_outermost_layout("LBHNC", [backend("CPU_ATTN", ["LBHNC"])]) == "BLHNC"
    with pytest.raises(gate.Refused, match="backend ODD does not take the layout BLHNC"):
        gate.block_outermost_layout("LBHNC", [backend("ODD", ["LBHNC"])])
    with pytest.raises(gate.Refused, match="FLEX_ATTENTION takes no block id beyond"):
        gate.block_outermost_layout("BLHNC", [backend("FLEX_ATTENTION")])
    for layout in ("LHBNC", "BHLNC"):
        with pytest.raises(gate.Refused, match=f"in the layout {layout}"):
            gate.block_outermost_layout(layout, [])


def test_blocks_that_kernels_do_not_take_whole_are_refused():
    groups = [group("FullAttentionSpec", 48), group("SlidingWindowSpec", 48)]
    gate.require_groups(groups, [MultipleOf(16)])
    gate.require_groups(groups, [16, 48])
    for sizes in ([MultipleOf(32)], [16, 32], []):
        with pytest.raises(gate.Refused, match="do not take blocks of 48 tokens whole"):
            gate.require_groups(groups, sizes)


def test_chunked_attention_needs_one_block_size():
    groups = [group("FullAttentionSpec", 32), group("ChunkedLocalAttentionSpec", 16)]
    of_several_shapes = SimpleNamespace(kv_cache_specs={"a": groups[1].kv_cache_spec})
    for second in (groups[1], SimpleNamespace(kv_cache_spec=of_several_shapes)):
        with pytest.raises(gate.Refused, match="chunked local attention needs blocks of one size"):
            gate.require_groups([groups[0], second], [MultipleOf(16)])
