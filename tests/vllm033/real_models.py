"""The KV caches of published models, as (layer name, spec) lists; sizes from their configs.

Each function takes the tensor-parallel size, which splits the KV heads, and the block size.
"""

from typing import Any

Layers = list[tuple[str, dict[str, Any]]]


def attention(kind: str, block_size: int, heads: int, head_size: int, **fields: Any) -> dict:
    spec = {"kind": kind, "block_size": block_size, "num_kv_heads": heads, "head_size": head_size}
    return spec | {"dtype": "bfloat16"} | fields


def layer(i: int, suffix: str = "self_attn.attn") -> str:
    return f"model.layers.{i}.{suffix}"


def llama_3_1_70b(tp: int, block_size: int) -> Layers:
    spec = attention("FullAttentionSpec", block_size, max(8 // tp, 1), 128, max_tp_shards=8)
    return [(layer(i), spec) for i in range(80)]


def gemma_3_27b(tp: int, block_size: int) -> Layers:
    heads = max(16 // tp, 1)
    full = attention("FullAttentionSpec", block_size, heads, 128)
    local = attention("SlidingWindowSpec", block_size, heads, 128, sliding_window=1024)
    return [(layer(i), full if i % 6 == 5 else local) for i in range(62)]


def gemma_4_26b(tp: int, block_size: int) -> Layers:
    """Two head shapes, fp8 with a 4-byte scale per token and head."""
    full = attention(
        "FullAttentionSpec", block_size, max(2 // tp, 1), 512, state_content_bytes=1032
    )
    local = attention(
        "SlidingWindowSpec", block_size, max(8 // tp, 1), 256, state_content_bytes=520
    )
    local = local | {"sliding_window": 1024}
    return [(layer(i), full if i % 6 == 5 else local) for i in range(30)]


def gpt_oss_120b(tp: int, block_size: int) -> Layers:
    heads = max(8 // tp, 1)
    full = attention("FullAttentionSpec", block_size, heads, 64)
    local = attention("SlidingWindowSpec", block_size, heads, 64, sliding_window=128)
    layers = [(layer(i), local if i % 2 == 0 else full) for i in range(36)]
    return layers + [("draft.layers.0.attn", full | {"is_draft": True})]


def llama_4_scout(tp: int, block_size: int) -> Layers:
    heads = max(8 // tp, 1)
    full = attention("FullAttentionSpec", block_size, heads, 128)
    local = attention(
        "ChunkedLocalAttentionSpec", block_size, heads, 128, attention_chunk_size=8192
    )
    return [(layer(i), full if i % 4 == 3 else local) for i in range(48)]


def jamba_1_5_large(tp: int, block_size: int) -> Layers:
    """72 layers, one of eight is attention; the state is one padded page."""
    heads = max(8 // tp, 1)
    state_bytes = 16384 // tp * (16 * 2 + 3 * 2)
    tokens = -(-state_bytes // (heads * 128 * 2 * 2) // block_size) * block_size + block_size
    page = tokens * heads * 128 * 2 * 2
    full = attention("FullAttentionSpec", tokens, heads, 128)
    mamba = {
        "kind": "MambaSpec",
        "block_size": tokens,
        "shapes": [[3, 16384 // tp], [16384 // tp, 16]],
        "dtypes": ["bfloat16", "bfloat16"],
        "page_size_padded": page,
        "mamba_type": "mamba1",
    }
    return [
        (layer(i, "attn" if i % 8 == 4 else "mamba"), full if i % 8 == 4 else mamba)
        for i in range(72)
    ]


def nemotron_3_nano(tp: int, block_size: int) -> Layers:
    full = attention("FullAttentionSpec", 64, max(2 // tp, 1), 128)
    mamba = {
        "kind": "MambaSpec",
        "block_size": 4096,
        "shapes": [[3, 6144 // tp], [64 // tp, 64, 128]],
        "dtypes": ["bfloat16", "float32"],
    }
    return [(layer(i), full if i % 9 == 5 else mamba) for i in range(52) if i % 2]


def qwen3_next_80b(tp: int, block_size: int) -> Layers:
    """48 layers, one of four is full attention, the others gated delta nets."""
    heads = max(2 // tp, 1)
    conv, state = [3, 8192 // tp], [32 // tp, 128, 128]
    state_bytes = 3 * (8192 // tp) * 2 + (32 // tp) * 128 * 128 * 4
    tokens = -(-state_bytes // (heads * 256 * 2 * 2) // 16) * 16 + 16
    full = attention("FullAttentionSpec", tokens, heads, 256)
    mamba = {
        "kind": "MambaSpec",
        "block_size": tokens,
        "shapes": [conv, state],
        "dtypes": ["bfloat16", "float32"],
        "page_size_padded": tokens * heads * 256 * 2 * 2,
        "mamba_type": "gdn_attn",
        "num_speculative_blocks": 2,
    }
    return [(layer(i), full if i % 4 == 3 else mamba) for i in range(48)]


def mimo(tp: int, block_size: int) -> Layers:
    """Full and sliding attention with different head counts, and a drafter."""
    full = attention("FullAttentionSpec", block_size, max(4 // tp, 1), 192, head_size_v=128)
    local = attention("SlidingWindowSpec", block_size, max(8 // tp, 1), 192, head_size_v=128)
    local = local | {"sliding_window": 128}
    layers = [(layer(i), full if i % 6 == 0 else local) for i in range(48)]
    draft = local | {"sliding_window": 1024, "is_draft": True}
    return layers + [(f"draft.layers.{i}.attn", draft) for i in range(5)]


def deepseek_v3_2(tp: int, block_size: int) -> Layers:
    """MLA in fp8 with a lightning indexer beside each layer."""
    main = attention("MLAAttentionSpec", 64, 1, 576, dtype="uint8", state_content_bytes=656)
    main = main | {"cache_dtype_str": "fp8_ds_mla", "max_tp_shards": 1}
    indexer = attention("MLAAttentionSpec", 64, 1, 132, dtype="uint8", cache_role="indexer")
    layers = []
    for i in range(61):
        layers.append((layer(i), main))
        layers.append((layer(i, "self_attn.indexer.k_cache"), indexer | {"max_tp_shards": 1}))
    return layers


def deepseek_v4_flash(tp: int, block_size: int) -> Layers:
    """Sliding-window MLA everywhere, compressed MLA and indexers on some layers, rings beside."""
    local = attention("SlidingWindowMLASpec", 64, 1, 512, dtype="uint8", sliding_window=128)
    packing = {"state_content_bytes": 584, "alignment": 576, "model_version": "deepseek_v4"}
    layers = []
    for i in range(43):
        layers.append((layer(i, "attn.swa_cache"), local | packing))
        if i < 2:
            continue
        ratio = 4 if i % 2 == 0 else 128
        main = attention("MLAAttentionSpec", 256, 1, 512, dtype="uint8", tokens_per_state=ratio)
        layers.append((layer(i, "attn"), main | packing))
        ring = attention("CircularBufferSpec", 8 if ratio == 4 else 128, 1, 1024, head_size_v=0)
        layers.append((layer(i, "attn.state"), ring | {"dtype": "float32"}))
        if ratio == 4:
            indexer = attention("MLAAttentionSpec", 256, 1, 132, dtype="uint8")
            indexer |= {"tokens_per_state": 4, "alignment": 576, "cache_role": "indexer"}
            layers.append((layer(i, "attn.indexer"), indexer))
    return layers


def deepseek_v4_1_flash(tp: int, block_size: int) -> Layers:
    """The geometry of the reported case: 43 sliding layers, four with MLA and an indexer."""
    packing = {"dtype": "uint8", "state_content_bytes": 584, "alignment": 576}
    layers = []
    for i in range(43):
        window = 192 if i >= 40 else 128
        local = attention("SlidingWindowMLASpec", 64, 1, 512, sliding_window=window)
        layers.append((layer(i, "swa"), local | packing))
        if i in (2, 8, 14, 20):
            block, ratio = (64, 1) if i == 20 else (128, 2)
            shared = {"tokens_per_state": ratio, "alignment": 576, "dtype": "uint8"}
            main = attention("MLAAttentionSpec", block, 1, 512, state_content_bytes=584)
            indexer = attention("MLAAttentionSpec", block, 1, 132)
            layers.append((layer(i, "mla"), main | shared))
            layers.append((layer(i, "indexer"), indexer | shared))
    return layers


def whisper_large(tp: int, block_size: int) -> Layers:
    heads = max(20 // tp, 1)
    own = attention("FullAttentionSpec", block_size, heads, 64)
    cross = attention("CrossAttentionSpec", block_size, heads, 64)
    layers = [(layer(i), own) for i in range(32)]
    return layers + [(layer(i, "encoder_attn.attn"), cross) for i in range(32)]


REAL_MODELS = {
    f.__name__: f
    for f in (
        llama_3_1_70b,
        gemma_3_27b,
        gemma_4_26b,
        gpt_oss_120b,
        llama_4_scout,
        jamba_1_5_large,
        nemotron_3_nano,
        qwen3_next_80b,
        mimo,
        deepseek_v3_2,
        deepseek_v4_flash,
        deepseek_v4_1_flash,
        whisper_large,
    )
}
