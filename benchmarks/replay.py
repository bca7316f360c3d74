"""How fast a replay is, beside vLLM's scheduler on the same load.

    python benchmarks/replay.py [--requests N] [--vllm]

A million requests of 1,000 tokens (900 of prompt, of which 300 are shared, and 100 outputs), 256 at
once, on one core. With vLLM 0.33 installed, --vllm drives its Scheduler and KVCacheManager through
the first requests of the same load, and prints how many times longer it takes for each.
"""

import argparse
import sys
import time
from pathlib import Path

import kvplan
from kvplan import specs
from kvplan.offline.replay.run import Policy, run
from kvplan.offline.replay.step_time import StepTime
from kvplan.offline.replay.trace import TraceBuilder

SHARED, PROMPT, OUTPUT, SEQUENCES = 300, 900, 100, 256


def make_trace(count: int):
    builder = TraceBuilder("1,000 tokens")
    for i in range(count):
        parts = [(i * 7919 % 50, SHARED), (builder.own_text(), PROMPT - SHARED)]
        builder.add(0.004 * i, parts, OUTPUT)
    return builder.build()


def make_plan(num_windows: int):
    attention = specs.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float16")
    window = specs.SlidingWindowSpec(
        block_size=16, num_kv_heads=1, head_size=8, dtype="float16", sliding_window=512
    )
    layers = {"full": attention} | {f"window.{i}": window for i in range(num_windows)}
    config = kvplan.PlanningConfig(
        max_model_len=8192, num_gpu_blocks_override=30_000 * (1 + num_windows)
    )
    return kvplan.plan(config, [layers], [1 << 40])


def vllm_seconds(count: int, directory: Path) -> float:
    """Processor seconds a request of vLLM's scheduler."""
    root = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [str(root), str(root / "vllm033")]
    import random

    import scheduler_load
    import test_replay
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    scheduler_load.MAX_MODEL_LEN = test_replay.MAX_MODEL_LEN = 8192
    scheduler_load.LLAMA["max_position_embeddings"] = 8192
    init_none_hash(sha256)
    settings = test_replay.Settings(random.Random(1), "full")
    settings.num_seqs, settings.num_blocks, settings.caching = SEQUENCES, 30_000, True
    settings.batched_tokens, settings.asynchronous, settings.policy = 8192, True, "fcfs"
    settings.long_prefill, settings.watermark = 0, 0.0
    asked = [
        test_replay.Asked(
            f"{i:06}",
            0.004 * i,
            [i * 7919 % 50] * SHARED + [(i * 31 + j) % 50 for j in range(PROMPT - SHARED)],
            [1] * OUTPUT,
            0,
        )
        for i in range(count)
    ]
    server = test_replay.VllmServer(settings, scheduler_load.model_config(directory), asked)
    started = time.process_time()
    for _ in test_replay.run_vllm(server, asked, 2):
        pass
    return (time.process_time() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--vllm", action="store_true")
    args = parser.parse_args()
    trace = make_trace(args.requests)
    policy = Policy(
        max_num_seqs=SEQUENCES, step_time=StepTime(base=5e-3, token=1e-5, sequence=1e-6)
    )
    own = 0.0
    for num_windows in (0, 6):
        plan = make_plan(num_windows)
        started = time.process_time()
        report = run(plan, trace, policy)
        seconds = time.process_time() - started
        own = own or seconds / len(trace)
        print(
            f"{len(plan.groups)} group(s): {len(trace):,} requests in {seconds:,.1f} s, "
            f"{seconds / len(trace) * 1e6:.1f} us each, {report.result['num_steps']:,} steps, "
            f"{report.hit_rate:.1%} hits"
        )
    if args.vllm:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            theirs = vllm_seconds(min(args.requests, 1_000), Path(directory))
        print(f"vLLM's scheduler: {theirs * 1e6:,.0f} us each, {theirs / own:,.0f} times as long")


if __name__ == "__main__":
    main()
