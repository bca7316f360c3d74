"""Planner inputs rebuilt from public reports, as request dictionaries: sizes in bytes and tokens.

Shared by the tests of kvplan alone, by those beside the real vLLM, and by benchmarks.
"""

from typing import Any

GIB = 1 << 30
Request = dict[str, Any]
Spec = dict[str, Any]


def attention(kind: str, heads: int, head_size: int, block_size: int = 16, **fields: Any) -> Spec:
    """A bf16 attention spec unless `fields` say otherwise."""
    spec = {"kind": kind, "block_size": block_size, "num_kv_heads": heads, "head_size": head_size}
    return spec | {"dtype": "bfloat16"} | fields


def full(heads: int, head_size: int, block_size: int = 16, **fields: Any) -> Spec:
    return attention("FullAttentionSpec", heads, head_size, block_size, **fields)


def sliding(window: int, heads: int, head_size: int, block_size: int = 16, **fields: Any) -> Spec:
    spec = attention("SlidingWindowSpec", heads, head_size, block_size, **fields)
    return spec | {"sliding_window": window}


def mamba(page_bytes: int, block_size: int) -> Spec:
    """A state that fills one page of `page_bytes`."""
    shapes = {"shapes": [[page_bytes // 4]], "dtypes": ["float32"]}
    return {"kind": "MambaSpec", "block_size": block_size} | shapes


def request(
    counted: list[tuple[int, Spec]], memory: int | list[int], max_model_len: int, **config: Any
) -> Request:
    """`count` layers of each spec in turn, all on every worker; one worker per memory entry."""
    rows = [i for i, (count, _) in enumerate(counted) for _ in range(count)]
    layers = [[f"layers.{layer}", i] for layer, i in enumerate(rows)]
    memories = [memory] if isinstance(memory, int) else memory
    return {
        "kvplan_request": 1,
        "config": {"max_model_len": max_model_len} | config,
        "specs": [spec for _, spec in counted],
        "workers": [{"available_memory": m, "layers": layers} for m in memories],
    }


def auto_fitted(described: Request) -> Request:
    """The same, with the longest length that fits."""
    return described | {"config": described["config"] | {"auto_fit": True}}


def split(described: Request, *sizes: int) -> Request:
    """Pipeline stages of the given numbers of layers; worker i keeps its memory."""
    layers = described["workers"][0]["layers"]
    workers = []
    for size, worker in zip(sizes, described["workers"], strict=True):
        workers.append(worker | {"layers": layers[:size]})
        layers = layers[size:]
    config = described["config"] | {"pipeline_parallel_size": len(sizes)}
    return described | {"workers": workers, "config": config}


def deepseek_v4_1_flash(first_stage: tuple[str, ...] = ()) -> Request:
    """43 sliding-window MLA layers; four of them also have an MLA cache and an indexer.

    With `first_stage`, two pipeline stages: the first owns the layers of those names.
    """
    packing = {"dtype": "uint8", "state_content_bytes": 584, "alignment": 576}
    specs = [
        attention("SlidingWindowMLASpec", 1, 512, 64, sliding_window=128, **packing),
        attention("SlidingWindowMLASpec", 1, 512, 64, sliding_window=192, **packing),
    ]
    for block_size, ratio in ((128, 2), (64, 1)):
        compressed = {"tokens_per_state": ratio}
        specs.append(attention("MLAAttentionSpec", 1, 512, block_size, **packing, **compressed))
        specs.append(
            attention("MLAAttentionSpec", 1, 132, block_size, dtype="uint8", alignment=576)
            | compressed
        )
    layers: list[list[Any]] = []
    for i in range(43):
        layers.append([f"layers.{i}.swa", int(i >= 40)])
        if i in (2, 8, 14, 20):
            first = 4 if i == 20 else 2
            layers += [[f"layers.{i}.mla", first], [f"layers.{i}.indexer", first + 1]]
    stages = [layers]
    if first_stage:
        stages = [[row for row in layers if row[0] in first_stage]]
        stages += [[row for row in layers if row[0] not in first_stage]]
    return {
        "kvplan_request": 1,
        "config": {
            "max_model_len": 524288,
            "max_in_flight_tokens": 16384,
            "kv_cache_layout": "BLHNC",
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": len(stages),
        },
        "specs": specs,
        "workers": [{"available_memory": 4509715660, "layers": rows} for rows in stages],
    }


def one_odd_layer() -> Request:
    """Qwen3.6-35B with a drafter: one full layer of another shape beside 45 others."""
    specs = [(30, mamba(1081344, 528)), (10, full(2, 256, 528))]
    specs += [(5, sliding(4096, 2, 256, 528)), (1, full(1, 512, 528))]
    return request(specs, 60 * GIB, 262144)


def mimo() -> Request:
    shape = {"head_size_v": 128}
    specs = [(9, full(2, 192, **shape)), (39, sliding(128, 4, 192, **shape))]
    specs += [(5, sliding(1024, 4, 192, **shape))]
    return request(specs, 40 * GIB, 262144)


def gemma_4_26b() -> Request:
    """fp8 with a 4-byte scale per token and head: 520 and 1,032 bytes a token and head."""
    specs = [(25, sliding(1024, 8, 256, state_content_bytes=520))]
    specs += [(5, full(2, 512, state_content_bytes=1032))]
    return request(specs, int(15.18 * GIB), 32768)


def nemotron_3_nano() -> Request:
    return request([(6, full(1, 128, 64)), (23, mamba(540672, 64))], 40 * GIB, 131072)


def gpt_oss_eagle3(marked: bool = False) -> Request:
    """18 layers of either kind, and the drafter's."""
    draft = {"is_draft": True} if marked else {}
    specs = [(18, full(8, 64)), (18, sliding(128, 8, 64)), (1, full(8, 64, **draft))]
    return request(specs, 40 * GIB, 131072)


def llama_4_scout(chunked: bool) -> Request:
    specs = [(48, full(1, 128))]
    if chunked:
        local = attention("ChunkedLocalAttentionSpec", 1, 128, attention_chunk_size=8192)
        specs = [(12, full(1, 128)), (36, local)]
    return request(specs, int(88.38 * GIB), 10485760, max_in_flight_tokens=16384)


def gemma_4_31b(in_flight: int, **config: Any) -> Request:
    specs = [(10, full(4, 512)), (50, sliding(1024, 16, 256))]
    return request(specs, 49 * GIB, 262144, max_in_flight_tokens=in_flight, **config)


def eight_blocks(max_model_len: int, **config: Any) -> Request:
    """One layer, eight blocks of 128 tokens."""
    spec = full(8, 128, 128)
    return request([(1, spec)], 8 * 128 * 8 * 128 * 2 * 2, max_model_len, **config)


def opt_125m(override: int, **config: Any) -> Request:
    described = request([(12, full(12, 64))], 8 * GIB, 2048, num_gpu_blocks_override=override)
    return described | {"config": described["config"] | config}


def uneven_stages(sizes: tuple[int, int], memory: list[int], **config: Any) -> Request:
    return split(request([(sum(sizes), full(4, 128))], memory, 262144, **config), *sizes)


def capacity_twice() -> Request:
    """Groups of 7 layers of 32 KiB pages; the last 42 layers are windows of 4 tokens."""
    specs = [(7, full(1, 256, 32)), (35, sliding(512, 1, 256, 32)), (42, sliding(4, 8, 256, 4))]
    memory = 535530 * 7 * 32768
    return request(specs, memory, 131072, max_in_flight_tokens=32768)


def wrapping_elements() -> Request:
    """16 tokens x 2 x 8 heads x 128: 32,768 elements a block."""
    return request([(1, full(8, 128))], 40 * GIB, 4096)


def wrapping_bytes() -> Request:
    """Blocks 1,002,240 bytes apart: 27 pages of 64 tokens x 580 bytes side by side."""
    spec = attention("MLAAttentionSpec", 1, 580, 64, dtype="uint8")
    return request([(27, spec)], 40 * GIB, 4096, kv_cache_layout="BLHNC")


#: What vLLM 0.33.0 plans, and kvplan: groups, GiB of one request, blocks, capacity in tokens.
PLANNED: dict[str, tuple[Request, int, float, int, int]] = {
    "deepseek-v4.1-flash": (deepseek_v4_1_flash(), 17, 2.08, 32622, 1057457),
    "one odd layer": (one_odd_layer(), 46, 5.66, 59578, 2778017),
    "mimo": (mimo(), 11, 4.03, 209715, 2601899),
    "gemma-4-26b": (gemma_4_26b(), 6, 1.53, 48976, 325328),
    "nemotron-3-nano": (nemotron_3_nano(), 5, 6.20, 13239, 845644),
    "gpt-oss with a drafter": (gpt_oss_eagle3(), 2, 5.05, 68985, 1037759),
    "llama-4-scout": (llama_4_scout(chunked=True), 4, 60.42, 965345, 15337676),
    "gemma-4-31b": (gemma_4_31b(32768), 6, 45.79, 20070, 280494),
    "gemma-4-31b, tokens in flight": (gemma_4_31b(36961), 6, 48.99, 20070, 262183),
    "eight blocks": (eight_blocks(896), 1, 0.0, 8, 1024),
    "opt-125m": (opt_125m(129), 1, 0.07, 129, 2064),
    "uneven stages": (uneven_stages((56, 8), [40 * GIB] * 2), 1, 32.0, 23405, 374480),
    "capacity twice": (capacity_twice(), 12, 12.49, 535530, 1200598),
}

#: What both refuse, and the longest length that they name.
REFUSED: dict[str, tuple[Request, int]] = {
    "llama-4-scout, all full": (llama_4_scout(chunked=False), 3861360),
    "gemma-4-31b": (gemma_4_31b(65536), 58368),
    "gemma-4-31b, one token in flight too many": (gemma_4_31b(36962), 262048),
    "eight blocks": (eight_blocks(1024), 896),
    "override 50": (opt_125m(50), 784),
    "override 128": (opt_125m(128), 2032),
    "uneven stages": (uneven_stages((16, 32), [int(3.18 * GIB), int(6.37 * GIB)]), 104176),
}
