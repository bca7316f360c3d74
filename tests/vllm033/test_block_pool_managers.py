"""vLLM's real KVCacheManager on top of vLLM's pool and on top of kvplan's, through one schedule.

Requests that share prefixes are admitted, prefilled in chunks, decoded, preempted and finished in
pools that are too small for them; block tables, prefix hits, copies, events and the free list must
be the same after every call.
"""

import random
from functools import partial

import pytest

vllm = pytest.importorskip("vllm")
if not vllm.__version__.startswith("0.33."):
    pytest.skip("compares with vLLM 0.33", allow_module_level=True)

import torch  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core import block_pool as vllm_block_pool  # noqa: E402
from vllm.v1.core import kv_cache_coordinator  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus  # noqa: E402

from kvplan.vllm import block_pool as kvplan_block_pool  # noqa: E402

attention = partial(
    FullAttentionSpec, block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16
)
window = partial(SlidingWindowSpec, block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16)
chunked = partial(
    ChunkedLocalAttentionSpec, block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float16
)
mamba = partial(
    MambaSpec, block_size=16, shapes=((16, 8),), dtypes=(torch.float32,), mamba_cache_mode="align"
)

# specs, keyword arguments of the manager
MODELS = {
    "full attention": ([attention()], {"scheduler_block_size": 16, "hash_block_size": 16}),
    "without caching": (
        [attention()],
        {"scheduler_block_size": 16, "hash_block_size": 16, "enable_caching": False},
    ),
    "sliding window": (
        [attention(), window(sliding_window=40), window(sliding_window=40)],
        {"scheduler_block_size": 16, "hash_block_size": 16},
    ),
    "chunked local": (
        [attention(), chunked(attention_chunk_size=48)],
        {"scheduler_block_size": 16, "hash_block_size": 16},
    ),
    "two block sizes": (
        [attention(block_size=32), window(sliding_window=24)],
        {"scheduler_block_size": 32, "hash_block_size": 16},
    ),
    "eagle": (
        [attention(), window(sliding_window=40)],
        {"scheduler_block_size": 16, "hash_block_size": 16, "use_eagle": True},
    ),
    "mamba align": (
        [attention(), mamba()],
        {"scheduler_block_size": 16, "hash_block_size": 16},
    ),
    "mamba align with partial hits": (
        [attention(), mamba()],
        {"scheduler_block_size": 16, "hash_block_size": 4},
    ),
    "context parallel": (
        [attention()],
        {"scheduler_block_size": 32, "hash_block_size": 32, "dcp_world_size": 2},
    ),
    "context parallel with mamba": (
        [attention(), mamba(block_size=32)],
        {"scheduler_block_size": 32, "hash_block_size": 32, "dcp_world_size": 2},
    ),
}


class Engine:
    """A manager and the requests it serves, recording everything it answers."""

    def __init__(self, pool_class, specs, num_blocks, monkeypatch, **kwargs):
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)],
        )
        with monkeypatch.context() as patch:
            patch.setattr(kv_cache_coordinator, "BlockPool", pool_class)
            self.manager = KVCacheManager(
                config, max_model_len=512, enable_kv_cache_events=True, **kwargs
            )
        self.pool = self.manager.block_pool
        assert type(self.pool) is pool_class
        self.hasher = get_request_block_hasher(kwargs["hash_block_size"], sha256)
        self.requests = {}
        self.retained = []
        self.log = []

    def add(self, name, tokens):
        request = Request(
            name, tokens, SamplingParams(max_tokens=64), None, block_hasher=self.hasher
        )
        self.requests[name] = request

    def schedule(self, name, num_new_tokens, num_lookahead):
        """Slots for the next tokens of a request; whether there were any.

        num_new_tokens None: up to the last hash boundary of the prompt, where a partial tail can
        be cached.
        """
        request = self.requests[name]
        blocks = None
        num_hits = 0
        if request.num_computed_tokens == 0:
            blocks, num_hits, boundary = self.manager.get_computed_blocks(request)
            request.shared_prefix_boundary = boundary
            self.log.append(("hit", name, num_hits, blocks.get_block_ids()))
        start = request.num_computed_tokens + num_hits
        if num_new_tokens is None:
            size = self.pool.hash_block_size
            num_new_tokens = (request.num_prompt_tokens - 1) // size * size - start
            if num_new_tokens <= 0:
                num_new_tokens = 8
        n = min(num_new_tokens, request.num_tokens - start)
        result = self.manager.allocate_slots(request, n, num_hits, blocks, num_lookahead)
        if result is None:
            self.log.append(("full", name))
            return False
        request.num_computed_tokens = start + n
        request.status = RequestStatus.RUNNING
        self.log.append(
            ("slots", name, n, result.get_block_ids(), self.manager.get_block_ids(name))
        )
        return True

    def append_token(self, name, token):
        request = self.requests[name]
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(token)

    def free(self, name, finished):
        self.manager.free(self.requests[name])
        self.requests[name].num_computed_tokens = 0
        self.requests[name].status = RequestStatus.PREEMPTED
        if finished:
            del self.requests[name]

    def end_step(self):
        self.pool.free_blocks(self.retained)
        copies, self.retained = self.manager.take_kv_cache_block_copies()
        self.log.append(("copies", copies))
        self.log.append(("events", self.manager.take_events()))
        self.log.append(("new", self.manager.take_new_block_ids()))
        free = self.pool.free_block_queue.get_all_free_blocks()
        self.log.append(("free", [block.block_id for block in free], self.manager.usage))
        blocks = self.pool.blocks
        self.log.append([(blocks[i].ref_cnt, blocks[i].block_hash) for i in range(len(blocks))])
        log, self.log = self.log, []
        self.manager.new_step_starts()
        return log


