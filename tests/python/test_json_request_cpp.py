"""The C++ reader of request files and the Python package's take the same files, and alike.

`KVPLAN_JSON_REQUEST_DUMP` names the C++ tests' executable of that name.
"""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from test_request import EVERY_KIND, FULL, MALFORMED, OUT_OF_RANGE, example, nested, worker

from kvplan import request
from kvplan.bench.scenarios import SCENARIOS
from kvplan.request import RequestError

DUMP = os.environ.get("KVPLAN_JSON_REQUEST_DUMP") or str(
    Path(__file__).parents[2] / "build/tests/cpp/json_request_dump"
)
pytestmark = pytest.mark.skipif(
    not Path(DUMP).is_file(), reason="KVPLAN_JSON_REQUEST_DUMP names no executable"
)
MUTATIONS = int(os.environ.get("KVPLAN_FUZZ_REQUESTS", "2000"))


def read_by_cpp(texts, folder):
    """The C++ reader's account of each text."""
    paths = []
    for i, text in enumerate(texts):
        paths.append(folder / f"{i}.json")
        paths[-1].write_bytes(text)
    lines = []
    for first in range(0, len(paths), 500):
        command = [DUMP, *map(str, paths[first : first + 500])]
        done = subprocess.run(command, capture_output=True, check=True)
        lines += done.stdout.splitlines()
    assert len(lines) == len(texts)
    return [json.loads(line) for line in lines]


def read_by_python(text):
    """The same of the package's reader."""
    try:
        r = request.loads(text)
        config = r.planning_config()
        workers = r.kv_cache_specs()
    except RequestError as e:
        return {"refused": str(e)}
    return {
        "config": {
            name: plain(name, getattr(config, name))
            for name in dir(config)
            if isinstance(getattr(type(config), name), property)
        },
        "workers": [
            {
                "available_memory": memory,
                "layers": [[name, repr(spec), spec.is_draft] for name, spec in layers.items()],
            }
            for layers, memory in zip(workers, r.available_memory(), strict=True)
        ],
    }


def plain(name, value):
    """A field of the config as JSON; a missing model type is an empty one."""
    if name == "model_type" and value is None:
        return ""
    return value


def check_alike(texts, folder):
    """Compare both readers on every text; returns how many both took and both refused."""
    taken = refused = 0
    for text, cpp in zip(texts, read_by_cpp(texts, folder), strict=True):
        python = read_by_python(text)
        shown = text[:2000]
        assert ("refused" in cpp) == ("refused" in python), (shown, cpp, python)
        if "refused" in cpp:
            refused += 1
            message = python["refused"].removeprefix("request: ")
            assert not message.startswith("$") or message == cpp["refused"], shown
            continue
        taken += 1
        assert cpp == python, shown
    return taken, refused


def encode(described):
    return json.dumps(described).encode()


VALID = [
    example(),
    *(example(specs=[s], workers=[worker(layers=[["a", 0], ["b", 0]])]) for s in EVERY_KIND),
    *(make().request(3) for make in SCENARIOS.values()),
    example(
        config={
            "max_model_len": 1000,
            "auto_fit": True,
            "kv_cache_layout": "BLHNC",
            "num_gpu_blocks_override": None,
            "mamba_cache_mode": "align",
            "speculative_method": "eagle3",
            "use_eagle": True,
            "model_type": "deepseek_v4",
            "draft_rule": "marker",
            "grouping": "compact",
            "max_groups": 4,
            "reference_model_len": 500,
            "attention_kernel_block_sizes": [{"multiple_of": 16}, 128],
            "mla_kernel_block_sizes": [],
        }
    ),
    example(
        specs=[
            {
                "kind": "CustomSpec",
                "block_size": 16,
                "page_size": 4096,
                "custom_class": "plugin.Spec",
                "uniform_type_base": "",
                "demand": {"cap_tokens": 4, "cap_includes_in_flight": True, "extra_pages": 1},
            },
            FULL | {"is_draft": True, "tokens_per_state": "2/8"},
        ],
        model="Größe \N{GRINNING FACE}",
    ),
]


def test_valid_requests(tmp_path):
    taken, refused = check_alike([encode(v) for v in VALID], tmp_path)
    assert (taken, refused) == (len(VALID), 0)


def test_refused_requests(tmp_path):
    texts = [t if isinstance(t, bytes) else t.encode() for t, _ in MALFORMED]
    texts += [encode(example(**changes)) for changes, _ in OUT_OF_RANGE]
    texts += [nested(depth).encode() for depth in (4, 500, 100_000)]
    texts += [b"\xef\xbb\xbf" + encode(example()), encode(example()) + b"x", b"{}", b"[1]"]
    texts += [encode(example()) + end for end in (b"\0", b"\0 more", b"\n\0")]
    taken, refused = check_alike(texts, tmp_path)
    assert (taken, refused) == (0, len(texts))


# fmt: off
HOSTILE = [
    None, True, 0, -1, 1, 2, 7, 16, 2**31, 2**53 + 1, 2**63 - 1, -(2**63) + 1, -(2**63), 2**63,
    2**64, 2**80, 1.0, 0.5, -0.0, 1e300,
    "", "a", "x" * 1025, "\u00e9" * 1024, "\x00", "bfloat16", "torch.float16", "float8_e4m3fn",
    "1/2", "01/2", "1/12345678901", "LBHNC", "lbhnc", "align", "FullAttentionSpec",
    [], {}, [[]], [["layers.0", 0]],
    {"multiple_of": 8}, {"multiple_of": True}, {"multiple_of": 8, "more": 1},
]
# fmt: on


def paths_of(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths_of(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from paths_of(value[i], (*path, i))


def mutate(rng, described):
    """A copy in which one value is another, gone, new, or moved."""
    copy = json.loads(json.dumps(described))
    path = rng.choice([p for p in paths_of(copy) if p])
    parent = copy
    for step in path[:-1]:
        parent = parent[step]
    kind = rng.random()
    if kind < 0.7:
        parent[path[-1]] = rng.choice(HOSTILE)
    elif kind < 0.85:
        del parent[path[-1]]
    elif isinstance(parent, dict):
        others = [k for d in VALID for p in paths_of(d) for k in p if isinstance(k, str)]
        parent[rng.choice([*others, "unknown", ""])] = rng.choice(HOSTILE)
    else:
        parent.insert(rng.randrange(len(parent) + 1), rng.choice(HOSTILE + parent))
    return copy


def test_mutated_requests(tmp_path):
    rng = random.Random(1)
    small = [v for v in VALID if len(encode(v)) < 4000]
    texts = []
    for _ in range(MUTATIONS):
        described = rng.choice(small)
        for _ in range(rng.choice((1, 1, 2))):
            described = mutate(rng, described)
        text = bytearray(encode(described))
        if rng.random() < 0.1:
            text[rng.randrange(len(text))] = rng.randrange(256)
        texts.append(bytes(text))
    taken, refused = check_alike(texts, tmp_path)
    assert taken > MUTATIONS / 20
    assert refused > MUTATIONS / 4
