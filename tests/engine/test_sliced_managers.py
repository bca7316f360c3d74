"""kvplan's KVCacheManager in vLLM 0.32.0, with slices, in pools that just hold one whole request.

A schedule of random requests as vLLM's scheduler makes it: running ones first, the newest preempted
where there is no room, waiting ones if their whole sequence fits. Every request must come to its
end, and the pool must agree with itself and with the block tables.
"""

import random
import warnings

import pytest

vllm = pytest.importorskip("vllm")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.v1.core.kv_cache_manager

import torch  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus  # noqa: E402

import kvplan.vllm  # noqa: E402
from kvplan.vllm import report  # noqa: E402

if vllm.__version__.partition("+")[0] != "0.32.0":
    pytest.skip("slices run in vLLM 0.32.0 only", allow_module_level=True)

from kvplan.vllm import cache_manager  # noqa: E402
from kvplan.vllm.sliced.config import SlicedKVCacheConfig  # noqa: E402

BLOCK = 16
MAX_LEN = 320
CHUNK = 64  # tokens of a step
PLAIN = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
FULL = FullAttentionSpec(**PLAIN)
WINDOW = SlidingWindowSpec(**PLAIN, sliding_window=40)
CHUNKED = ChunkedLocalAttentionSpec(**PLAIN, attention_chunk_size=48)

# Specs of the groups, and the slices that each cuts a large block into.
MODELS = {
    "full and window": ([FULL, WINDOW], (4, 1)),
    "window is small": ([FULL, WINDOW], (1, 5)),
    "both cut": ([FULL, WINDOW], (3, 4)),
    "chunked": ([FULL, CHUNKED], (2, 3)),
    "three": ([FULL, WINDOW, WINDOW], (5, 2, 7)),
}


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setenv("KVPLAN_GROUPING", "sliced")
    report.reset()
    init_none_hash(sha256)
    assert kvplan.vllm.install()
    yield
    kvplan.vllm.uninstall()


def most_blocks(spec):
    """Blocks that a request of full length holds at most, as the planner counts them."""
    if spec is FULL:
        return -(-MAX_LEN // BLOCK)
    return spec.max_admission_blocks_per_request(max_in_flight_tokens=CHUNK, max_model_len=MAX_LEN)


class Server:
    """A scheduler in miniature."""

    def __init__(self, specs, slices, *, caching, spare):
        least = sum(-(-most_blocks(s) // k) for s, k in zip(specs, slices, strict=True))
        config = SlicedKVCacheConfig(
            num_blocks=1 + least + spare,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"l{i}"], s) for i, s in enumerate(specs)],
            slices=slices,
        )
        flow = kvplan.vllm.installed_flow()
        self.manager = cache_manager.make_kv_cache_manager(
            flow.planner.to_native,
            False,
            flow.vllm,
            config,
            max_model_len=MAX_LEN,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            max_in_flight_tokens=CHUNK,
            enable_caching=caching,
        )
        self.slices = slices
        self.waiting, self.running = [], []
        self.preemptions = self.hits = self.finished = 0

    def step(self):
        budget = CHUNK
        preempted = False
        for request in list(self.running):
            if request not in self.running or budget == 0:
                continue
            tokens = min(budget, request.num_tokens - request.num_computed_tokens)
            while self.manager.allocate_slots(request, tokens) is None:
                victim = self.running.pop()
                self.manager.free(victim)
                victim.status = RequestStatus.PREEMPTED
                victim.num_computed_tokens = 0
                self.waiting.insert(0, victim)
                self.preemptions += 1
                preempted = True
                if victim is request:
                    break
            else:
                self.compute(request, tokens)
                budget -= tokens
        while self.waiting and budget and not preempted:
            request = self.waiting[0]
            found, hit, _ = self.manager.get_computed_blocks(request)
            tokens = min(budget, request.num_tokens - hit)
            if not self.manager.allocate_slots(
                request,
                tokens,
                num_new_computed_tokens=hit,
                new_computed_blocks=found,
                full_sequence_must_fit=True,
                has_scheduled_reqs=bool(self.running),
            ):
                break
            self.waiting.pop(0)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = hit
            self.hits += hit
            self.running.append(request)
            self.compute(request, tokens)
            budget -= tokens
        self.finish()

    def compute(self, request, tokens):
        request.num_computed_tokens += tokens
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(request.num_tokens % 7)

    def finish(self):
        for request in [r for r in self.running if r.num_output_tokens >= r.max_tokens]:
            self.running.remove(request)
            self.manager.free(request)
            self.finished += 1

    def check(self):
        self.manager.check_invariants()
        ids = [self.manager.get_block_ids(r.request_id) for r in self.running]
        for group, k in enumerate(self.slices):
            held = {i for tables in ids for i in tables[group] if i}
            assert not held or min(held) >= k, "the null block is cut, and nobody's"


def make_requests(rng, number, *, long_answers=False):
    """Prompts that begin alike; or short ones with answers that fill the context."""
    hasher = get_request_block_hasher(BLOCK, sha256)
    prefixes = [[rng.randrange(100) for _ in range(120)] for _ in range(3)]
    requests = []
    for i in range(number):
        length, answer = rng.choice((20, 60, 150, 250)), rng.randrange(1, 60)
        tokens = rng.choice(prefixes)[: rng.randrange(0, 120)]
        if long_answers:
            length, answer, tokens = rng.randrange(1, 30), rng.randrange(150, 280), []
        tokens = (tokens + [rng.randrange(100) for _ in range(length)])[: MAX_LEN - 60]
        sampling = SamplingParams(max_tokens=answer)
        requests.append(Request(str(i), tokens, sampling, None, block_hasher=hasher))
    return requests


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_every_request_ends(model, caching):
    preemptions = hits = 0
    for seed in range(8):
        rng = random.Random(seed)
        server = Server(*MODELS[model], caching=caching, spare=seed % 3)
        server.waiting = make_requests(rng, 24, long_answers=seed % 4 == 3)
        for step in range(6000):
            server.step()
            if step % 16 == 0:
                server.check()
            if server.finished == 24:
                break
        assert server.finished == 24, f"seed {seed}: {server.finished} of 24 requests ended"
        server.check()
        assert server.manager.usage == 0.0
        assert server.manager.reset_prefix_cache()
        preemptions += server.preemptions
        hits += server.hits
    assert preemptions > 50
    assert (hits > 0) == caching


def test_ids_have_no_block_objects():
    """An id means another block in each group: what asks for one is told so."""
    server = Server([FULL, WINDOW], (4, 1), caching=True, spare=0)
    (request,) = make_requests(random.Random(0), 1)
    blocks = server.manager.allocate_slots(request, BLOCK)
    first, second = blocks.get_block_ids()
    assert len(first) == len(second) == 1
    assert first[0] >= 4
    assert blocks.get_block_ids() == server.manager.get_block_ids(request.request_id)
    for ask in (lambda: blocks.blocks, lambda: server.manager.evict_blocks({first[0]})):
        with pytest.raises(AttributeError, match="an id means another block in each group"):
            ask()


def test_vllms_own_manager_never_gets_slices(monkeypatch):
    def fail(*_):
        raise cache_manager.Unsuitable("for a test")

    monkeypatch.setattr(cache_manager, "_require_known", fail)
    with pytest.raises(cache_manager.Unsuitable, match="for a test"):
        Server([FULL, WINDOW], (4, 1), caching=True, spare=0)
