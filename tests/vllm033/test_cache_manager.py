"""kvplan's cache manager beside vLLM 0.33.0's, on random traces: every answer, every free list.

KVPLAN_FUZZ_TRACES sets how many traces run; KVPLAN_FUZZ_SEED the first one's seed.
"""

import math
import os
import random
from collections import Counter
from functools import partial

import pytest

vllm = pytest.importorskip("vllm")
if not vllm.__version__.startswith("0.33."):
    pytest.skip("compares with vLLM 0.33", allow_module_level=True)

import torch  # noqa: E402
from cache_manager_pair import Pair, Refused, StandInRequest  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import RequestStatus  # noqa: E402

NUM_TRACES = int(os.environ.get("KVPLAN_FUZZ_TRACES", "200"))
FIRST_SEED = int(os.environ.get("KVPLAN_FUZZ_SEED", "0"))

heads = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
full = partial(FullAttentionSpec, **heads)
mla = partial(MLAAttentionSpec, **heads)
rswa = partial(RSWASpec, **heads)
window = partial(SlidingWindowSpec, **heads)
window_mla = partial(SlidingWindowMLASpec, **heads)
chunked = partial(ChunkedLocalAttentionSpec, **heads)
cross = partial(CrossAttentionSpec, **heads)
ring = partial(CircularBufferSpec, **heads)
mamba = partial(MambaSpec, shapes=((16, 8),), dtypes=(torch.float32,))


def pick_mamba(rng, block_size, mode):
    checkpoint = mode == "align" and rng.random() < 0.5
    return mamba(
        block_size=block_size,
        mamba_cache_mode=mode,
        num_speculative_blocks=rng.choice([0, 0, 1, 2]),
        num_prefill_checkpoint_blocks=int(checkpoint),
        prefill_checkpoint_alignment=rng.choice([1, 2, 4]) if checkpoint else None,
    )


def pick_window(rng, block_size):
    make = rng.choice([window, window, window_mla])
    return make(
        block_size=block_size,
        sliding_window=rng.choice([1, 2, block_size, block_size + 1, 3 * block_size, 37]),
        extra_retained_tokens=rng.choice([0, 0, 0, 3]),
        dcp_sharded=False,
    )


def pick_full(rng, block_size):
    kind = rng.randrange(4)
    if kind == 0:
        return mla(block_size=block_size)
    if kind == 1:
        return rswa(block_size=block_size, rswa_window=rng.choice([4, 9, 20]))
    return full(block_size=block_size)


def pick_without_caching(rng):
    unit = rng.choice([4, 8])
    makers = [
        lambda: pick_full(rng, unit),
        lambda: pick_window(rng, unit),
        lambda: chunked(block_size=unit, attention_chunk_size=rng.choice([unit, 3 * unit, 21])),
        lambda: cross(block_size=unit),
        lambda: ring(block_size=unit),
        lambda: pick_mamba(rng, unit, rng.choice(["none", "all", "align"])),
        lambda: mamba(block_size=400, num_speculative_blocks=rng.choice([0, 1])),
    ]
    return [rng.choice(makers)() for _ in range(rng.randint(1, 4))]


def pick_single(rng, unit):
    kind = rng.randrange(4)
    if kind == 0:
        return [pick_window(rng, unit)]
    if kind == 1:
        return [chunked(block_size=unit, attention_chunk_size=rng.choice([unit, 3 * unit, 21]))]
    if kind == 2:
        return [pick_mamba(rng, unit, "align")]
    return [pick_full(rng, unit)]


def pick_hybrid(rng, unit):
    specs = []
    if rng.random() < 0.85:
        specs.append(pick_full(rng, unit * rng.choice([1, 1, 2, 4])))
    style = rng.choice(["window", "mamba", "mixed", "chunked"])
    if style == "chunked":
        specs = [pick_full(rng, unit)]
        specs += [
            chunked(block_size=unit, attention_chunk_size=rng.choice([unit, 3 * unit, 21]))
            for _ in range(rng.randint(1, 2))
        ]
    for _ in range(rng.randint(1, 3)):
        if style in ("window", "mixed"):
            specs.append(pick_window(rng, unit * rng.choice([1, 1, 2])))
        if style in ("mamba", "mixed"):
            specs.append(pick_mamba(rng, unit * rng.choice([1, 2, 4]), "align"))
    if rng.random() < 0.3:
        specs.append(rng.choice(specs))
    if rng.random() < 0.2:
        specs.append(ring(block_size=unit, dcp_sharded=False))
    rng.shuffle(specs)
    return specs


