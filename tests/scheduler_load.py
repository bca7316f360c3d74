"""A random load through vLLM's real schedulers, three of them in lockstep.

One has vLLM's KV cache manager, one the same over kvplan's block pool, and one kvplan's manager. A
stand-in for the model runner samples tokens from the request and the position, so that all that can
differ is what managers and pools decide. Needs vLLM (0.33, or 0.32), no engine.
"""

import json
import random
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stand_in_connector import StandInConnector
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_events import BlockRemoved
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderDecoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvplan import _core
from kvplan.vllm import block_hasher, block_pool, cache_manager, conversion
from kvplan.vllm.detect import detect
from kvplan.vllm.patch import Applied

VOCABULARY = 50
MAX_MODEL_LEN = 256

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model_config(directory: Path) -> ModelConfig:
    """The part of a configuration that takes long, made once."""
    (directory / "config.json").write_text(json.dumps(LLAMA))
    return ModelConfig(
        model=str(directory),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        max_model_len=MAX_MODEL_LEN,
    )


def _attention(cls, block_size, **fields):
    return cls(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float16, **fields)


def _mamba(block_size, mode):
    return MambaSpec(
        block_size=block_size, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode=mode
    )


def group_specs(kind: str) -> list[Any]:
    """The groups of a kind of model, by a name that says what they are."""
    full = _attention(FullAttentionSpec, 16)
    window = _attention(SlidingWindowSpec, 16, sliding_window=40)
    return {
        "full": [full],
        "window": [window],
        "full and window": [full, window],
        "full and 3 windows": [full] + 3 * [window],
        "full and two windows": [
            full,
            window,
            _attention(SlidingWindowSpec, 16, sliding_window=100),
        ],
        "blocks of 16 and 32": [
            _attention(FullAttentionSpec, 32),
            _attention(SlidingWindowSpec, 16, sliding_window=40),
        ],
        "chunked": [full, _attention(ChunkedLocalAttentionSpec, 16, attention_chunk_size=64)],
        "states": [full, _mamba(MAX_MODEL_LEN, "none")],
        "aligned states": [full, _mamba(16, "align")],
        "aligned states of 64": [_attention(FullAttentionSpec, 64), _mamba(64, "align")],
        "sharded": [full],
        "encoder": [full, _attention(CrossAttentionSpec, 16)],
    }[kind]


KINDS = (
    "full",
    "window",
    "full and window",
    "full and 3 windows",
    "full and two windows",
    "blocks of 16 and 32",
    "chunked",
    "states",
    "aligned states",
    "aligned states of 64",
    "sharded",
    "encoder",
)
if detect().before_033:
    # vLLM's own manager caches states there.
    KINDS = tuple(kind for kind in KINDS if not kind.startswith("aligned"))
ENCODER_TOKENS = 40
# What has to happen in the runs of any kind, and in those of some kinds besides.
PATHS = ("new", "preempted", "aborted", "reset", "quiet", "allocations", "async", "priority")
PATHS_OF = {
    "encoder": ("encoder tokens",),
    "states": (),
    "aligned states": ("hits", "events", "removed"),
    "aligned states of 64": ("hits", "events", "removed", "copies", "boundary states"),
}
ATTENTION_PATHS = (
    "hits", "events", "removed", "measured blocks", "drafts", "loads", "async loads",
    "delayed frees",
)  # fmt: skip


