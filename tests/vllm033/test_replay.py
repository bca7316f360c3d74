"""A replay beside vLLM 0.33.0's real Scheduler and KVCacheManager, on traces of token ids.

Both run the engine's loop under one model of time. Every step must take as many tokens at the same
time, with as many requests running and waiting and as many blocks in use; every request must hit,
be preempted and finish alike; as many cached blocks must be evicted.
"""

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler")

import scheduler_load
from scheduler_load import MAX_MODEL_LEN, VOCABULARY, Server, vllm_scheduler
from to_vllm import vllm_groups
from vllm.distributed.kv_events import BlockRemoved
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

import kvplan
from kvplan import _core, specs

NUM_TRACES = int(os.environ.get("KVPLAN_REPLAY_TRACES", "6"))  # of each kind
TIMES = (0.01, 0.0001, 0.0005, 1e-6, 0.002, 0.0003)


def attention(cls=specs.FullAttentionSpec, block_size=16, heads=2, **fields):
    return cls(block_size=block_size, num_kv_heads=heads, head_size=8, dtype="float16", **fields)


def states(block_size, num_drafts=0):
    page = attention(block_size=block_size).page_size_bytes
    return specs.MambaSpec(
        block_size=block_size,
        shapes=((8,),),
        dtypes=("float32",),
        mamba_cache_mode="align",
        num_speculative_blocks=num_drafts,
        page_size_padded=page,
    )


WINDOW = specs.SlidingWindowSpec
MODELS = {
    "full": [attention()],
    "window": [attention(WINDOW, sliding_window=40)],
    "full and window": [attention(), attention(WINDOW, sliding_window=40)],
    "full and 3 windows": [attention()] + 3 * [attention(WINDOW, sliding_window=40)],
    "two windows": [
        attention(),
        attention(WINDOW, sliding_window=40),
        attention(WINDOW, sliding_window=100),
    ],
    "blocks of 16 and 32": [
        attention(block_size=32, heads=1),
        attention(WINDOW, sliding_window=40),
    ],
    "chunked": [
        attention(),
        attention(specs.ChunkedLocalAttentionSpec, attention_chunk_size=64),
    ],
    "states": [attention(), states(16)],
    "wide states": [attention(block_size=32), states(32)],
    "states, hits inside blocks": [attention(block_size=32), states(32)],
}


@dataclasses.dataclass
class Asked:
    name: str
    arrival: float
    prompt: list[int]
    output: list[int]
    priority: int


def draw_trace(rng: random.Random) -> list[Asked]:
    prefixes = [[rng.randrange(VOCABULARY) for _ in range(200)] for _ in range(3)]
    asked = []
    time = 0.0
    for i in range(rng.randint(20, 60)):
        time += rng.choice((0.0, 0.0, rng.expovariate(20), rng.expovariate(2)))
        prompt = rng.choice(prefixes)[: rng.randint(1, 180)]
        prompt = prompt + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
        if asked and rng.random() < 0.3:  # a conversation goes on
            before = rng.choice(asked)
            prompt = (before.prompt + before.output + prompt[-9:])[: MAX_MODEL_LEN - 20]
        output = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 60))]
        output = output[: MAX_MODEL_LEN - len(prompt)]
        asked.append(Asked(f"{i:04}", time, prompt, output, rng.randrange(3)))
    return asked


