"""Compact grouping: how long the search takes, and what a group costs while serving.

    python benchmarks/compact.py search
    python benchmarks/compact.py engine [GROUPS ...]

``engine`` wants vLLM 0.32.0's CPU engine. It decodes with a tiny model of 64 equal layers that are
dealt out to more and more groups, and takes the CPU time of the engine's thread in a step, so that
other work on the machine does not count. The layers' own work is the same throughout, so what is
added is the price of the groups. Once with vLLM's block pool and once with kvplan's.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_LAYERS = 64
BATCH = 16
PROMPT_TOKENS = 64
DECODE_TOKENS = 40


def best_ms(function: Callable[[], Any], repeats: int = 7) -> float:
    """Milliseconds of the quickest of some calls."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def search() -> None:
    """Time `kvplan.frontier`, specs in and points out."""
    import kvplan
    from kvplan import specs

    def model(num_layers: int) -> dict[str, Any]:
        """Ten kinds of caches: full attention, windows and states of several sizes."""
        kinds: list[Any] = []
        for heads, head_size in ((1, 128), (2, 128), (4, 64), (8, 64)):
            kinds.append(
                specs.FullAttentionSpec(
                    block_size=16, num_kv_heads=heads, head_size=head_size, dtype="bfloat16"
                )
            )
        for k in range(4):
            kinds.append(
                specs.SlidingWindowSpec(
                    block_size=16,
                    num_kv_heads=1 + k,
                    head_size=128,
                    dtype="bfloat16",
                    sliding_window=512 << k,
                )
            )
        for page in (80000, 120000):
            kinds.append(
                specs.MambaSpec(block_size=16, shapes=((page // 4,),), dtypes=("float32",))
            )
        return {f"layers.{i}": kinds[i % 10] for i in range(num_layers)}

    print(f"{'layers':>8} {'layout':>7} {'ms':>9} {'points':>7}  proven  above the bound")
    for layout in ("LBNHC", "BLHNC"):
        for num_layers in (50, 500, 5000, 100000):
            layers = [model(num_layers)]
            config = kvplan.PlanningConfig(
                max_model_len=131072, grouping="compact", kv_cache_layout=layout
            )
            ms = best_ms(
                lambda c=config, m=layers: kvplan.frontier(c, m), 7 if num_layers < 10**4 else 2
            )
            curve = kvplan.frontier(config, layers)
            gap = curve.chosen.request_bytes / curve.chosen.bound_bytes - 1
            print(
                f"{num_layers:>8} {layout:>7} {ms:>9.2f} {len(curve.points):>7}  {curve.exact!s:6}"
                f"  {gap:.2%}"
            )


def tiny_model() -> dict[str, Any]:
    """64 layers of full attention, as small as the CPU backend takes them."""
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "torch_dtype": "bfloat16",
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_hidden_layers": NUM_LAYERS,
        "max_position_embeddings": 2048,
        "sliding_window": 128,
        "layer_types": ["full_attention"] * NUM_LAYERS,
        "query_pre_attn_scalar": 32,
        "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def deal_into(num_groups: int) -> None:
    """Make the engine of this process use this many groups."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    def grouping(vllm_config: Any, kv_cache_spec: dict[str, Any]) -> list[Any]:
        names = list(kv_cache_spec)
        return [
            KVCacheGroupSpec(names[g::num_groups], kv_cache_spec[names[g]])
            for g in range(num_groups)
        ]

    kv_cache_utils.get_kv_cache_groups = grouping


def step_times(model_dir: str, pool: type) -> tuple[float, float]:
    """Microseconds of the engine's thread in one decoding step: all of it, and scheduling alone."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model_dir,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        seed=0,
        max_model_len=512,
        max_num_seqs=BATCH,
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    assert type(scheduler.kv_cache_manager.block_pool) is pool
    schedule_times: list[float] = []
    original = {name: getattr(scheduler, name) for name in ("schedule", "update_from_output")}

    def timed(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            result = original[name](*args, **kwargs)
            schedule_times[-1] += time.thread_time() - begin
            return result

        return call

    for name in original:
        setattr(scheduler, name, timed(name))
    sampling = SamplingParams(
        temperature=0.0, max_tokens=DECODE_TOKENS, ignore_eos=True, detokenize=False
    )
    for i in range(BATCH):
        prompt = {"prompt_token_ids": [(i * 31 + k) % 250 + 3 for k in range(PROMPT_TOKENS)]}
        llm.llm_engine.add_request(str(i), prompt, sampling)
    step = []
    while llm.llm_engine.has_unfinished_requests():
        schedule_times.append(0.0)
        begin = time.thread_time()
        llm.llm_engine.step()
        step.append(time.thread_time() - begin)
    core.shutdown()
    decoding = slice(8, -2)  # without prefill, warm-up and the last steps
    return (
        statistics.median(step[decoding]) * 1e6,
        statistics.median(schedule_times[decoding]) * 1e6,
    )


def engine(group_counts: list[int]) -> None:
    """Decoding steps against the number of groups, with both block pools."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from vllm.v1.core import kv_cache_coordinator

    pools = {"vLLM": kv_cache_coordinator.BlockPool}
    try:
        from kvplan.vllm.block_pool import BlockPool

        pools["kvplan"] = BlockPool
    except ImportError as error:
        print(f"kvplan's block pool is left out: {error}")
    with tempfile.TemporaryDirectory() as model_dir:
        Path(model_dir, "config.json").write_text(json.dumps(tiny_model()))
        print(f"{'pool':>7} {'groups':>6} {'us/step':>9} {'scheduling':>10}", flush=True)
        for pool, cls in pools.items():
            kv_cache_coordinator.BlockPool = cls
            rows = []
            for num_groups in group_counts:
                deal_into(num_groups)
                rows.append((num_groups, *step_times(model_dir, cls)))
                print(
                    f"{pool:>7} {num_groups:>6} {rows[-1][1]:>9.0f} {rows[-1][2]:>10.0f}",
                    flush=True,
                )
            if len(rows) < 2:
                continue
            first, last = rows[0], rows[-1]
            per_group = (last[1] - first[1]) / (last[0] - first[0])
            scheduling = (last[2] - first[2]) / (last[0] - first[0])
            print(
                f"{pool:>7}: {per_group:.0f} us a group and step, {scheduling:.0f} of it scheduling"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["search"]:
        search()
    elif sys.argv[1:2] == ["engine"]:
        engine([int(n) for n in sys.argv[2:]] or [1, 2, 4, 8, 16, 32, 64])
    else:
        sys.exit(__doc__)