def make_pair(rng):
    """Managers of a random model."""
    unit = rng.choice([4, 8])
    caching = rng.random() < 0.85
    options = {"max_model_len": 200, "enable_caching": caching}
    dcp = 1
    if not caching:
        specs = pick_without_caching(rng)
    elif rng.random() < 0.25:
        specs = pick_single(rng, unit)
    else:
        specs = pick_hybrid(rng, unit)
    if caching and rng.random() < 0.15:
        dcp = options["dcp_world_size"] = 2
    sizes = [spec.block_size * (dcp if spec.dcp_sharded else 1) for spec in specs]
    cacheable = [s for s, spec in zip(sizes, specs, strict=True) if spec.prefix_cacheable]
    options["scheduler_block_size"] = math.lcm(*sizes)
    options["hash_block_size"] = math.lcm(*sizes)
    if caching:
        options["hash_block_size"] = sizes[0] if len(specs) == 1 else math.gcd(*cacheable)
    eagle = [False] * len(specs)
    has_chunks = any(isinstance(spec, ChunkedLocalAttentionSpec) for spec in specs)
    if rng.random() < 0.35 and not has_chunks:
        if rng.random() < 0.6:
            eagle[rng.randrange(len(specs))] = True
        options["use_eagle"] = rng.random() < 0.8
        options["num_prefill_lookahead"] = rng.choice([0, 1, 1, 3])
        options["num_hash_lookahead_tokens"] = 0 if options["use_eagle"] else rng.choice([0, 1])
        options["enable_mamba_shared_prefix_checkpoint"] = rng.random() < 0.5
    sparse = any(isinstance(spec, SlidingWindowSpec | MambaSpec) for spec in specs)
    retention = None
    if sparse and rng.random() < 0.4:
        retention = rng.choice([0, 1, 2]) * options["scheduler_block_size"]
    options["max_in_flight_tokens"] = rng.choice([None, 16, 64])
    options["enable_kv_cache_events"] = rng.random() < 0.6
    options["watermark"] = rng.choice([0.0, 0.0, 0.05])
    zeroing = rng.random() < 0.4
    num_blocks = rng.choice([12, 30, 60, 120, 300])
    pair = Pair(
        list(zip(specs, eagle, strict=True)),
        num_blocks,
        retention=retention,
        zeroing=zeroing,
        **options,
    )
    for spec in specs:
        pair.seen[type(spec).__name__] += 1
    pair.seen["context parallel"] += dcp > 1
    pair.seen["EAGLE"] += bool(options.get("use_eagle"))
    pair.seen[f"retention {retention and 'interval'}"] += 1
    return pair


