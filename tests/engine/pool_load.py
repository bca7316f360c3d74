"""Serves one load with vLLM's CPU engine and prints what came out as one line of JSON.

Usage: pool_load.py vllm|kvplan|manager MODEL_DIR. A process of its own, because a vLLM engine
leaves global state behind. The tiny model has random weights; the pool is so small that requests
evict each other's prefixes and are preempted.
"""

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

import tiny_engine
from tiny_models import gemma3

os.environ["VLLM_PLUGINS"] = ""

NUM_BLOCKS = 500


def make_engine(model_dir: Path, num_blocks: int = NUM_BLOCKS, block_size: int = 16):
    model_dir.mkdir(parents=True, exist_ok=True)
    return tiny_engine.make_engine(
        model_dir,
        gemma3(8, (5,)),
        max_model_len=1024,
        max_num_batched_tokens=256,
        enable_prefix_caching=True,
        block_size=block_size,
        num_gpu_blocks_override=num_blocks,
        disable_log_stats=True,
    )


def make_prompts(num_prompts: int, seed: int = 1):
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, 1024) for _ in range(rng.randrange(100, 400))] for _ in range(6)]
    prompts = []
    for _ in range(num_prompts):
        prefix = rng.choice(prefixes)
        prompts.append(prefix + [rng.randrange(3, 1024) for _ in range(rng.randrange(1, 60))])
    return [{"prompt_token_ids": tokens} for tokens in prompts]


def main() -> None:
    which, model_dir = sys.argv[1], Path(sys.argv[2])
    if which == "kvplan":
        from kvplan.vllm import block_pool
        from kvplan.vllm.detect import detect
        from kvplan.vllm.patch import Applied

        assert Applied(block_pool.patches(detect()))
    if which == "manager":
        import kvplan.vllm

        assert kvplan.vllm.install()
    engine = make_engine(model_dir)
    manager = tiny_engine.scheduler_of(engine).kv_cache_manager
    pool = manager.block_pool
    counts: Counter[str] = Counter()
    tiny_engine.count_stored(pool, counts)
    prompts = make_prompts(36)
    outputs = []
    for i in range(0, len(prompts), 12):
        outputs += engine.generate(prompts[i : i + 12], tiny_engine.greedy(16), use_tqdm=False)
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    result = {
        "pool": type(pool).__module__,
        "manager": type(manager).__module__,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "hits": [output.num_cached_tokens for output in outputs],
        "usage": manager.usage,
        "free": free,
        "stored": counts["stored"],
        "hashed": sum(block.block_hash is not None for block in pool.blocks),
        "cached": len(pool.cached_block_hash_to_block),
        "reset": manager.reset_prefix_cache(),
        "cached_after_reset": len(pool.cached_block_hash_to_block),
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
