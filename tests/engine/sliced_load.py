"""Serves a load that fills the pool with vLLM's plan and with slices: sliced_load.py MODEL.

Prints one JSON line: for either grouping, prefix caching off and on, the tokens and what became of
the pool; and for slices once more, with every block poisoned that no request holds. One process, in
which kvplan is put into vLLM.
"""

import json
import os
import random
import sys
import tempfile
from collections import Counter
from typing import Any

os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}

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
POISON = 10_000.0


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


def poison_what_nobody_holds(engine: Any) -> None:
    """Before each step, fills every block that no running request holds with a number that no cache
    holds. Finite: a kernel multiplies what it masks by 0.

    Without a prefix cache only: a cached block is nobody's, too.
    """
    core = engine.llm_engine.engine_core.engine_core
    scheduler, execute = core.scheduler, core.model_executor.execute_model
    config = scheduler.kv_cache_config
    layers = engine.llm_engine.vllm_config.compilation_config.static_forward_context
    views = [[layers[name].kv_cache for name in g.layer_names] for g in config.kv_cache_groups]

    def poison_and_execute(*args: Any, **kwargs: Any) -> Any:
        held = [set() for _ in config.slices]
        for request in scheduler.running:
            tables = scheduler.kv_cache_manager.get_block_ids(request.request_id)
            for ids, table in zip(held, tables, strict=True):
                ids.update(table)
        in_use = [{i // k for i in ids} for ids, k in zip(held, config.slices, strict=True)]
        for group, k in enumerate(config.slices):
            others = set().union(*in_use[:group], *in_use[group + 1 :]) - {0}
            ids = [
                i
                for i in range(config.num_blocks * k)
                if i not in held[group] and i // k not in others
            ]
            for view in views[group]:
                assert view.shape[0] == config.num_blocks * k
                view[ids] = POISON
        return execute(*args, **kwargs)

    core.model_executor.execute_model = poison_and_execute


def run(
    model_dir: str, model: dict[str, Any], memory: int, prefix_caching: bool, poison: bool
) -> dict[str, Any]:
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
    is_sliced = hasattr(config, "slices")
    counts: Counter[str] = Counter()
    count_preemptions(scheduler, counts)
    if not is_sliced:
        count_stored(manager.block_pool, counts)
    if poison:
        poison_what_nobody_holds(llm)
    prompts = make_prompts()
    outputs = []
    for i in range(0, NUM_PROMPTS, BATCH):
        outputs += llm.generate(prompts[i : i + BATCH], greedy(40), use_tqdm=False)
        if is_sliced:
            manager.check_invariants()
    hashed = [] if is_sliced else [b for b in manager.block_pool.blocks if b.block_hash is not None]
    result = {
        "groups": [len(group.layer_names) for group in config.kv_cache_groups],
        "slices": list(getattr(config, "slices", ())),
        "num_blocks": config.num_blocks,
        "capacity": llm.llm_engine.vllm_config.cache_config.kv_cache_size_tokens,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "hits": sum(output.num_cached_tokens or 0 for output in outputs),
        "preempted": counts["preempted"],
        "stored": counts["stored"],
        "hashed": len(hashed),
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
                    model_dir, model, MEMORY[name], prefix_caching, poison=False
                )
        results["poisoned False"] = run(model_dir, model, MEMORY[name], False, poison=True)
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main()
