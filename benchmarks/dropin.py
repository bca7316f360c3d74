"""vLLM 0.33.0's whole planning step, stock, with kvplan's builder alone, and with kvplan's flow.

One process, the same vLLM objects in and vLLM's objects out. "own objects" gives every worker spec
objects of its own, as they arrive from worker processes. The answers are compared first.
"""

import argparse
import contextlib
import dataclasses
from types import SimpleNamespace

import planning as cases
from side_by_side import median_seconds, oracle, report, show_ratio, show_seconds

# isort: split
# In tests/vllm033, which side_by_side puts on the path.
import dropin_outcome as dropin
from vllm.v1.core import kv_cache_planning

import kvplan.vllm
from kvplan.vllm import installation


def step(request, functions, *, own_objects=False):
    """One planning step; each starts from the requested length, which auto-fit overwrites."""
    config, specs, memory = oracle.inputs(request)
    if own_objects:
        specs = [
            {name: dataclasses.replace(spec) for name, spec in worker.items()} for worker in specs
        ]
    length = config.model_config.max_model_len

    def call():
        config.model_config.max_model_len = length
        groups = functions.get_global_kv_cache_groups(config, specs)
        return functions.get_kv_cache_configs(config, specs, memory, groups)

    return call


def timed(call, mode):
    with mode:
        return median_seconds(call)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="only 1 and 8 workers")
    options = parser.parse_args()

    assert kvplan.vllm.install()
    from kvplan.vllm.builder import KvplanKVCacheConfigBuilder

    originals = SimpleNamespace(**installation.current.originals)
    header = ["model", "workers", "stock", "builder only", "ratio", "full flow", "ratio "]
    header += ["own objects", "ratio  "]
    rows = []
    for name, workers, request in cases.cases(options.quick):
        difference = dropin.difference(request)
        if difference:
            raise SystemExit(f"{name}: the answers differ: {difference}")
        builder = dropin.builder(KvplanKVCacheConfigBuilder())
        stock = timed(step(request, originals), installation.stock_mode())
        alone = timed(step(request, originals), builder)
        flow = timed(step(request, kv_cache_planning), contextlib.nullcontext())
        own = timed(step(request, kv_cache_planning, own_objects=True), contextlib.nullcontext())
        row = [name, str(workers), show_seconds(stock)]
        for ours in (alone, flow, own):
            row += [show_seconds(ours), show_ratio(stock, ours)]
        rows.append(row)
    assert not kvplan.vllm.stats()["fallback"], kvplan.vllm.stats()
    report(header, rows, options.json)


if __name__ == "__main__":
    main()