class Settings:
    """What one run is like, drawn at random."""

    def __init__(self, rng: random.Random, kind: str, seed: int) -> None:
        self.kind = kind
        self.specs = group_specs(kind)
        self.aligned_states = kind.startswith("aligned")
        self.is_encoder_decoder = kind == "encoder"
        self.dcp_world_size = 2 if kind == "sharded" else 1
        attention_only = all(not isinstance(spec, MambaSpec) for spec in self.specs)
        self.caching = self.aligned_states or (
            attention_only and not self.is_encoder_decoder and (seed > 1 or rng.random() < 0.8)
        )
        # Where every block of a Mamba group is looked up in units of 16 tokens.
        self.hash_block_size = (
            16
            if self.aligned_states
            else self.dcp_world_size
            * min(s.block_size for s in self.specs if not isinstance(s, MambaSpec))
        )
        self.block_size = max(s.block_size for s in self.specs) * self.dcp_world_size
        # The first runs of a kind have one each of what has to be tried; the others are drawn.
        what = ("", "async", "drafts", "connector", "async connector")
        what = what[seed] if seed < len(what) else rng.choice(what)
        self.asynchronous = "async" in what
        self.num_drafts = 3 if what == "drafts" and attention_only else 0
        self.num_lookahead = self.num_drafts and rng.choice((0, self.num_drafts, self.num_drafts))
        self.use_eagle = bool(self.num_lookahead) and rng.random() < 0.7
        self.connector = "connector" in what and self.caching and attention_only
        self.events = self.caching and rng.random() < 0.8
        # vLLM cannot report hits that end inside a block, nor those of several ranks.
        self.reports_hits = kind not in ("sharded", "aligned states of 64")
        self.metrics = rng.random() < 0.4
        self.policy = rng.choice(("fcfs", "priority"))
        self.num_seqs = rng.choice((4, 16))
        self.batched_tokens = rng.choice((MAX_MODEL_LEN, 64, 1024))
        self.long_prefill = rng.choice((0, 0, 48))
        # A request of the longest length fits; not many do.
        one = sum(-(-MAX_MODEL_LEN // (s.block_size * self.dcp_world_size)) for s in self.specs)
        self.num_blocks = one + rng.randint(4, one)
        self.watermark = rng.choice((0.0, 0.0, 0.05))


class Server:
    """A scheduler and what a model runner would answer it."""

    def __init__(self, settings: Settings, config: ModelConfig, make_manager: Any) -> None:
        fields = {"watermark": settings.watermark}
        known = SchedulerConfig.__dataclass_fields__
        scheduler = SchedulerConfig(
            max_num_seqs=settings.num_seqs,
            max_num_batched_tokens=settings.batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            long_prefill_token_threshold=settings.long_prefill,
            policy=settings.policy,
            async_scheduling=settings.asynchronous,
            **{name: value for name, value in fields.items() if name in known},
        )
        cache = CacheConfig(block_size=16, enable_prefix_caching=settings.caching)
        vllm_config = VllmConfig(
            model_config=config,
            scheduler_config=scheduler,
            cache_config=cache,
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig("cpu"),
            observability_config=ObservabilityConfig(
                kv_cache_metrics=settings.metrics, kv_cache_metrics_sample=1.0
            ),
            kv_events_config=KVEventsConfig(
                enable_kv_cache_events=settings.events, publisher="null"
            ),
            kv_transfer_config=KVTransferConfig(
                kv_connector=StandInConnector.__name__,
                kv_connector_module_path=StandInConnector.__module__,
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
            )
            if settings.connector
            else None,
        )
        cache.num_gpu_blocks = settings.num_blocks
        if settings.aligned_states:
            cache.mamba_cache_mode = "align"
            cache.block_size = settings.block_size
        groups = [
            KVCacheGroupSpec([f"layer {i}"], spec, is_eagle_group=settings.use_eagle and i == 0)
            for i, spec in enumerate(settings.specs)
        ]
        kv_cache_config = KVCacheConfig(
            num_blocks=settings.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
        )
        held = vllm_scheduler.KVCacheManager
        # What would need a drafter or several ranks is told to the manager alone.
        vllm_scheduler.KVCacheManager = lambda **given: make_manager(
            **given | {"use_eagle": settings.use_eagle, "dcp_world_size": settings.dcp_world_size}
        )
        try:
            self.scheduler = (AsyncScheduler if settings.asynchronous else Scheduler)(
                vllm_config=vllm_config,
                kv_cache_config=kv_cache_config,
                block_size=settings.block_size,
                hash_block_size=settings.hash_block_size if settings.caching else None,
                log_stats=True,
                structured_output_manager=StructuredOutputManager(vllm_config),
            )
        finally:
            vllm_scheduler.KVCacheManager = held
        self.scheduler.num_lookahead_tokens = settings.num_lookahead
        self.scheduler.num_spec_tokens = settings.num_drafts
        self.settings = settings
        self.scheduler.use_eagle_block_drop = settings.use_eagle
        if settings.is_encoder_decoder:
            self.scheduler.is_encoder_decoder = True
            self.scheduler.max_num_encoder_input_tokens = 4 * ENCODER_TOKENS
            self.scheduler.encoder_cache_manager = EncoderDecoderCacheManager(1000)
        self.scheduler.kv_event_publisher = self
        self.manager = self.scheduler.kv_cache_manager
        self.hasher = None
        if settings.caching:
            self.hasher = get_request_block_hasher(settings.hash_block_size, sha256)
            if isinstance(self.manager, cache_manager.KVCacheManager):
                self.hasher = block_hasher.request_block_hasher(
                    self.hasher, settings.hash_block_size, sha256
                )
        self.in_flight: deque[Any] = deque()
        self.events: list[Any] = []
        take_states = self.manager.take_boundary_state_offloads
        self.boundary_states: dict[str, Any] = {}

        def take_boundary_states() -> dict[str, Any]:
            self.boundary_states = take_states()
            return self.boundary_states

        self.manager.take_boundary_state_offloads = take_boundary_states

    def publish(self, batch: Any) -> None:
        """The scheduler's events go here."""
        self.events += batch.events

    def take_events(self) -> list[Any]:
        events, self.events = self.events, []
        return events

    def add(self, name: str, tokens: list[int], max_tokens: int, priority: int, at: float) -> None:
        request = Request(
            name,
            list(tokens),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            None,
            arrival_time=at,
            priority=priority,
            block_hasher=self.hasher,
            mm_features=[
                MultiModalFeatureSpec(None, "audio", name, PlaceholderRange(0, ENCODER_TOKENS))
            ]
            if self.settings.is_encoder_decoder
            else None,
        )
        if self.settings.reports_hits and int(name) % 4 == 0:
            request.kv_cache_report_mode = "full"
        self.scheduler.add_request(request)

    def schedule(self) -> Any:
        output = self.scheduler.schedule()
        requests = self.scheduler.requests
        sampling = {n for n in output.num_scheduled_tokens if not requests[n].is_prefill_chunk}
        self.in_flight.append((output, sampling))
        return output

    def finish_step(self) -> Any:
        """What the oldest step in flight sampled."""
        output, sampling = self.in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        sampled = [self._sample(name, output) if name in sampling else [] for name in names]
        result = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=self._transfers(),
            ),
        )
        if self.settings.num_drafts and not self.settings.asynchronous:
            running = [request.request_id for request in self.scheduler.running]
            drafts = [
                [(self._seed(name) + i) % VOCABULARY for i in range(self.settings.num_drafts)]
                for name in running
            ]
            self.scheduler.update_draft_token_ids(DraftTokenIds(running, drafts))
        return result

    def _transfers(self) -> KVConnectorOutput | None:
        connector = self.scheduler.connector
        if connector is None:
            return None
        received, sent = connector.step()
        return KVConnectorOutput(finished_sending=sent, finished_recving=received)

    def _seed(self, name: str) -> int:
        request = self.scheduler.requests.get(name)
        return 0 if request is None else 7 * int(name) + request.num_tokens

    def _sample(self, name: str, output: Any) -> list[int]:
        if name not in self.scheduler.requests:
            return []
        seed = self._seed(name)
        num_drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        return [(seed + i) % VOCABULARY for i in range(1 + seed % (num_drafts + 1))]


