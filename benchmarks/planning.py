"""Planning a whole engine: kvplan beside vLLM 0.33.0, in one process on the same inputs.

`plan` is native objects in, a finished plan out. `with configs` also reads every worker's
`KVCacheConfig` out of it as Python objects. vLLM's time is its two functions,
`get_global_kv_cache_groups` and `get_kv_cache_configs`. The answers are compared first.
"""

import argparse
import itertools

from side_by_side import median_seconds, oracle, report, show_ratio, show_seconds

# isort: split
# In tests/vllm033, which side_by_side puts on the path.
import native
from random_models import to_request
from real_models import attention, gemma_3_27b, jamba_1_5_large, layer, llama_3_1_70b

GIB = 1 << 30


def seven_kinds(tp, block_size):
    """237 caches of seven kinds on 61 layers, in the manner of DeepSeek-V4."""
    packing = {"dtype": "uint8", "state_content_bytes": 584, "alignment": 576}
    local = attention("SlidingWindowMLASpec", 64, 1, 512, sliding_window=128, **packing)
    layers = []
    for i in range(61):
        layers.append((layer(i, "swa"), local))
        if i < 2:
            continue
        ratio = 4 if i % 2 == 0 else 128
        main = attention("MLAAttentionSpec", 256, 1, 512, tokens_per_state=ratio, **packing)
        ring = attention("CircularBufferSpec", 2 * ratio, 1, 1024, head_size_v=0, dtype="float32")
        layers += [(layer(i, "mla"), main), (layer(i, "state"), ring)]
        if ratio == 4:
            indexer = attention("MLAAttentionSpec", 256, 1, 132, dtype="uint8", alignment=576)
            layers.append((layer(i, "indexer"), indexer | {"tokens_per_state": 4}))
            if i > 4:
                window = attention("CircularBufferSpec", 16, 1, 256, head_size_v=0)
                layers.append((layer(i, "indexer.state"), window | {"dtype": "float32"}))
    return layers


def request_of(layers, num_workers, num_stages, **config):
    """The layers over pipeline stages of equal size, each with the same number of workers."""
    bounds = [len(layers) * i // num_stages for i in range(num_stages + 1)]
    stages = [layers[a:b] for a, b in itertools.pairwise(bounds)]
    workers = [stage for stage in stages for _ in range(num_workers // num_stages)]
    config = {"max_model_len": 131072, "max_in_flight_tokens": 16384} | config
    return to_request(config, workers, [60 * GIB - i for i in range(num_workers)])


def cases(quick):
    """Name -> request."""
    models = {
        "80 equal layers": llama_3_1_70b,
        "Gemma-3-27B, 62 layers": gemma_3_27b,
        "Jamba-1.5-Large, 72 layers": jamba_1_5_large,
    }
    for name, model in models.items():
        layers = model(tp=1, block_size=16)
        for num_workers in (1, 8) if quick else (1, 8, 64, 512):
            yield name, num_workers, request_of(layers, num_workers, 1)
    caches = seven_kinds(1, 64)
    yield (
        f"{len(caches)} caches of 7 kinds, PP 8, auto-fit",
        64,
        request_of(caches, 64, 8, kv_cache_layout="BLHNC", auto_fit=True, max_model_len=1 << 24),
    )


def vllm_call(request):
    config, specs, memory = oracle.inputs(request)
    length = config.model_config.max_model_len
    planning = oracle.kv_cache_planning

    def call():
        config.model_config.max_model_len = length  # auto-fit writes it
        groups = planning.get_global_kv_cache_groups(config, specs)
        return planning.get_kv_cache_configs(config, specs, memory, groups)

    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="only 1 and 8 workers")
    options = parser.parse_args()

    import kvplan

    header = ["model", "workers", "vLLM 0.33.0", "plan", "ratio", "with configs", "ratio "]
    rows = []
    for name, num_workers, request in cases(options.quick):
        differences = native.compare(request)
        if differences:
            raise SystemExit(f"{name}: the answers differ: {differences}")
        inputs = native.inputs(request)
        theirs = median_seconds(vllm_call(request))
        ours = median_seconds(lambda: kvplan.plan(*inputs))  # noqa: B023
        read = median_seconds(lambda: list(kvplan.plan(*inputs).kv_cache_configs))  # noqa: B023
        times = [show_seconds(theirs), show_seconds(ours), show_ratio(theirs, ours)]
        times += [show_seconds(read), show_ratio(theirs, read)]
        rows.append([name, str(num_workers), *times])
    report(header, rows, options.json)


if __name__ == "__main__":
    main()
