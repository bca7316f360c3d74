"""vLLM's KV cache manager, its own and kvplan's in its place, as vLLM's scheduler calls them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.core import kv_cache_manager, kv_cache_utils
from vllm.v1.core.sched import scheduler
from vllm.v1.request import Request, RequestStatus

import kvplan.vllm
from kvplan.bench import manager

_names = itertools.count(1)


class SchedulerLoad:
    """`manager.Load` with a manager of vLLM's interface and a hasher of vLLM's requests."""

    def __init__(self, made: Any, hasher: Callable[[Any], list[bytes]]) -> None:
        self._manager = made
        self._hasher = hasher
        self._requests: list[Any] = []

    def new_requests(self) -> None:
        self._requests = [self._request(next(_names)) for _ in range(manager.NUM_REQUESTS)]

    def _request(self, number: int) -> Any:
        # Prompts that share nothing.
        tokens = [number * 2000 + i for i in range(manager.PROMPT)]
        parameters = SamplingParams(max_tokens=manager.STEPS + 1)
        request: Any = Request(str(number), tokens, parameters, None, block_hasher=None)
        request._block_hasher = self._hasher
        return request

    def admit(self) -> None:
        for request in self._requests:
            request.update_block_hashes()
            blocks, num_hit, _ = self._manager.get_computed_blocks(request)
            self._manager.allocate_slots(
                request,
                manager.PROMPT,
                num_new_computed_tokens=num_hit,
                new_computed_blocks=blocks,
                num_lookahead_tokens=0,
            )
            self._manager.get_blocks(request.request_id).get_block_ids()

    def next_tokens(self) -> None:
        for request in self._requests:
            request.status = RequestStatus.RUNNING
            request.append_output_token_ids(7)
            request.num_computed_tokens = request.num_tokens - 1

    def step(self) -> None:
        for request in self._requests:
            new = self._manager.allocate_slots(request, 1, num_lookahead_tokens=0)
            new.get_block_ids(allow_none=True)

    def free(self) -> None:
        for request in self._requests:
            self._manager.free(request)


def _config(num_groups: int) -> Any:
    attention = {"block_size": manager.BLOCK, "num_kv_heads": 1, "head_size": 8}
    full = interface.FullAttentionSpec(**attention, dtype=torch.float16)
    window = interface.SlidingWindowSpec(
        **attention, dtype=torch.float16, sliding_window=manager.WINDOW
    )
    return interface.KVCacheConfig(
        num_blocks=1 + num_groups * manager.NUM_BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[
            interface.KVCacheGroupSpec([f"layer {i}"], full if i == 0 else window)
            for i in range(num_groups)
        ],
    )


def loads(num_groups: int) -> dict[str, SchedulerLoad]:
    """By side. kvplan is installed in vLLM, and is again afterwards."""
    kv_cache_utils.init_none_hash(sha256)
    config = _config(num_groups)

    def load(make: Any) -> SchedulerLoad:
        made = make(
            kv_cache_config=config,
            max_model_len=manager.MAX_MODEL_LEN,
            scheduler_block_size=manager.BLOCK,
            hash_block_size=manager.BLOCK,
            enable_caching=True,
            max_in_flight_tokens=manager.MAX_MODEL_LEN,
        )
        hasher = kv_cache_utils.get_request_block_hasher(manager.BLOCK, sha256)
        return SchedulerLoad(made, hasher)

    kvplan.vllm.uninstall()
    try:
        stock = load(kv_cache_manager.KVCacheManager)
    finally:
        kvplan.vllm.install()
    return {"vllm": stock, "drop_in": load(scheduler.KVCacheManager)}