def run(engines, rng, num_steps):
    """One random schedule on several engines; yields how many requests hit and were preempted."""
    names = []
    hits = preempted = 0
    prefixes = [[rng.randrange(100) for _ in range(rng.randrange(20, 120))] for _ in range(4)]
    for step in range(num_steps):
        if len(names) < 6 and rng.random() < 0.4:
            prefix = rng.choice(prefixes)
            tokens = prefix[: rng.randrange(8, len(prefix))] if rng.random() < 0.5 else prefix
            tokens = tokens + [rng.randrange(100) for _ in range(rng.randrange(1, 40))]
            names.append(f"r{step}")
            for engine in engines:
                engine.add(names[-1], list(tokens))
        for name in list(names):
            n, lookahead = rng.choice([8, 16, 24, 64, None, None]), rng.choice([0, 0, 2])
            while True:
                answers = {engine.schedule(name, n, lookahead) for engine in engines}
                assert len(answers) == 1
                if answers.pop():
                    break
                running = [r for r in names if engines[0].requests[r].num_computed_tokens]
                if not running:
                    break
                preempted += 1
                for engine in engines:
                    engine.free(running[-1], finished=False)
                if running[-1] == name:
                    break
            token = rng.randrange(100)
            for engine in engines:
                if engine.requests[name].num_computed_tokens:
                    engine.append_token(name, token)
            if rng.random() < 0.08:
                names.remove(name)
                for engine in engines:
                    engine.free(name, finished=True)
        if rng.random() < 0.02:
            evicted = {rng.randrange(1, len(engines[0].pool.blocks)) for _ in range(3)}
            for engine in engines:
                engine.manager.evict_blocks(evicted)
        logs = [engine.end_step() for engine in engines]
        for log in logs[1:]:
            assert log == logs[0]
        hits += sum(entry[0] == "hit" and entry[2] > 0 for entry in logs[0] if entry)
    for name in names:
        for engine in engines:
            engine.free(name, finished=True)
    for engine in engines:
        engine.end_step()
        engine.end_step()
    return hits, preempted


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_same_answers_on_both_pools(model, seed, monkeypatch):
    init_none_hash(sha256)
    specs, kwargs = MODELS[model]
    num_blocks = 14 * len(specs) + 6 * seed
    engines = [
        Engine(pool_class, specs, num_blocks, monkeypatch, **kwargs)
        for pool_class in (vllm_block_pool.BlockPool, kvplan_block_pool.BlockPool)
    ]
    hits, preempted = run(engines, random.Random(f"{model} {seed}"), num_steps=400)
    assert preempted > 0 or seed > 0
    assert (hits > 0) == kwargs.get("enable_caching", True)
    ours = engines[1]
    assert ours.manager.usage == 0.0
    ours.pool.check_invariants()
    assert engines[0].manager.reset_prefix_cache()
    assert ours.manager.reset_prefix_cache()
    assert ours.pool.take_events() == engines[0].pool.take_events()