class Settings:
    """What `scheduler_load.Server` is made from."""

    def __init__(self, rng: random.Random, kind: str, *, drafts: bool = False) -> None:
        layers = MODELS[kind]
        self.kind = kind
        self.aligned_states = any(isinstance(layer, specs.MambaSpec) for layer in layers)
        self.match_unit = 16 if "inside" in kind else None
        self.caching = self.events = rng.random() < 0.85 or self.aligned_states
        self.asynchronous = rng.random() < 0.5
        self.num_drafts = rng.choice((1, 3)) if drafts else 0
        self.num_lookahead = rng.choice((0, self.num_drafts)) if drafts else 0
        self.acceptance = rng.choice((0.0, 0.5, 0.8, 1.0)) if drafts else 0.0
        if self.aligned_states:
            layers = [layers[0], states(layers[0].block_size, self.num_drafts)]
        self.use_eagle = self.connector = self.metrics = self.is_encoder_decoder = False
        self.reports_hits = False
        self.dcp_world_size = 1
        self.policy = rng.choice(("fcfs", "priority"))
        self.num_seqs = rng.choice((3, 16))
        self.batched_tokens = rng.choice((MAX_MODEL_LEN, 64, 1024))
        self.long_prefill = rng.choice((0, 0, 48))
        one = len(layers) * (MAX_MODEL_LEN // 16 + 2 + self.num_drafts)
        self.num_blocks = one + rng.randint(4, one)
        self.watermark = rng.choice((0.0, 0.0, 0.05))
        in_flight = (1 + self.asynchronous) * self.batched_tokens
        self.config = kvplan.PlanningConfig(
            max_model_len=MAX_MODEL_LEN,
            max_in_flight_tokens=in_flight,
            max_concurrent_batches=1 + self.asynchronous,
            num_gpu_blocks_override=self.num_blocks,
            enable_prefix_caching=self.caching,
            block_size=layers[0].block_size,
            mamba_cache_mode="align" if self.aligned_states else "none",
            prefix_match_unit=self.match_unit,
        )
        named = {f"layers.{i}": layer for i, layer in enumerate(layers)}
        self.plan = kvplan.plan(self.config, [named], [1 << 40])
        self.specs = [group.kv_cache_spec for group in vllm_groups(self.plan.kv_cache_groups)]
        manager = _core.CacheManager.from_plan(self.plan)
        self.block_size, self.hash_block_size = (
            manager.scheduler_block_size,
            manager.hash_block_size,
        )


def draw(index: int, position: int) -> float:
    """A number of 0 to 1 for a draft of a request (splitmix64)."""
    most = (1 << 64) - 1
    x = ((index << 32) + position + 0x9E3779B97F4A7C15) & most
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & most
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & most
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


class VllmServer(Server):
    """vLLM's scheduler; what it samples is the trace's."""

    def __init__(self, settings: Settings, model, trace: list[Asked]) -> None:
        super().__init__(settings, model, vllm_scheduler.KVCacheManager)
        self.outputs = {asked.name: asked.output for asked in trace}
        self.made = {}
        self.accepted = self.rejected = 0
        self.hits = {}
        self.pool = self.manager.block_pool
        take_events = self.pool.take_events
        self.evictions = 0

        def counted_events():
            events = take_events()
            self.evictions += sum(
                len(event.block_hashes) for event in events if isinstance(event, BlockRemoved)
            )
            return events

        self.pool.take_events = counted_events  # the scheduler asks
        self.lookups = Counter()
        record = self.manager.record_prefix_cache_stats

        def counted_lookup(request, num_hits):
            again = "preempted_" if request.num_preemptions else ""
            self.lookups[f"{again}query_tokens"] += request.num_tokens
            self.lookups[f"{again}hit_tokens"] += num_hits
            return record(request, num_hits)

        self.manager.record_prefix_cache_stats = counted_lookup

    def ask(self, asked: Asked) -> None:
        self.add(asked.name, asked.prompt, len(asked.output), asked.priority, asked.arrival)
        self.made[asked.name] = self.scheduler.requests[asked.name]

    def schedule(self):
        output = super().schedule()
        for request in output.scheduled_new_reqs:
            self.hits.setdefault(request.req_id, request.num_computed_tokens)
        if output.total_num_scheduled_tokens == 0:
            self.in_flight.pop()
        return output

    def _sample(self, name, output):
        request = self.scheduler.requests.get(name)
        if request is None:
            return []
        num_drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        begun = {request.req_id for request in output.scheduled_new_reqs}
        if name in begun | set(output.scheduled_cached_reqs.resumed_req_ids):
            num_drafts = 0  # they fill a row up
        count = 0
        while count < num_drafts:
            if draw(int(name), request.num_tokens + count) >= self.settings.acceptance:
                break
            count += 1
        self.accepted += count
        self.rejected += num_drafts - count
        first = request.num_output_tokens
        return self.outputs[name][first : first + 1 + count]


def run_vllm(server: VllmServer, trace: list[Asked], depth: int) -> Iterator[tuple]:
    """The engine's loop under the model of time; yields each step."""
    base, token, sequence, context, group, row = TIMES
    now, ends, coming = trace[0].arrival, [], 0
    scheduler = server.scheduler
    finished = {}
    while True:
        while coming < len(trace) and trace[coming].arrival <= now:
            server.ask(trace[coming])
            coming += 1
        if not scheduler.requests and not ends:
            if coming == len(trace):
                break
            now = trace[coming].arrival
            continue
        output = server.schedule()
        tokens = output.num_scheduled_tokens
        if tokens:
            contexts = sum(scheduler.requests[name].num_computed_tokens for name in tokens)
            seconds = base + token * output.total_num_scheduled_tokens
            seconds = seconds + sequence * len(tokens) + context * contexts
            groups = len(server.settings.specs)
            seconds = seconds + group * groups + row * groups * len(tokens)
            ends.append(max(now, ends[-1] if ends else now) + seconds)
            pool = server.pool
            yield (
                now,
                len(scheduler.running),
                len(scheduler.waiting),
                pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
                sum(request.num_preemptions for request in server.made.values()),
            )
            if len(ends) < depth:
                continue
        if ends:
            now = max(now, ends.pop(0))
            before = set(scheduler.requests)
            server.finish_step()
            for name in before - set(scheduler.requests):
                finished[name] = now
    server.finished = finished


def replay(settings: Settings, trace: list[Asked]):
    sizes = [len(asked.prompt) for asked in trace]
    ids = [token for asked in trace for token in asked.prompt + asked.output]
    none = np.zeros(0, np.int64)
    return _core.replay(
        settings.plan,
        arrivals=[asked.arrival for asked in trace],
        priorities=[asked.priority for asked in trace],
        num_prompt_tokens=sizes,
        num_output_tokens=[len(asked.output) for asked in trace],
        num_parts=none,
        part_texts=none,
        part_lengths=none,
        output_texts=none,
        token_ids=np.array(ids, np.int32),
        priority_policy=settings.policy == "priority",
        max_num_seqs=settings.num_seqs,
        max_num_batched_tokens=settings.batched_tokens,
        long_prefill_token_threshold=settings.long_prefill,
        async_scheduling=settings.asynchronous,
        max_concurrent_batches=1 + settings.asynchronous,
        watermark=settings.watermark,
        num_lookahead_tokens=settings.num_lookahead,
        num_drafts=settings.num_drafts,
        acceptance=settings.acceptance,
        step_time=TIMES,
        max_samples=1 << 30,
        count_evictions=settings.caching,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return scheduler_load.model_config(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("drafts", [False, True], ids=["", "drafts"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_replay_is_what_vllm_does(kind, drafts, model):
    init_none_hash(sha256)
    seen = Counter()
    for seed in range(NUM_TRACES):
        rng = random.Random(f"{kind} {seed}")
        settings = Settings(rng, kind, drafts=drafts)
        trace = draw_trace(rng)
        server = VllmServer(settings, model, trace)
        steps = list(run_vllm(server, trace, 1 + settings.asynchronous))
        ours = replay(settings, trace)
        samples = ours["samples"]
        columns = ("time", "running", "waiting", "used_blocks", "preemptions")
        rows = list(zip(*(samples[name].tolist() for name in columns), strict=True))
        for i, (step, row) in enumerate(zip(steps, rows, strict=False)):
            assert step == row, (seed, i)
        assert ours["num_steps"] == len(steps)
        names = [asked.name for asked in trace]
        requests = ours["requests"]
        assert requests["end"].tolist() == [0] * len(names)
        assert requests["hit_tokens"].tolist() == [server.hits[name] for name in names]
        assert requests["finished"].tolist() == [server.finished[name] for name in names]
        preempted = [server.made[name].num_preemptions for name in names]
        assert requests["preemptions"].tolist() == preempted
        if settings.caching:
            server.pool.take_events()
            for name in ("query_tokens", "hit_tokens", "preempted_query_tokens"):
                assert ours[name] == server.lookups[name]
            assert ours["preempted_hit_tokens"] == server.lookups["preempted_hit_tokens"]
            assert ours["evictions"] == server.evictions
        seen["hits"] += ours["hit_tokens"] > 0
        seen["preemptions"] += sum(preempted)
        seen["evictions"] += ours["evictions"]
        seen["accepted"] += server.accepted
        seen["rejected"] += server.rejected
    assert seen["hits"]
    if drafts:
        assert seen["accepted"]
        assert seen["rejected"]
    assert seen["preemptions"]
    assert seen["evictions"]
