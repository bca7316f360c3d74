"""What vLLM's scheduler pays for its KV cache manager: vLLM's own and kvplan's, in one run.

Usage: python benchmarks/vllm_cache_manager.py [groups ...]

Needs vLLM (0.33 or 0.32), no engine. One full attention group and windows of 1,024 tokens beside
it, all with blocks of 16 tokens, through the calls that the scheduler makes:

- a quiet decode step: allocate_slots and get_block_ids of one request, inside a block;
- the mean over the 16 steps of a block;
- admission of a request of 1,000 new tokens: hashes, prefix lookup, allocation;
- free of such a request.

Microseconds a request. Both managers take turns; each figure is the least of the rounds.
"""

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import vllm.v1.kv_cache_interface as interface
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_manager as vllm_manager
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request, RequestStatus

from kvplan import _core
from kvplan.vllm import block_hasher, block_pool, cache_manager, conversion
from kvplan.vllm.detect import detect
from kvplan.vllm.patch import Applied

GROUPS = (1, 7, 25, 47)
BLOCK = 16
PROMPT = 1000
NUM_REQUESTS = 32
ROUNDS = 5
WHAT = ("quiet step", "mean of 16 steps", "admission", "free")


def make_config(num_groups: int) -> Any:
    attention = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
    full = interface.FullAttentionSpec(**attention)
    window = interface.SlidingWindowSpec(**attention, sliding_window=1024)
    return interface.KVCacheConfig(
        num_blocks=NUM_REQUESTS * (PROMPT // BLOCK + 8) * num_groups + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[
            interface.KVCacheGroupSpec([f"layer {i}"], full if i == 0 else window)
            for i in range(num_groups)
        ],
    )


def make_request(name: int, hasher: Callable[[Any], list[bytes]]) -> Any:
    # Prompts that share nothing.
    tokens = [name * 2000 + i for i in range(PROMPT)]
    parameters = SamplingParams(max_tokens=100)
    request = Request(str(name), tokens, parameters, None, block_hasher=None)
    request._block_hasher = hasher
    return request


def least(seconds: dict[str, float], what: str, value: float) -> None:
    seconds[what] = min(value, seconds.get(what, value))


def measure(manager: Any, hasher: Any, first_name: int, seconds: dict[str, float]) -> None:
    """One round: requests are admitted, decode for three blocks, and go."""
    requests = [make_request(first_name + i, hasher) for i in range(NUM_REQUESTS)]
    clock = time.perf_counter

    start = clock()
    for request in requests:
        request.update_block_hashes()
        blocks, num_hit, _ = manager.get_computed_blocks(request)
        new = manager.allocate_slots(
            request,
            PROMPT,
            num_new_computed_tokens=num_hit,
            new_computed_blocks=blocks,
            num_lookahead_tokens=0,
        )
        manager.get_blocks(request.request_id).get_block_ids()
        assert new is not None
    least(seconds, "admission", (clock() - start) / NUM_REQUESTS)

    for request in requests:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = PROMPT
    steps = []
    for _ in range(3 * BLOCK):
        for request in requests:
            request.append_output_token_ids(7)
        start = clock()
        for request in requests:
            new = manager.allocate_slots(request, 1, num_lookahead_tokens=0)
            new.get_block_ids(allow_none=True)
        steps.append((clock() - start) / NUM_REQUESTS)
        for request in requests:
            request.num_computed_tokens += 1
    least(seconds, "quiet step", min(steps))
    for i in range(0, len(steps), BLOCK):
        least(seconds, "mean of 16 steps", sum(steps[i : i + BLOCK]) / BLOCK)

    start = clock()
    for request in requests:
        manager.free(request)
    least(seconds, "free", (clock() - start) / NUM_REQUESTS)


def managers(num_groups: int) -> dict[str, tuple[Any, Any]]:
    """By name: the manager and the hasher of vLLM, and those of kvplan."""
    config = make_config(num_groups)
    arguments = {
        "kv_cache_config": config,
        "max_model_len": 8192,
        "scheduler_block_size": BLOCK,
        "hash_block_size": BLOCK,
        "enable_caching": True,
        "max_in_flight_tokens": 8192,
    }
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    vllms = vllm_manager.KVCacheManager(**arguments)
    this = detect()
    description = conversion.describe(this.interface, before_033=this.before_033)
    applied = Applied(block_pool.patches(this))
    ours = cache_manager.KVCacheManager(_core.VllmPlanner(description).to_native, this, **arguments)
    applied.undo()
    return {
        "vLLM": (vllms, hasher),
        "kvplan": (ours, block_hasher.request_block_hasher(hasher, BLOCK, sha256)),
    }


def main() -> None:
    kv_cache_utils.init_none_hash(sha256)
    print(f"{'groups':>6} {'':18} {'vLLM us':>9} {'kvplan us':>9} {'ratio':>7}")
    for num_groups in [int(n) for n in sys.argv[1:]] or GROUPS:
        seconds: dict[str, dict[str, float]] = {"vLLM": {}, "kvplan": {}}
        both = managers(num_groups)
        # The collector's passes over all of vLLM's objects are nobody's cost here.
        gc.disable()
        for i in range(ROUNDS):
            for name, (manager, hasher) in both.items():
                measure(manager, hasher, 1 + i * NUM_REQUESTS, seconds[name])
                gc.collect(0)
        gc.enable()
        for what in WHAT:
            stock, native = (1e6 * seconds[name][what] for name in ("vLLM", "kvplan"))
            print(f"{num_groups:6} {what:18} {stock:9.2f} {native:9.3f} {stock / native:7.0f}")


if __name__ == "__main__":
    main()
