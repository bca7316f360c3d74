"""vLLM's CPU engine with a tiny model of random weights, in this process.

Imported before vLLM, whose environment it sets where that is not set.
"""

import functools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
os.environ |= _ENVIRONMENT | os.environ


def make_engine(model_dir: str | Path, model: dict[str, Any], **options: Any) -> Any:
    """An engine of the model with this config, which is written into the directory."""
    from vllm import LLM

    if "kv_cache_memory_bytes" in options:
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would win
    Path(model_dir, "config.json").write_text(json.dumps(model))
    fixed = {"load_format": "dummy", "enforce_eager": True, "dtype": "bfloat16", "seed": 0}
    return LLM(model=str(model_dir), **fixed | {"skip_tokenizer_init": True} | options)


def scheduler_of(engine: Any) -> Any:
    """The scheduler of an engine in this process."""
    return engine.llm_engine.engine_core.engine_core.scheduler


def enlarge_weights() -> None:
    """Weights so large that every token of the context moves the logits."""
    from vllm.model_executor.model_loader import dummy_loader

    dummy_loader.initialize_single_dummy_weight = functools.partial(
        dummy_loader.initialize_single_dummy_weight, low=-0.25, high=0.25
    )


def greedy(max_tokens: int) -> Any:
    """Sampling that makes so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


def count_stored(pool: Any, counts: Counter[str]) -> None:
    """Counts the blocks that are given a hash."""
    store = pool.cache_full_blocks

    def counting(**arguments: Any) -> None:
        first, last = arguments["num_cached_blocks"], arguments["num_full_blocks"]
        mask = arguments.get("block_mask")
        for i, block in enumerate(arguments["blocks"][first:last]):
            counts["stored"] += not block.is_null and (mask is None or mask[i])
        store(**arguments)

    pool.cache_full_blocks = counting
