"""The request file: reading, refusing, writing, and its JSON schema."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

import kvplan
from kvplan import request, specs

ROOT = Path(__file__).parents[2]

FULL = {
    "kind": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 8,
    "head_size": 128,
    "dtype": "bfloat16",
}
# One of each kind, with every rare way to write a value.
EVERY_KIND = [
    FULL | {"sliding_window": 1024, "block_stride_alignment": {"multiple_of": 64}},
    FULL | {"non_causal": True},
    FULL | {"kind": "MLAAttentionSpec", "alignment": 576, "cache_role": "indexer"},
    FULL | {"kind": "HiddenStateCacheSpec", "head_size_v": 0, "is_draft": True},
    FULL | {"kind": "RSWASpec", "rswa_window": 128, "non_causal": True},
    FULL | {"kind": "SinkFullAttentionSpec", "sink_len": 4, "max_tp_shards": 8},
    FULL | {"kind": "ChunkedLocalAttentionSpec", "attention_chunk_size": 8192},
    FULL | {"kind": "SlidingWindowSpec", "sliding_window": 128, "extra_retained_tokens": 1},
    FULL | {"kind": "SlidingWindowMLASpec", "sliding_window": 128, "bounded_replay": True},
    FULL | {"kind": "CircularBufferSpec", "tokens_per_state": 2, "dcp_sharded": False},
    FULL | {"kind": "EncoderOnlyAttentionSpec", "kv_quant_mode": 5},
    FULL | {"kind": "CrossAttentionSpec", "tokens_per_state": "1/4"},
    {
        "kind": "MambaSpec",
        "block_size": 64,
        "shapes": [[3, 512], [8, 16, 128]],
        "dtypes": ["bfloat16", "float32"],
        "page_size_padded": 1 << 20,
        "mamba_type": "gdn_attn",
        "num_speculative_blocks": 2,
    },
    {"kind": "HiSparseHotSpec", "block_size": 16, "page_size": 64, "blocks_per_request": 2},
    {"kind": "HiSparseResidentSpec", "block_size": 16, "page_size": 64},
]


def example(**changes):
    """A valid request of two workers with the same two layers."""
    described = {
        "kvplan_request": 1,
        "config": {"max_model_len": 4096},
        "specs": [FULL, FULL | {"kind": "SlidingWindowSpec", "sliding_window": 1024}],
        "workers": [
            {"available_memory": 1 << 30, "layers": [["layers.0", 1], ["layers.1", 0]]},
            {"available_memory": 2 << 30, "same_layers_as": 0},
        ],
    }
    return described | changes


def worker(**fields):
    return {"available_memory": 1 << 30} | fields


def refused(text, *parts):
    """The message of the `RequestError`, which must be one line and hold all parts."""
    data = text if isinstance(text, (str, bytes)) else json.dumps(text)
    with pytest.raises(request.RequestError) as caught:
        request.loads(data, "in.json")
    message = str(caught.value)
    assert message.startswith("in.json: ")
    assert "\n" not in message
    assert len(message) < 500
    for part in parts:
        assert part in message
    return message


def test_reads_config_specs_and_workers():
    r = request.loads(json.dumps(example()))
    assert r.available_memory() == [1 << 30, 2 << 30]
    assert r.planning_config() == kvplan.PlanningConfig(max_model_len=4096)
    first, second = r.kv_cache_specs()
    assert list(first) == ["layers.0", "layers.1"]
    assert first["layers.1"] == specs.from_dict(FULL)
    assert second is first


@pytest.mark.parametrize("described", EVERY_KIND, ids=lambda d: d["kind"])
def test_every_kind_goes_through_a_file(described, tmp_path):
    text = json.dumps(
        example(specs=[described], workers=[worker(layers=[["a", 0]])], model="m", source="s")
    )
    r = request.loads(text)
    spec = r.kv_cache_specs()[0]["a"]
    assert type(spec).__name__ == described["kind"]
    again = request.from_objects(r.planning_config(), r.kv_cache_specs(), r.available_memory())
    request.write(again, tmp_path / "r.json")
    read = request.load(tmp_path / "r.json").kv_cache_specs()[0]["a"]
    assert read == spec
    assert read.to_dict() == spec.to_dict()
    assert read.is_draft == spec.is_draft


def test_the_schema_knows_every_native_kind_and_config_field():
    schema = request.json_schema()["properties"]
    natives = {
        name
        for name, cls in vars(specs).items()
        if isinstance(cls, type)
        and issubclass(cls, specs.KVCacheSpec)
        and name not in ("KVCacheSpec", "AttentionSpec", "UniformTypeKVCacheSpecs")
    }
    kinds = schema["specs"]["items"]["oneOf"]
    assert {kind["properties"]["kind"]["const"] for kind in kinds} == natives
    native = kvplan.PlanningConfig
    keywords = {name for name in dir(native) if isinstance(getattr(native, name), property)}
    assert set(schema["config"]["properties"]) == keywords


def test_writing_keeps_every_config_field(tmp_path):
    config = kvplan.PlanningConfig(
        max_model_len=1000,
        auto_fit=True,
        kv_cache_layout="BLHNC",
        num_gpu_blocks_override=7,
        mamba_cache_mode="align",
        speculative_method="eagle3",
        use_eagle=True,
        prefix_match_unit=32,
        reference_model_len=500,
        attention_kernel_block_sizes=[{"multiple_of": 16}, 128],
    )
    request.write(request.from_objects(config, [{}], [1]), tmp_path / "r.json")
    assert request.load(tmp_path / "r.json").planning_config() == config
    assert os.listdir(tmp_path) == ["r.json"]


def test_equal_specs_and_equal_workers_are_written_once():
    same = [{"a": specs.from_dict(FULL), "b": specs.from_dict(FULL)} for _ in range(3)]
    draft = [{"a": specs.from_dict(FULL), "b": specs.from_dict(FULL | {"is_draft": True})}]
    config = kvplan.PlanningConfig(max_model_len=1)
    r = request.from_objects(config, same + draft, [1, 2, 3, 4], model="m")
    assert len(r.document["specs"]) == 2
    workers = r.document["workers"]
    assert [w["same_layers_as"] for w in workers[1:3]] == [0, 0]
    assert workers[3]["layers"] == [["a", 0], ["b", 1]]
    assert request.loads(request.dumps(r)) == r


def test_objects_that_do_not_fit_the_format_are_refused():
    config = kvplan.PlanningConfig(max_model_len=1)
    with pytest.raises(request.RequestError, match="2 workers have specs but 1 have memory"):
        request.from_objects(config, [{}, {}], [1])
    with pytest.raises(request.RequestError, match="layers"):
        request.from_objects(config, [{"": specs.from_dict(FULL)}], [1])


MALFORMED = [
    ("", "not a JSON request"),
    ("{", "not a JSON request"),
    (b"\xff\xfe\x00", "not a JSON request"),
    ("[" * 200_000, "nested too deeply"),
    ('{"kvplan_request": 1, "config": {"max_model_len": NaN}}', "not a JSON request"),
    ('{"kvplan_request": 1, "config": {"max_model_len": 1e400}}', "out of range"),
    (f'{{"config": {{"max_model_len": {"9" * 5000}}}}}', "out of range"),
    (f'{{"config": {{"max_model_len": {2**63}}}}}', "<= 9223372036854775807"),
    ('{"config": {"max_model_len": 1.5}}', "Expected `int`, got `float`"),
    ('{"config": {"max_model_len": "8"}}', "Expected `int`, got `str`"),
    ('{"config": {"max_model_len": true}}', "Expected `int`, got `bool`"),
    ("null", "Expected `object`, got `null`"),
]


@pytest.mark.parametrize(("text", "part"), MALFORMED)
def test_malformed_text_is_refused(text, part):
    refused(text, part)


def nested(depth):
    """`shapes` of a Mamba spec, nested `depth` deep."""
    inner = "[" * depth + "]" * depth
    return f'{{"specs": [{{"kind": "MambaSpec", "block_size": 1, "shapes": {inner}}}]}}'


@pytest.mark.parametrize(("depth", "part"), [(4, "$.specs[0].shapes"), (500, "nested too deeply")])
def test_deep_nesting_is_refused(depth, part):
    refused(nested(depth), part)
    refused(nested(100_000), "nested too deeply")


OUT_OF_RANGE = [
    ({"kvplan_request": 2}, ["$.kvplan_request", "version 1"]),
    ({"config": {}}, ["$.config", "max_model_len"]),
    ({"config": {"max_model_len": 0}}, ["$.config.max_model_len", ">= 1"]),
    ({"config": {"max_model_len": 1, "max_modle_len": 1}}, ["$.config", "max_modle_len"]),
    ({"config": {"max_model_len": 1, "kv_cache_layout": "BHNC"}}, ["kv_cache_layout"]),
    ({"specs": [{}]}, ["$.specs[0]", "kind"]),
    ({"specs": [FULL | {"kind": "Full"}]}, ["$.specs[0].kind", "FullAttentionSpec"]),
    ({"specs": [FULL | {"kind": "UniformTypeKVCacheSpecs"}]}, ["$.specs[0].kind"]),
    ({"specs": [FULL | {"block_size": -1}]}, ["$.specs[0].block_size", ">= 1"]),
    ({"specs": [FULL | {"rswa_window": 1}]}, ["$.specs[0]", "rswa_window"]),
    ({"specs": [FULL | {"tokens_per_state": "1/0"}]}, ["$.specs[0].tokens_per_state"]),
    ({"specs": [FULL | {"block_stride_alignment": {"multiple_of": 0}}]}, ["multiple_of"]),
    ({"workers": []}, ["$.workers", "length"]),
    ({"workers": [worker()]}, ["$.workers[0]", "either `layers` or `same_layers_as`"]),
    (
        {"workers": [worker(layers=[], same_layers_as=0)]},
        ["$.workers[0]", "either `layers` or `same_layers_as`"],
    ),
    ({"workers": [worker(layers=[["a", 2]])]}, ["$.workers[0].layers[0]", "no spec 2"]),
    ({"workers": [worker(layers=[["a", -1]])]}, ["$.workers[0].layers[0][1]"]),
    ({"workers": [worker(layers=[["", 0]])]}, ["$.workers[0].layers[0][0]"]),
    ({"workers": [worker(layers=[["a" * 2000, 0]])]}, ["$.workers[0].layers[0][0]"]),
    ({"workers": [worker(layers=[["a", 0], ["a", 1]])]}, ["layers[1]", "'a'", "at [0]"]),
    ({"workers": [worker(layers=[["a", 0, 0]])]}, ["$.workers[0].layers[0]"]),
    ({"workers": [worker(same_layers_as=0)]}, ["$.workers[0].same_layers_as"]),
    (
        {"workers": [worker(same_layers_as=1), worker(same_layers_as=0)]},
        ["$.workers[0].same_layers_as", "worker 1 lists no layers itself"],
    ),
    (
        {"workers": [worker(layers=[]), *[worker(same_layers_as=i) for i in range(2)]]},
        ["$.workers[2].same_layers_as", "worker 1 lists no layers itself"],
    ),
    ({"workers": [worker(same_layers_as=9)]}, ["there is no worker 9"]),
    ({"workers": [worker(layers=[]) | {"available_memory": 2**70}]}, ["available_memory"]),
    ({"model": "x" * 5000}, ["$.model"]),
]


@pytest.mark.parametrize(("changes", "parts"), OUT_OF_RANGE)
def test_requests_out_of_range_are_refused(changes, parts):
    refused(example(**changes), *parts)


def test_a_dtype_that_does_not_exist_is_refused_with_its_place():
    refused(example(specs=[FULL, FULL | {"dtype": "bfloat17"}]), "$.specs[1].dtype", "bfloat17")


def test_too_many_workers_and_layers_are_refused():
    many = [worker(layers=[])] * (request.MAX_WORKERS + 1)
    refused(example(workers=many), "$.workers", str(request.MAX_WORKERS))
    rows = [[str(i), 0] for i in range(100_000)]
    shared = [worker(layers=rows)] + [worker(same_layers_as=0)] * 60
    refused(example(workers=shared), str(request.MAX_LAYERS))


def test_an_enormous_file_is_refused_without_reading_it_all(tmp_path):
    huge = tmp_path / "huge.json"
    with open(huge, "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(request.RequestError, match="64 MiB"):
        request.load(huge)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        request.load(tmp_path / "none.json")


def test_a_hundred_thousand_layers_are_read():
    rows = [[f"model.layers.{i}", i % 2] for i in range(100_000)]
    r = request.loads(json.dumps(example(workers=[worker(layers=rows)])))
    assert len(r.kv_cache_specs()[0]) == 100_000


def test_the_schema_takes_what_the_reader_takes():
    validator = Draft202012Validator(request.json_schema())
    validator.check_schema(validator.schema)
    taken = example(specs=EVERY_KIND, workers=[worker(layers=[["a", 0]]), worker(same_layers_as=0)])
    assert list(validator.iter_errors(taken)) == []
    for changes, parts in OUT_OF_RANGE[1:13]:  # of the rest only the indices are wrong
        assert not validator.is_valid(example(**changes)), parts


def test_the_documented_example_is_valid():
    text = (ROOT / "docs" / "request.md").read_text()
    block = text.split("```json\n")[1].split("```")[0]
    assert request.loads(block).kv_cache_specs()


def test_bytes_and_text_read_alike():
    text = json.dumps(example())
    assert request.loads(text) == request.loads(text.encode())
    assert msgspec.json.decode(request.dumps(request.loads(text))) == example()
