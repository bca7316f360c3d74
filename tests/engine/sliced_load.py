"""Serves a load that fills the pool with vLLM's plan and with slices: sliced_load.py MODEL.

Prints one JSON line: for either grouping, prefix caching off and on, the tokens and what became of
the pool. One process, in which kvplan is put into vLLM.
"""

import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

from tiny_engine import (  # isort: skip
    count_stored,
    enlarge_weights,
    greedy,
    make_engine,
    scheduler_of,
)

import dropin_models
import tiny_models
from generate import make_odd

import kvplan.vllm

# For blocks of 32 tokens; so few bytes that running requests are preempted.
MEMORY = {"gemma3_style": 5_500_000, "odd_layer": 5_500_000, "llama4": 4_500_000}
NUM_PROMPTS = 64
BATCH = 32


def make_prompts() -> list[dict[str, list[int]]]:
    """Half of them begin like others, in four ways."""
    rng = random.Random(1)
    prefixes = [[rng.randrange(3, 1000) for _ in range(70)] for _ in range(4)]
    prompts = []
    for i in range(NUM_PROMPTS):
        prefix = rng.choice(prefixes) if i % 2 else []
        prompts.append(prefix + [rng.randrange(3, 1000) for _ in range(rng.randrange(10, 60))])
    return [{"prompt_token_ids": tokens} for tokens in prompts]


def count_preemptions(scheduler: Any, counts: Counter[str]) -> None:
    """Counts how often a running request loses its blocks."""
    preempt = scheduler._preempt_request

    def counting(*args: Any, **kwargs: Any) -> None:
        counts["preempted"] += 1
        preempt(*args, **kwargs)

    scheduler._preempt_request = counting


def all_blocks(pool: Any) -> Iterable[Any]:
    """The blocks that the pool has objects for."""
    return pool.blocks.values() if isinstance(pool.blocks, dict) else pool.blocks


def check_slices(reserve: Any) -> None:
    """The pool agrees with itself and with the block objects."""
    reserve.pool.check_invariants()
    for group in reserve.groups:
        ids = [block_id for block_id in group.blocks if block_id != 0]
        counts = [group.blocks[block_id].ref_cnt for block_id in ids]
        assert reserve.pool.ref_counts(ids, group.group_id).tolist() == counts


def run(model_dir: str, model: dict[str, Any], memory: int, prefix_caching: bool) -> dict[str, Any]:
    llm = make_engine(
        model_dir,
        model,
        block_size=32,
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=BATCH,
        kv_cache_memory_bytes=memory,
        enable_prefix_caching=prefix_caching,
    )
    scheduler = scheduler_of(llm)
    manager = scheduler.kv_cache_manager
    config = scheduler.kv_cache_config
    pools = list(dict.fromkeys(m.block_pool for m in manager.coordinator.single_type_managers))
    counts: Counter[str] = Counter()
    count_preemptions(scheduler, counts)
    for pool in pools:
        count_stored(pool, counts)
    prompts = make_prompts()
    outputs = []
    for i in range(0, NUM_PROMPTS, BATCH):
        outputs += llm.generate(prompts[i : i + BATCH], greedy(40), use_tqdm=False)
        if hasattr(config, "slices"):
            check_slices(manager.block_pool)
    blocks = [block for pool in pools for block in all_blocks(pool)]
    result = {
        "groups": [len(group.layer_names) for group in config.kv_cache_groups],
        "slices": list(getattr(config, "slices", ())),
        "num_blocks": config.num_blocks,
        "capacity": llm.llm_engine.vllm_config.cache_config.kv_cache_size_tokens,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "hits": sum(output.num_cached_tokens or 0 for output in outputs),
        "preempted": counts["preempted"],
        "stored": counts["stored"],
        "hashed": sum(block.block_hash is not None for block in blocks),
        "usage": manager.usage,
        "free": manager.block_pool.get_num_free_blocks(),
        "reset": manager.reset_prefix_cache(),
    }
    llm.llm_engine.engine_core.shutdown()
    return result


def main() -> None:
    name = sys.argv[1]
    enlarge_weights()
    if name == "odd_layer":
        make_odd()
    model = tiny_models.MODELS.get(name) or dropin_models.MODELS[name]
    results = {}
    with tempfile.TemporaryDirectory() as model_dir:
        for grouping in ("vllm", "sliced"):
            if grouping == "sliced":
                os.environ["KVPLAN_GROUPING"] = "sliced"
                assert kvplan.vllm.install()
            for prefix_caching in (False, True):
                results[f"{grouping} {prefix_caching}"] = run(
                    model_dir, model, MEMORY[name], prefix_caching
                )
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main()