def observe(server: Server, output: Any) -> dict[str, Any]:
    """What of a step the managers decide."""
    manager = server.manager
    cached = output.scheduled_cached_reqs
    stats = manager.make_prefix_cache_stats()
    pool = manager.block_pool
    blocks = [pool.blocks[i] for i in range(1, pool.num_gpu_blocks)]  # 0.32 counts the null block
    metrics = manager.metrics_collector
    return {
        "tokens": output.num_scheduled_tokens,
        "new": [(r.req_id, r.block_ids, r.num_computed_tokens) for r in output.scheduled_new_reqs],
        "cached": (
            cached.req_ids,
            cached.resumed_req_ids,
            cached.new_block_ids,
            cached.num_computed_tokens,
        ),
        "finished": output.finished_req_ids,
        "preempted": output.preempted_req_ids,
        "zeroed": output.new_block_ids_to_zero,
        "copies": output.kv_cache_block_copies,
        "stats": (stats.requests, stats.queries, stats.hits, stats.preempted_hits, stats.reset),
        "usage": manager.usage,
        "tables": {name: manager.get_block_ids(name) for name in server.scheduler.requests},
        "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        "blocks": [(block.ref_cnt, block.block_hash) for block in blocks],
        "events": server.take_events(),
        "boundary states": server.boundary_states,
        "measured": metrics
        and (
            list(metrics.block_metrics),
            [len(e.reuse_gaps_seconds) for e in metrics.drain_events()],
        ),
        "connector": server.scheduler.connector and server.scheduler.connector.log,
    }


