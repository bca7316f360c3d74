"""Serves one load with vLLM's CPU engine and prints what came out as one line of JSON.

Usage: pool_load.py vllm|kvplan|manager MODEL_DIR. A process of its own, because a vLLM engine
leaves global state behind. The tiny model has random weights; the pool is so small that requests
evict each other's prefixes and are preempted.
"""

import json
import os
import random
import sys
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    VLLM_PLUGINS="",
)

NUM_BLOCKS = 500

MODEL = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 8,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
    "sliding_window": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "query_pre_attn_scalar": 32,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def make_engine(model_dir: Path, num_blocks: int = NUM_BLOCKS, block_size: int = 16):
    from vllm import LLM

    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / "config.json").write_text(json.dumps(MODEL))
    return LLM(
        model=str(model_dir),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        seed=0,
        max_model_len=1024,
        max_num_batched_tokens=256,
        enable_prefix_caching=True,
        block_size=block_size,
        num_gpu_blocks_override=num_blocks,
        disable_log_stats=True,
    )


def kv_cache_manager(engine):
    return engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager


def make_prompts(num_prompts: int, seed: int = 1):
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, 1024) for _ in range(rng.randrange(100, 400))] for _ in range(6)]
    prompts = []
    for _ in range(num_prompts):
        prefix = rng.choice(prefixes)
        prompts.append(prefix + [rng.randrange(3, 1024) for _ in range(rng.randrange(1, 60))])
    return [{"prompt_token_ids": tokens} for tokens in prompts]


def count_stored_blocks(pool):
    """A function that tells how many blocks have been given a hash since."""
    cache_full_blocks = pool.cache_full_blocks
    count = 0

    def counting(*, blocks, num_cached_blocks, num_full_blocks, block_mask=None, **kwargs):
        nonlocal count
        for i, block in enumerate(blocks[num_cached_blocks:num_full_blocks]):
            count += not block.is_null and (block_mask is None or block_mask[i])
        cache_full_blocks(
            blocks=blocks,
            num_cached_blocks=num_cached_blocks,
            num_full_blocks=num_full_blocks,
            block_mask=block_mask,
            **kwargs,
        )

    pool.cache_full_blocks = counting
    return lambda: count


def main() -> None:
    which, model_dir = sys.argv[1], Path(sys.argv[2])
    if which == "kvplan":
        from kvplan.vllm import block_pool
        from kvplan.vllm.detect import detect
        from kvplan.vllm.patch import Applied

        assert Applied(block_pool.patches(detect()))
    from vllm import SamplingParams

    if which == "manager":
        import kvplan.vllm

        assert kvplan.vllm.install()
    engine = make_engine(model_dir)
    manager = kv_cache_manager(engine)
    pool = manager.block_pool
    num_stored = count_stored_blocks(pool)
    prompts = make_prompts(36)
    outputs = []
    for i in range(0, len(prompts), 12):
        outputs += engine.generate(
            prompts[i : i + 12],
            SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False),
            use_tqdm=False,
        )
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    result = {
        "pool": type(pool).__module__,
        "manager": type(manager).__module__,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "hits": [output.num_cached_tokens for output in outputs],
        "usage": manager.usage,
        "free": free,
        "stored": num_stored(),
        "hashed": sum(block.block_hash is not None for block in pool.blocks),
        "cached": len(pool.cached_block_hash_to_block),
        "reset": manager.reset_prefix_cache(),
        "cached_after_reset": len(pool.cached_block_hash_to_block),
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
