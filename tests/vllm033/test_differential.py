"""kvplan and vLLM 0.33.0 plan the same random models; every field must be equal.

`KVPLAN_FUZZ_MODELS` sets how many (default 2000), `KVPLAN_FUZZ_SEED` where to start.
A difference is shrunk and printed as a request that `kvplan plan --request` reads.
"""

import json
import multiprocessing
import os
import random
from collections import Counter
from pathlib import Path

import native
import oracle
import paths
import pytest
import shrink
from random_models import LAYOUTS, random_request, to_request
from real_models import REAL_MODELS, real_layers

MODELS = int(os.environ.get("KVPLAN_FUZZ_MODELS", "2000"))
FIRST_SEED = int(os.environ.get("KVPLAN_FUZZ_SEED", "0"))
CHUNK = 100

ONCE_DIFFERED = sorted((Path(__file__).parent / "once_differed").glob("*.json"))

oracle.remember_dtype_sizes()


def report(request):
    """The shrunk request with what differs in it."""
    small = shrink.shrink(request, lambda r: bool(native.compare(r)))
    lines = "\n  ".join(native.compare(small))
    return f"{request['model']}\n  {lines}\n{json.dumps(small)}"


def compare_seeds(first):
    """The seeds of a chunk that differ."""
    return [
        seed
        for seed in range(first, min(first + CHUNK, FIRST_SEED + MODELS))
        if native.compare(random_request(seed))
    ]


# A fork after torch has started threads is what Python warns of; the children only plan.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_random_models_plan_alike():
    chunks = range(FIRST_SEED, FIRST_SEED + MODELS, CHUNK)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        differing = [seed for seeds in pool.imap_unordered(compare_seeds, chunks) for seed in seeds]
    shown = "\n\n".join(report(random_request(seed)) for seed in sorted(differing)[:3])
    assert not differing, f"{len(differing)} of {MODELS} differ: {sorted(differing)[:20]}\n{shown}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(REAL_MODELS))
def test_real_models_plan_alike(name, layout):
    for tp in (1, 2, 4, 8):
        layers = real_layers(name, tp)
        half = len(layers) // 2
        for workers in ([layers], [layers[:half], layers[half:]], [layers[:3], layers[3:]]):
            for extra in ({}, {"auto_fit": True}, {"disable_hybrid_kv_cache_manager": True}):
                config = {"max_model_len": 131072, "kv_cache_layout": layout} | extra
                request = to_request(config, workers, [20 << 30] * len(workers))
                assert not native.compare(request), report(request | {"model": name})


def test_the_generator_reaches_every_path():
    seen = Counter()
    planned = 0
    for seed in range(1500):
        outcome, labels = paths.run_recorded(random_request(seed))
        seen.update(labels)
        planned += "error" not in outcome
    expected = (*paths.GROUPING_PATHS, *paths.PLAN_FEATURES, *paths.FAILURES)
    missing = [label for label in expected if seen[label] < 3]
    assert not missing
    assert planned > 1500 // 2


def leaves(value, path=()):
    """Every path to a plain value in an outcome."""
    if isinstance(value, (dict, list)) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, (*path, key))
    else:
        yield path


def changed(value, path):
    """A copy with one plain value replaced."""
    if not path:
        return [value]
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:])
    return copy


def test_no_field_is_left_out_of_the_comparison():
    compared = 0
    for seed in range(40):
        outcome = oracle.run(random_request(seed))
        parts = [outcome, *(part for part in outcome.values() if isinstance(part, dict))]
        if any("error" in part for part in parts):
            continue
        assert native.differences(outcome, outcome) == []
        for path in random.Random(seed).sample(found := list(leaves(outcome)), min(40, len(found))):
            assert native.differences(outcome, changed(outcome, path)), path
            compared += 1
    assert compared > 300


def test_shrinking_keeps_what_differs():
    """A stand-in for a difference: it needs one sliding-window layer and two workers."""

    def differs(request):
        layers = [i for worker in oracle.expand_workers(request) for _, i in worker]
        kinds = {request["specs"][i]["kind"] for i in layers}
        return "SlidingWindowSpec" in kinds and len(request["workers"]) > 1

    found = next(r for r in map(random_request, range(1000)) if differs(r))
    small = shrink.shrink(found, differs)
    assert len(small["workers"]) == 2
    assert sum(len(layers) for layers in oracle.expand_workers(small)) == 1
    assert list(small["config"]) == ["max_model_len"]


@pytest.mark.parametrize("path", ONCE_DIFFERED, ids=lambda path: path.stem)
def test_models_that_once_differed(path):
    assert native.compare(json.loads(path.read_text())) == []