def compare(servers: Sequence[Server], rng: random.Random, num_steps: int) -> Counter[str]:
    """Drives all through the same load; raises AssertionError at the first difference.

    Returns how often each path was taken.
    """
    first = servers[0]
    paths: Counter[str] = Counter()
    prefixes = [[rng.randrange(VOCABULARY) for _ in range(200)] for _ in range(3)]
    next_name = 0
    for step in range(num_steps):
        for _ in range(rng.choice((0, 0, 1, 2)) if step < num_steps - 60 else 0):
            tokens = rng.choice(prefixes)[: rng.randint(1, 180)]
            tokens = tokens + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))]
            max_tokens = rng.randint(1, 50)
            priority = rng.randrange(3)
            for server in servers:
                server.add(str(next_name), tokens, max_tokens, priority, float(next_name))
            next_name += 1
        if first.scheduler.requests and rng.random() < 0.03:
            name = rng.choice(list(first.scheduler.requests))
            for server in servers:
                server.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            paths["aborted"] += 1
        if rng.random() < 0.02 and not first.in_flight:
            # vLLM cannot take back what is being loaded.
            running = first.scheduler.connector is None and rng.random() < 0.5
            done = [s.scheduler.reset_prefix_cache(reset_running_requests=running) for s in servers]
            assert len(set(done)) == 1
            paths["reset"] += done[0]
        if step % 7 == 5 and first.settings.caching:
            # Of one in use, the next step caches a boundary inside it again.
            blocks = first.manager.block_pool.blocks
            for server in servers:
                server.manager.evict_blocks({b.block_id for b in blocks[::5]})
        outputs = [server.schedule() for server in servers]
        seen = [observe(*pair) for pair in zip(servers, outputs, strict=True)]
        for what, expected in seen[0].items():
            for server, found in zip(servers, seen, strict=True):
                assert found[what] == expected, (step, server.manager, what, expected, found[what])
        paths["new"] += len(seen[0]["new"])
        paths["hits"] += seen[0]["stats"][2] > 0
        paths["preempted"] += len(seen[0]["preempted"] or ())
        paths["resumed"] += len(seen[0]["cached"][1])
        paths["copies"] += len(seen[0]["copies"] or ())
        paths["boundary states"] += len(seen[0]["boundary states"])
        paths["measured blocks"] += bool(seen[0]["measured"]) and len(seen[0]["measured"][0])
        for event in seen[0]["events"]:
            paths["removed" if isinstance(event, BlockRemoved) else "events"] += 1
        depth = 1 if first.settings.asynchronous and rng.random() < 0.9 else 0
        while len(first.in_flight) > depth:
            for server in servers:
                server.finish_step()
    while first.in_flight:
        for server in servers:
            server.finish_step()
    if first.scheduler.connector is not None:
        paths += Counter(what for what, *_ in first.scheduler.connector.log)
    settings = first.settings
    paths["encoder tokens"] += settings.is_encoder_decoder
    paths["async"] += settings.asynchronous
    paths["priority"] += settings.policy == "priority"
    paths["drafts"] += settings.num_drafts > 0
    paths["lookahead"] += settings.num_lookahead > 0
    paths["eagle"] += settings.use_eagle
    return paths


def make_servers(settings: Settings, config: ModelConfig) -> tuple[Server, Server, Server]:
    """On vLLM's manager and pool, on vLLM's manager and kvplan's pool, on kvplan's manager."""
    vllm = detect()
    description = conversion.describe(vllm.interface, before_033=vllm.before_033)
    to_native = _core.VllmPlanner(description).to_native
    make = partial(cache_manager.make_kv_cache_manager, to_native, False, vllm)
    applied = Applied(block_pool.patches(vllm))
    try:
        ours = Server(settings, config, make)
        pooled = Server(settings, config, vllm_scheduler.KVCacheManager)
    finally:
        applied.undo()
    vllms = Server(settings, config, vllm_scheduler.KVCacheManager)
    assert type(ours.manager) is cache_manager.KVCacheManager
    assert type(pooled.manager) is type(vllms.manager) is vllm_scheduler.KVCacheManager
    assert type(pooled.manager.block_pool) is block_pool.BlockPool
    assert type(vllms.manager.block_pool) is not block_pool.BlockPool
    return vllms, pooled, ours


def compare_kind(
    kind: str, config: ModelConfig, num_runs: int, num_steps: int = 150
) -> Counter[str]:
    """Compares the schedules of some runs of a kind of model; returns how often each path ran."""
    init_none_hash(sha256)
    paths: Counter[str] = Counter()
    for seed in range(num_runs):
        rng = random.Random(f"{kind} {seed}")
        servers = make_servers(Settings(rng, kind, seed), config)
        paths += compare(servers, rng, num_steps)
        *_, pooled, ours = servers
        pooled.manager.block_pool.check_invariants()
        ours.manager.check_invariants()
        paths["quiet"] += ours.manager.num_quiet
        paths["allocations"] += ours.manager.num_allocations
    print(kind, dict(paths))
    if num_runs >= 5:
        expected = PATHS + PATHS_OF.get(kind, ATTENTION_PATHS)
        assert not (missing := [path for path in expected if not paths[path]]), (missing, paths)
    return paths
