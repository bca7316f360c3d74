"""Seeded random planning requests that reach every path of vLLM 0.33.0's grouping.

`random_request(seed)` is a pure function of its seed. It picks one scenario - a kind of model that
drives the planner into one of its paths - and crosses it with a random layout, split over
workers, memory and config. Nothing here imports vLLM.
"""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

from real_models import REAL_MODELS, real_layers

Spec = dict[str, Any]
Layers = list[tuple[str, Spec]]
Config = dict[str, Any]

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
BLOCK_COMPACT = ("LBHNC", "LBNHC", "BLHNC", "BLNHC")
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "float8_e4m3fn": 1}
BLOCK_SIZES = (1, 2, 4, 8, 16, 16, 16, 32, 48, 64, 64, 128, 256, 528)
MAMBA_TYPES = ("mamba1", "mamba2", "short_conv", "linear", "gdn_attn")


def page_bytes(spec: Spec) -> int:
    """Roughly one page of the spec; only used to choose memory sizes worth trying."""
    if "page_size" in spec:
        return spec["page_size"]
    if spec["kind"] == "MambaSpec":
        size = sum(
            math.prod(shape) * DTYPE_BYTES[dtype]
            for shape, dtype in zip(spec["shapes"], spec["dtypes"], strict=True)
        )
    else:
        value_size = spec.get("head_size_v", 0 if "MLA" in spec["kind"] else spec["head_size"])
        content = spec.get("state_content_bytes")
        if content is None:
            content = (spec["head_size"] + value_size) * DTYPE_BYTES[spec["dtype"]]
        tokens_per_state = spec.get("tokens_per_state", 1)
        if isinstance(tokens_per_state, str):
            numerator, denominator = map(int, tokens_per_state.split("/"))
            states = spec["block_size"] * denominator // numerator
        else:
            states = spec["block_size"] // tokens_per_state
        size = (spec.get("num_head_slots") or spec["num_kv_heads"]) * states * content
    alignment = spec.get("alignment") or 1
    return max(-(-size // alignment) * alignment, spec.get("page_size_padded") or 0, 1)


class Draw:
    """One model's random choices: base sizes that its layers share or vary from."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.block_size = rng.choice(BLOCK_SIZES)
        self.num_kv_heads = rng.choice((1, 1, 2, 4, 8))
        self.head_size = rng.choice((32, 64, 64, 80, 128, 128, 192, 256))
        self.dtype = rng.choice(("bfloat16", "bfloat16", "bfloat16", "float16", "uint8"))
        self.window = rng.choice((1, 4, 128, 512, 1024, 4096))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def attention(self, kind: str, **fields: Any) -> Spec:
        """An attention spec with the model's base sizes, and now and then a rare field."""
        spec = {
            "kind": kind,
            "block_size": self.block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
            "dtype": self.dtype,
        } | fields
        return spec

    def full(self, **fields: Any) -> Spec:
        return self.attention("FullAttentionSpec", **fields)

    def sliding(self, **fields: Any) -> Spec:
        return self.attention("SlidingWindowSpec", sliding_window=self.window) | fields

    def chunked(self, **fields: Any) -> Spec:
        return self.attention("ChunkedLocalAttentionSpec", attention_chunk_size=8192) | fields

    def mla(self, **fields: Any) -> Spec:
        return self.attention("MLAAttentionSpec", num_kv_heads=1, head_size=576) | fields

    def sliding_mla(self, **fields: Any) -> Spec:
        base = self.attention("SlidingWindowMLASpec", num_kv_heads=1, head_size=512)
        return base | {"sliding_window": self.window} | fields

    def mamba(self, **fields: Any) -> Spec:
        rng = self.rng
        shapes = [[rng.choice((3, 4)), rng.choice((64, 512, 1024))]]
        dtypes = [rng.choice(("bfloat16", "float32"))]
        if self.chance(0.7):
            shapes.append([rng.choice((1, 8, 32)), rng.choice((16, 64)), rng.choice((16, 128))])
            dtypes.append(rng.choice(("bfloat16", "float32")))
        return {
            "kind": "MambaSpec",
            "block_size": rng.choice((self.block_size, 64, 4096)),
            "shapes": shapes,
            "dtypes": dtypes,
        } | fields

    def hidden(self, **fields: Any) -> Spec:
        rng = self.rng
        return {
            "kind": "HiddenStateCacheSpec",
            "block_size": rng.choice((self.block_size, 1, 16)),
            "num_kv_heads": rng.choice((1, 2, 3)),
            "head_size": rng.choice((8, 64, 1024, 2880, 4096, 32768)),
            "dtype": self.dtype,
        } | fields

    def vary(self, spec: Spec) -> Spec:
        """The spec with one of its sizes changed."""
        changed = dict(spec)
        field = self.rng.choice(("num_kv_heads", "head_size", "dtype", "block_size", "head_size_v"))
        changed[field] = {
            "num_kv_heads": self.rng.choice((1, 2, 3, 4, 8)),
            "head_size": self.rng.choice((64, 96, 128, 256, 512)),
            "dtype": self.rng.choice(("bfloat16", "float32", "float8_e4m3fn")),
            "block_size": self.rng.choice(BLOCK_SIZES),
            "head_size_v": self.rng.choice((0, 64, 128)),
        }[field]
        return changed

    def count(self, most: int = 24) -> int:
        return self.rng.choice((1, 2, 3, self.rng.randint(1, most), self.rng.randint(1, most)))


def interleave(rng: random.Random, counted: list[tuple[Spec, int]]) -> Layers:
    """Layers of the given specs in repeating, blocked or shuffled order."""
    order = rng.choice(("even", "blocks", "shuffled"))
    placed: list[tuple[float, int, Spec]] = []
    for kind, (spec, count) in enumerate(counted):
        for i in range(count):
            position = {
                "even": (i + 0.5) / count,
                "blocks": kind + i / (count + 1),
                "shuffled": rng.random(),
            }[order]
            placed.append((position, kind, spec))
    placed.sort(key=lambda p: p[:2])
    return [(f"model.layers.{i}.attn", spec) for i, (_, _, spec) in enumerate(placed)]


def attention_free(d: Draw) -> Layers:
    return []


def uniform_spec(d: Draw) -> Layers:
    makers = (d.full, d.full, d.sliding, d.chunked, d.mla, d.sliding_mla, d.mamba)
    return interleave(d.rng, [(d.rng.choice(makers)(), d.count(40))])


def uniform_merge(d: Draw) -> Layers:
    """Full attention that differs only in what merging can reconcile - or, now and then, cannot."""
    makers = [d.full(), d.full(sliding_window=d.window), d.full(non_causal=True)]
    if d.chance(0.3):
        makers.append(d.full(attention_chunk_size=8192))
    if d.chance(0.2):
        makers.append(d.full(sliding_window=d.window + 1))
    if d.chance(0.3):
        draft = d.mla(non_causal_multi_token_decode=True)
        makers = [d.mla(), d.mla(is_index_group_leader=d.chance(0.3)), draft]
    if d.chance(0.3):
        makers = [d.attention("RSWASpec", rswa_window=w) for w in (128, d.rng.choice((128, 256)))]
    if d.chance(0.2):
        makers = [d.attention("SinkFullAttentionSpec", sink_len=n) for n in (64, 128)] + [d.full()]
        d.rng.shuffle(makers)
    chosen = d.rng.sample(makers, d.rng.randint(1, len(makers)))
    return interleave(d.rng, [(spec, d.count()) for spec in chosen])


def uniform_type(d: Draw) -> Layers:
    """One kind of cache with different shapes: a single group with a spec per layer."""
    rng = d.rng
    family = rng.choice(("full", "full+mla", "sliding", "chunked", "mamba", "sliding_mla", "ring"))
    if family == "full":
        specs = [d.full()] + [d.full(num_kv_heads=rng.choice((1, 2, 3, 5, 16)), head_size=96)]
        if d.chance(0.5):
            specs.append(d.full(head_size_v=rng.choice((0, 32, 512))))
    elif family == "full+mla":
        specs = [d.full(), d.mla(), d.attention("SinkFullAttentionSpec", sink_len=16)]
    elif family == "sliding":
        specs = [d.sliding(), d.sliding(head_size=rng.choice((64, 512))), d.sliding(dtype="uint8")]
        if d.chance(0.3):
            specs.append(d.sliding_mla())
    elif family == "chunked":
        specs = [d.chunked(), d.chunked(num_kv_heads=rng.choice((1, 3)))]
    elif family == "mamba":
        specs = [
            d.mamba(block_size=64, shapes=[[4, 96]], dtypes=["bfloat16"]),
            d.mamba(block_size=64, shapes=[[2, 96]], dtypes=["float32"], mamba_type="linear"),
        ]
        if d.chance(0.3):
            specs[1]["num_speculative_blocks"] = 1
    elif family == "sliding_mla":
        specs = [d.sliding_mla(), d.sliding_mla(head_size=rng.choice((128, 512)))]
    else:
        ring = rng.choice((8, 16))
        specs = [d.attention("CircularBufferSpec", block_size=ring, head_size=h) for h in (64, 128)]
    if d.chance(0.15):
        specs[-1] = specs[-1] | {"dcp_sharded": not specs[-1].get("dcp_sharded", True)}
    return interleave(rng, [(spec, d.count(12)) for spec in specs])


def hybrid(d: Draw) -> Layers:
    """Different kinds of cache whose pages are already equal."""
    rng = d.rng
    pool = [
        d.full(),
        d.sliding(),
        d.chunked(),
        d.full(sliding_window=64),
        d.full(non_causal=True),
        d.sliding(sliding_window=d.window + rng.choice((1, 1000))),
    ]
    chosen = rng.sample(pool, rng.randint(2, 4))
    base = rng.randint(1, 9)
    counted = []
    for spec in chosen:
        count = rng.choice((base, base + 1, base * 2, base * 3, base * 5 + 1, rng.randint(1, 12)))
        counted.append((spec, count))
    return interleave(rng, counted)


def draft_of_another_shape(d: Draw) -> Layers:
    """A hybrid target with a drafter's layers at its end."""
    target = rng_choice(d, (hybrid, scaled_blocks, mamba_hybrid, uniform_spec))(d)
    draft = d.vary(d.full()) if d.chance(0.5) else rng_choice(d, (d.full, d.sliding))()
    draft["is_draft"] = True
    return target + [(f"draft.layers.{i}.attn", draft) for i in range(d.rng.randint(1, 3))]


def rng_choice(d: Draw, options: Any) -> Any:
    return d.rng.choice(options)


def scaled_blocks(d: Draw) -> Layers:
    """Page sizes that divide the largest one: blocks grow."""
    rng = d.rng
    ratio = rng.choice((2, 3, 4, 8))
    pool = [
        d.sliding(num_kv_heads=d.num_kv_heads * ratio),
        d.chunked(num_kv_heads=d.num_kv_heads * ratio),
        d.full(num_kv_heads=d.num_kv_heads * ratio, sliding_window=64),
        d.sliding(sliding_window=d.window + 7),
    ]
    specs = [d.full()] + rng.sample(pool, rng.randint(1, 3))
    if d.chance(0.3):
        specs.append(d.mla(num_kv_heads=d.num_kv_heads, head_size=2 * d.head_size))
    return interleave(rng, [(spec, d.count(10)) for spec in specs])


def mamba_hybrid(d: Draw) -> Layers:
    """Attention next to state layers; the smaller page is scaled or padded."""
    rng = d.rng
    mamba = d.mamba(
        mamba_type=rng.choice(MAMBA_TYPES),
        num_speculative_blocks=rng.choice((0, 0, 1, 4)),
        mamba_cache_mode=rng.choice(("none", "align", "all")),
    )
    if d.chance(0.2):
        mamba["num_prefill_checkpoint_blocks"] = 1
        mamba["prefill_checkpoint_alignment"] = 64
    attention = rng_choice(d, (d.full, d.full, d.mla, d.sliding))()
    if d.chance(0.5):
        size = max(page_bytes(mamba), page_bytes(attention))
        mamba["page_size_padded"] = size
        if d.chance(0.3):
            attention["page_size_padded"] = size
    counted = [(attention, d.count(8)), (mamba, d.count(20))]
    if d.chance(0.3):
        counted.append((d.sliding(), d.count(6)))
    if d.chance(0.2):
        counted.append((d.mamba(tp_replicated=True, shapes=[[3, 64]], dtypes=["bfloat16"]), 2))
    return interleave(rng, counted)


def padded_attention(d: Draw) -> Layers:
    """Attention pages that do not divide the largest one are padded to it."""
    rng = d.rng
    odd = rng.choice((3, 5, 7))
    specs = [
        d.full(num_kv_heads=odd * d.num_kv_heads),
        d.sliding(num_kv_heads=2 * d.num_kv_heads),
    ]
    if d.chance(0.5):
        specs.append(d.chunked())
    if d.chance(0.3):
        specs.append(d.mamba())
    return interleave(rng, [(spec, d.count(10)) for spec in specs])


def unify_fails(d: Draw) -> Layers:
    """MLA pages that do not divide the largest one: the fallback, or NotImplementedError."""
    rng = d.rng
    specs = [d.mla(), d.sliding(num_kv_heads=rng.choice((2, 4, 8)))]
    if d.chance(0.15):
        specs.append(d.sliding_mla())
    if d.chance(0.1):
        specs.append(d.chunked())
    if d.chance(0.1):
        specs.append(d.hidden())
    if d.chance(0.3):
        specs.append(d.sliding(sliding_window=d.window * 2, block_size=rng.choice(BLOCK_SIZES)))
    if d.chance(0.2):
        specs.append(d.mamba())
    if d.chance(0.2):
        specs[1]["page_size_padded"] = page_bytes(specs[1]) + rng.choice((0, 64))
    return interleave(rng, [(spec, d.count(8)) for spec in specs])


def hidden_states(d: Draw) -> Layers:
    """Layers that hold hidden states next to a hybrid model."""
    layers = rng_choice(d, (hybrid, scaled_blocks, mamba_hybrid, packed, uniform_spec))(d)
    for i in range(d.rng.randint(1, 3)):
        layers.append((f"hidden.{i}", d.hidden()))
    return layers


def packed(d: Draw) -> Layers:
    """Mixed pages for block-outermost layouts: patterns, odd buckets and state buckets."""
    rng = d.rng
    repeats = rng.randint(1, 8)
    counted: list[tuple[Spec, int]] = []
    if d.chance(0.7):
        # A balanced pattern: as many main caches as indexers.
        counted.append((d.mla(block_size=64, head_size=512), repeats))
        counted.append(
            (d.mla(block_size=64, head_size=132, dtype="uint8", cache_role="indexer"), repeats)
        )
    if d.chance(0.5):
        other = repeats + rng.choice((0, 1, 2))
        counted.append((d.mla(block_size=128, tokens_per_state=2), other))
        if d.chance(0.7):
            counted.append((d.mla(block_size=128, head_size=132, tokens_per_state=2), other))
    if d.chance(0.6):
        wide = d.sliding_mla(block_size=64, alignment=576, state_content_bytes=584, dtype="uint8")
        counted.append((wide, rng.randint(1, 20)))
        if d.chance(0.3):
            counted.append((wide | {"sliding_window": d.window + 64}, rng.randint(1, 4)))
        if d.chance(0.2):
            counted.append((wide | {"bounded_replay": True}, rng.randint(1, 4)))
    if d.chance(0.4):
        counted.append((d.mamba(), rng.randint(1, 16)))
    if d.chance(0.3):
        counted.append((d.attention("CircularBufferSpec", block_size=8), rng.randint(1, 12)))
    if d.chance(0.3):
        counted.append((d.sliding(), rng.randint(1, 12)))
        if d.chance(0.4):
            counted.append((d.sliding(head_size=d.head_size * 2), rng.randint(1, 12)))
    if len(counted) < 2:
        counted += [(d.full(), rng.randint(1, 6)), (d.sliding(head_size=40), rng.randint(1, 14))]
    return interleave(rng, counted)


def promoted(d: Draw) -> Layers:
    """A hybrid model for the disabled hybrid manager: local attention becomes full."""
    rng = d.rng
    specs = [d.full(), d.sliding()]
    if d.chance(0.3):
        specs[1] = d.sliding(block_size=rng.choice(BLOCK_SIZES))
    if d.chance(0.3):
        specs.append(d.chunked())
    if d.chance(0.08):
        specs = [d.mla(), d.sliding_mla(), d.sliding_mla(head_size=128)]
    if d.chance(0.2):
        specs.append(d.full(dcp_sharded=False))
        specs.append(d.sliding(dcp_sharded=False))
    if d.chance(0.08):
        specs.append(d.mamba())
    if d.chance(0.3):
        specs[1] = specs[1] | {"page_size_padded": page_bytes(specs[1]) + rng.choice((0, 256))}
    if d.chance(0.1):
        specs.append(d.sliding(sliding_window=d.window + 1))
    return interleave(rng, [(spec, d.count(10)) for spec in specs])


def encoder_decoder(d: Draw) -> Layers:
    cross = d.attention("CrossAttentionSpec")
    counted = [(d.full(), d.count(12)), (cross, d.count(12))]
    if d.chance(0.4):
        ratio = d.rng.choice(("1/2", "1/4", 2, "3/2"))
        counted = [(d.full(tokens_per_state=ratio), 4), (d.sliding(tokens_per_state=ratio), 4)]
    return interleave(d.rng, counted)


def no_memory_of_their_own(d: Draw) -> Layers:
    """Kinds that planning refuses or that only HiSparse places."""
    refused = d.rng.choice(
        (
            d.attention("EncoderOnlyAttentionSpec"),
            {"kind": "HiSparseHotSpec", "block_size": 16, "page_size": 4096}
            | {"blocks_per_request": 2},
            {"kind": "HiSparseResidentSpec", "block_size": 16, "page_size": 8192},
        )
    )
    counted = [(refused, d.count(4))]
    if d.chance(0.7):
        counted.append((rng_choice(d, (d.full, d.mla, d.sliding, d.mamba))(), d.count(4)))
    return interleave(d.rng, counted)


def chaos(d: Draw) -> Layers:
    """Any kinds, any sizes."""
    makers = (d.full, d.sliding, d.chunked, d.mla, d.sliding_mla, d.mamba, d.hidden)
    more = ("RSWASpec", "SinkFullAttentionSpec", "CircularBufferSpec", "CrossAttentionSpec")
    counted = []
    for _ in range(d.rng.randint(1, 5)):
        spec = rng_choice(d, makers)()
        if d.chance(0.2):
            kind = rng_choice(d, more)
            extra = {"rswa_window": 128} if kind == "RSWASpec" else {}
            spec = d.attention(kind, **extra)
        if d.chance(0.6) and spec["kind"] != "MambaSpec":
            spec = d.vary(spec)
        counted.append((spec, d.count(8)))
    return interleave(d.rng, counted)


def real_model(d: Draw) -> Layers:
    """The cache of a published model, at a random tensor-parallel size."""
    name = rng_choice(d, sorted(REAL_MODELS))
    tp, block_size = rng_choice(d, (1, 1, 2, 4, 8)), rng_choice(d, (16, 64))
    layers = real_layers(name, tp, block_size)
    if len(layers) > 48 and d.chance(0.5):
        layers = layers[: d.rng.randint(24, len(layers))]
    return layers


# scenario -> (weight, layouts it needs to reach its path, or None for any)
SCENARIOS: dict[Callable[[Draw], Layers], tuple[int, tuple[str, ...] | None]] = {
    attention_free: (1, None),
    uniform_spec: (6, None),
    uniform_merge: (6, None),
    uniform_type: (9, BLOCK_COMPACT),
    hybrid: (10, None),
    draft_of_another_shape: (8, None),
    scaled_blocks: (9, None),
    mamba_hybrid: (10, None),
    padded_attention: (8, BLOCK_COMPACT),
    unify_fails: (8, BLOCK_COMPACT),
    hidden_states: (8, None),
    packed: (12, ("BLHNC", "BLNHC")),
    promoted: (8, None),
    encoder_decoder: (3, None),
    no_memory_of_their_own: (1, None),
    chaos: (6, None),
    real_model: (8, None),
}


def sprinkle(d: Draw, layers: Layers) -> Layers:
    """Rare fields that any attention layer may carry, set on some of the specs."""
    if not d.chance(0.35):
        return layers
    rng = d.rng
    changes: dict[int, Spec] = {}
    for _, spec in layers:
        if id(spec) in changes:
            continue
        changed = dict(spec)
        attention = spec["kind"] != "MambaSpec" and "num_kv_heads" in spec
        if d.chance(0.15):
            changed["block_stride_alignment"] = rng.choice(
                (1, 64, 576, 4096, {"multiple_of": 16}, {"multiple_of": 64}, {"multiple_of": 24})
            )
        if attention and d.chance(0.15):
            changed["page_size_padded"] = page_bytes(spec) + rng.choice((0, 64, 4096))
        if attention and d.chance(0.15):
            changed["max_tp_shards"] = rng.choice((1, 2, 4, 8, 16))
        if attention and d.chance(0.1):
            changed["num_head_slots"] = spec["num_kv_heads"] * rng.choice((1, 2))
            changed["kv_quant_mode"] = rng.choice((0, 1, 2, 3, 5, 12))
        if attention and d.chance(0.1):
            changed["state_content_bytes"] = rng.choice((72, 260, 656))
        if attention and d.chance(0.1):
            changed["tokens_per_state"] = rng.choice((2, 4, "1/2", "3/2"))
        if d.chance(0.1):
            changed["dcp_sharded"] = rng.choice((True, False))
        if d.chance(0.05):
            changed["is_draft"] = True
        if "MLA" in spec["kind"] and d.chance(0.15):
            changed["alignment"] = rng.choice((64, 576, 1000))
        changes[id(spec)] = changed
    # Equal fields on every layer of a spec, or on a random subset of them.
    share = rng.choice((1.0, 1.0, 0.5))
    return [(n, changes[id(s)] if rng.random() < share else s) for n, s in layers]


def shard(d: Draw, layers: Layers, config: Config) -> Layers:
    """Replicate what parallel ranks cannot split: windows under context parallel, KV heads."""
    fields: Spec = {}
    if config.get("decode_context_parallel_size", 1) > 1 and d.chance(0.8):
        fields["dcp_sharded"] = False
    if config.get("tensor_parallel_size", 1) > 1 and d.chance(0.5):
        fields["max_tp_shards"] = d.rng.choice((1, 2, 4))
    everywhere = d.chance(0.3)
    changed: dict[int, Spec] = {}
    for _, spec in layers:
        if "num_kv_heads" not in spec:
            continue
        applied = dict(fields)
        if "Sliding" not in spec["kind"] and not everywhere:
            applied.pop("dcp_sharded", None)
        changed.setdefault(id(spec), spec | applied)
    return [(name, changed.get(id(spec), spec)) for name, spec in layers]


def random_config(d: Draw, layouts: tuple[str, ...] | None, scenario: str) -> Config:
    """Keywords of a `PlanningConfig`; most keep their defaults most of the time."""
    rng = d.rng
    layout = rng.choice(LAYOUTS)
    if layouts is not None and d.chance(0.7):
        layout = rng.choice(layouts)
    config: Config = {
        "max_model_len": rng.choice(
            (1, rng.randint(1, 300), 2048, 8192, 32768, 131072, 131072, 262144, 1048576)
        ),
        "kv_cache_layout": layout,
        "max_in_flight_tokens": rng.choice((1, 512, 2048, 8192, 16384, 65536)),
        "block_size": d.block_size,
    }
    if d.chance(0.3):
        config["auto_fit"] = True
    if d.chance(0.3):
        config["tensor_parallel_size"] = rng.choice((2, 4, 8, 16))
    if d.chance(0.1):
        config["decode_context_parallel_size"] = rng.choice((2, 4, 8))
    if d.chance(0.15):
        config["num_gpu_blocks_override"] = rng.choice((0, 1, 2, 50, 1000, 100000, 100000, 10**6))
    if d.chance(0.3):
        config["mamba_cache_mode"] = rng.choice(("align", "all"))
    if d.chance(0.05 if scenario != "promoted" else 0.8):
        config["disable_hybrid_kv_cache_manager"] = True
    if d.chance(0.1) or scenario == "encoder_decoder":
        config["max_num_encoder_input_tokens"] = rng.choice((0, 100, 1500, 8192))
    if d.chance(0.15):
        config["num_prefill_lookahead_tokens"] = rng.choice((1, 2, 3, 8))
    if d.chance(0.15):
        config["prefix_cache_retention_interval"] = rng.choice((0, 64, 1024))
    if d.chance(0.1):
        config["prefix_match_unit"] = rng.choice((d.block_size, 1, 16, 64))
    if d.chance(0.1):
        config["enable_prefix_caching"] = False
    if d.chance(0.3) or scenario == "draft_of_another_shape":
        config["speculative_method"] = rng.choice(("eagle", "eagle3", "mtp", "ngram"))
        config["use_eagle"] = config["speculative_method"] != "ngram"
        config["use_eagle_block_drop"] = config["use_eagle"] and d.chance(0.8)
    return config


def split_over_workers(d: Draw, layers: Layers) -> list[Layers]:
    """Pipeline stages (uneven, sometimes empty or short of a kind) times tensor-parallel ranks."""
    rng = d.rng
    stages = rng.choice((1, 1, 1, 2, 2, 3, 4))
    cuts = sorted(rng.randint(0, len(layers)) for _ in range(stages - 1))
    if not d.chance(0.1) and stages > 1:
        # Keep every stage non-empty where there are layers enough.
        cuts = sorted(rng.sample(range(1, len(layers)), stages - 1)) if len(layers) > stages else []
    bounds = [0, *cuts, len(layers)]
    split = [layers[a:b] for a, b in itertools.pairwise(bounds)]
    ranks = rng.choice((1, 1, 1, 2))
    return [stage for stage in split for _ in range(ranks)]


def memory_for(d: Draw, workers: list[Layers], config: Config) -> list[int]:
    """Bytes per worker around what one request needs, so that every outcome occurs."""
    rng = d.rng
    length, in_flight = config["max_model_len"], config["max_in_flight_tokens"]
    per_block = max((sum(page_bytes(s) for _, s in layers) for layers in workers), default=0)
    blocks = 1
    counted: set[int] = set()
    for layers in workers:
        for _, spec in layers:
            if id(spec) in counted:
                continue
            counted.add(id(spec))
            tokens = length
            if "Sliding" in spec["kind"] or "Chunked" in spec["kind"]:
                window = spec.get("sliding_window", spec.get("attention_chunk_size", 0))
                tokens = min(length, window + in_flight)
            elif spec["kind"] in ("MambaSpec", "CircularBufferSpec"):
                tokens = spec["block_size"] * 4
            blocks += tokens // spec["block_size"] + 2
    need = max(per_block * blocks, 1)
    share = rng.choice((1.0, 1.5, 2.0, 3.0, 8.0, 50.0))
    if d.chance(0.5 if config.get("auto_fit") else 0.12):
        share = rng.choice((0.001, 0.05, 0.2, 0.4, 0.6, 0.9))
    memory = [max(int(need * share * rng.uniform(0.7, 1.3)), 0) for _ in workers]
    if d.chance(0.5):
        memory = [memory[0]] * len(memory)
    if d.chance(0.03):
        memory[rng.randrange(len(memory))] = rng.choice((0, -1, 1))
    return memory


def to_request(config: Config, workers: list[Layers], memory: list[int]) -> dict[str, Any]:
    """The request file's form: equal specs written once, layers as (name, index)."""
    specs: list[Spec] = []
    described = []
    for layers, available in zip(workers, memory, strict=True):
        rows = []
        for name, spec in layers:
            if spec not in specs:
                specs.append(spec)
            rows.append([name, specs.index(spec)])
        described.append({"available_memory": available, "layers": rows})
    return {"kvplan_request": 1, "config": config, "specs": specs, "workers": described}


def random_request(seed: int) -> dict[str, Any]:
    """One planning request; equal seeds give equal requests."""
    rng = random.Random(seed)
    d = Draw(rng)
    scenarios = list(SCENARIOS)
    scenario = rng.choices(scenarios, [SCENARIOS[s][0] for s in scenarios])[0]
    layers = sprinkle(d, scenario(d))
    config = random_config(d, SCENARIOS[scenario][1], scenario.__name__)
    layers = shard(d, layers, config)
    workers = split_over_workers(d, layers)
    if d.chance(0.01) and layers and len(workers) > 1:
        # The same layer with another spec on another worker.
        name, spec = workers[0][0] if workers[0] else layers[0]
        workers[-1] = [(n, s) for n, s in workers[-1] if n != name] + [(name, d.vary(d.full()))]
        workers[0] = [(n, s) for n, s in workers[0] if n != name] + [(name, spec)]
    request = to_request(config, workers, memory_for(d, workers, config))
    return request | {"model": f"{scenario.__name__}, seed {seed}"}