class Trace:
    """A scheduler that does what real ones do, and a little of what they do not.

    scale: factor of all lengths; a request has at most 195 tokens times that.
    """

    def __init__(self, seed, make=make_pair, scale=1):
        self.rng = random.Random(seed)
        self.scale = scale
        self.longest = 195 * scale
        self.pair = make(self.rng)
        self.hash_block_size = self.pair.native.hash_block_size
        self.lookahead = self.pair.vllm.block_pool.num_hash_lookahead_tokens
        self.speculates = self.rng.random() < 0.4
        self.asynchronous = self.rng.random() < 0.3
        self.for_connector = self.rng.random() < 0.3
        self.prompts = [
            bytes(self.rng.randrange(256) for _ in range(190 * scale)) for _ in range(2)
        ]
        self.running = []
        self.waiting = []
        self.num_made = 0

    def make_request(self):
        rng = self.rng
        prompt = list(rng.choice(self.prompts)[: rng.randint(1, 120 * self.scale)])
        if rng.random() < 0.5:
            prompt += [rng.randrange(256) for _ in range(rng.randint(1, 30 * self.scale))]
        if rng.random() < 0.3:
            size = self.pair.native.scheduler_block_size
            prompt = prompt[: max(1, len(prompt) // size * size)]
        request = StandInRequest(f"r{self.num_made}", prompt, self.hash_block_size, self.lookahead)
        if self.pair.vllm.enable_kv_cache_events and not self.for_connector:
            request.kv_cache_report_mode = rng.choice(["incremental", "full"])
        self.num_made += 1
        self.pair.add(request)
        self.waiting.append(request)

    def chunk(self, request, start):
        """How many tokens to compute from `start` on: all, a few, or up to a kept state."""
        rest = request.num_tokens - start
        unit = self.hash_block_size
        stops = [
            (request.num_prompt_tokens - 1) // unit * unit,
            request.num_prompt_tokens // unit * unit - unit,
            request.shared_prefix_boundary,
        ]
        stops = [stop - start for stop in stops if start < stop < request.num_tokens]
        return min(
            rest, self.rng.choice([rest, rest, self.rng.randint(1, 40 * self.scale), *stops])
        )

    def admit(self):
        rng, pair = self.rng, self.pair
        request = self.waiting[-1]
        blocks, hit, num_hit, boundary = pair.find(request, self.for_connector)
        request.shared_prefix_boundary = boundary
        options = {}
        num_external = 0
        if self.for_connector and rng.random() < 0.6:
            aligned = num_hit - num_hit % pair.native.scheduler_block_size
            most = request.num_tokens - 1 - aligned
            unit = pair.native.scheduler_block_size
            num_external = min(rng.randint(0, 3) * unit, most // unit * unit)
            if num_external > num_hit - aligned:
                if num_hit != aligned:
                    blocks, hit = pair.truncate(blocks, hit, aligned)
                    num_hit = aligned
            else:
                num_external = 0
        if hit.diverged and num_external == 0:
            blocks, hit, num_hit, boundary = pair.find(request)
            request.shared_prefix_boundary = boundary
        pair.record_stats(request, num_hit)
        num_new = self.chunk(request, num_hit + num_external)
        if num_external and rng.random() < 0.5:
            num_new = 0
            options["delay_cache_blocks"] = True
            if rng.random() < 0.5:
                options["skip_zeroing_group_ids"] = (0,)
        if num_external:
            options["num_external_computed_tokens"] = num_external
            pair.seen["external tokens"] += 1
        if rng.random() < 0.5:
            options["full_sequence_must_fit"] = True
        if rng.random() < 0.2:
            options["reserved_blocks"] = rng.randint(0, 5)
        if rng.random() < 0.3:
            options["num_encoder_tokens"] = rng.randint(1, 30)
        if self.speculates:
            options["num_lookahead_tokens"] = rng.randint(0, 3)
        options["has_scheduled_reqs"] = bool(self.running)
        if pair.allocate(request, num_new, blocks, hit, num_hit, **options) is None:
            return
        self.waiting.pop()
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit + num_external
        if options.get("delay_cache_blocks"):
            pair.commit(request, request.num_computed_tokens)
            pair.seen["delayed caching"] += 1
        request.num_computed_tokens += num_new
        self.running.append(request)

    def advance(self, request):
        """One step of a running request; False if it does not fit."""
        rng = self.rng
        # Outputs of earlier steps arrive.
        if request.num_computed_tokens >= request.num_tokens:
            if request.num_tokens >= self.longest:
                self.finish(request)
                return True
            request.append(rng.randrange(256))
        rest = request.num_tokens - request.num_computed_tokens
        num_new = self.chunk(request, request.num_computed_tokens)
        drafts = 0
        if self.speculates and num_new == rest:
            drafts = rng.randint(0, max(0, min(3, self.longest - request.num_tokens)))
        request.num_in_flight_tokens = (
            rng.randint(0, min(4, request.num_computed_tokens)) if self.asynchronous else 0
        )
        options = {}
        if self.speculates:
            options["num_lookahead_tokens"] = rng.randint(0, 3)
        if self.pair.allocate(request, num_new + drafts, **options) is None:
            return False
        request.num_computed_tokens += num_new
        # Accepted drafts become tokens.
        for _ in range(rng.randint(0, drafts)):
            request.append(rng.randrange(256))
            request.num_computed_tokens += 1
        is_done = request.num_computed_tokens == request.num_tokens
        if rng.random() < 0.5 and is_done and request.num_tokens < self.longest:
            request.append(rng.randrange(256))
        return True

    def preempt(self, request):
        self.pair.free(request, deferred=self.rng.random() < 0.3)
        self.pair.seen["preemption"] += 1
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.running.remove(request)
        self.waiting.append(request)

    def finish(self, request):
        request.num_in_flight_tokens = 0
        self.pair.finish(request)
        self.pair.free(request, deferred=self.rng.random() < 0.3)
        self.pair.drop(request)
        self.running.remove(request)

    def batch(self):
        """A decode step of all requests that have one token to compute, in one call."""
        ready = []
        for request in self.running:
            if request.num_computed_tokens == request.num_tokens < self.longest:
                request.append(self.rng.randrange(256))
            if request.num_tokens - request.num_computed_tokens == 1:
                request.num_in_flight_tokens = 0
                ready.append(request)
        if not ready:
            return
        done = self.pair.schedule(ready, self.rng.choice([0, 0, 2]) if self.speculates else 0)
        for request in ready[:done]:
            request.num_computed_tokens += 1

    def step(self):
        rng, pair = self.rng, self.pair
        for request in list(self.running):
            if request not in self.running or rng.random() < 0.1:
                continue
            if not self.advance(request):
                self.preempt(rng.choice(self.running))
            pair.check()
        if rng.random() < 0.3:
            self.batch()
        if len(self.waiting) < 3 and rng.random() < 0.6:
            self.make_request()
        if self.waiting and rng.random() < 0.8:
            self.admit()
        pair.check()
        self.odd_calls()
        if rng.random() < 0.8:
            pair.end_step([r.request_id for r in self.running])
        if self.running and rng.random() < 0.15:
            self.finish(rng.choice(self.running))
        pair.check()

    def odd_calls(self):
        rng, pair = self.rng, self.pair
        if self.running and rng.random() < 0.1:
            request = rng.choice(self.running)
            processed = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
            pair.remove_skipped(request, processed, rng.random() < 0.5)
        if self.running and rng.random() < 0.1:
            request = rng.choice(self.running)
            pair.needed(request, request.num_tokens)
        if self.running and pair.caches and rng.random() < 0.1:
            request = rng.choice(self.running)
            pair.commit(request, request.num_computed_tokens)
        if rng.random() < 0.05:
            blocks = rng.sample(range(pair.native.pool.num_blocks), 5)
            pair.evict(blocks)
        if rng.random() < 0.03:
            pair.take_stats()
        if rng.random() < 0.02:
            while self.running and rng.random() < 0.9:
                self.preempt(self.running[-1])
            pair.end_step([])
            pair.reset()

    def run(self):
        try:
            return self.run_to_end()
        except Refused:
            self.pair.seen["refused"] += 1
            return self.pair.seen

    def run_to_end(self):
        for _ in range(self.rng.choice([15, 30, 60])):
            self.step()
        self.pair.check_hashes()
        while self.running:
            self.finish(self.running[-1])
        self.pair.end_step([])
        self.pair.check()
        self.pair.take_stats()
        return self.pair.seen


def run_trace(seed):
    try:
        trace = Trace(seed)
    except Refused:
        return Counter({"configuration refused": 1})
    try:
        return trace.run()
    except Exception as error:
        specs = [g.kv_cache_spec for g in trace.pair.vllm.kv_cache_config.kv_cache_groups]
        error.add_note(f"seed {seed}; groups {specs}")
        raise


PATHS = [
    "FullAttentionSpec", "MLAAttentionSpec", "RSWASpec", "SlidingWindowSpec",
    "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec", "MambaSpec", "CrossAttentionSpec",
    "CircularBufferSpec", "context parallel", "EAGLE", "retention None", "retention 0",
    "retention interval", "hit", "hit inside a block", "shared prefix boundary",
    "connector: diverged", "truncated hit", "external tokens", "delayed caching", "allocated",
    "no room", "quiet step", "batch step", "batch step stopped", "preemption", "deferred free",
    "commit", "evict", "reset", "reset refused", "copy", "boundary state", "partial tail",
    "refused", "configuration refused", "event: stored", "event: removed", "event: cleared",
    "events of cached blocks",
]  # fmt: skip


def test_traces():
    seen = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + NUM_TRACES):
        seen += run_trace(seed)
    print({path: seen[path] for path in PATHS})
    if NUM_TRACES >= 200:
        assert [path for path in PATHS if seen[path] == 0] == []
