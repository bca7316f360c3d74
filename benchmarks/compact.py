"""Compact grouping: how long the search takes, and what a group costs while serving.

    python benchmarks/compact.py search
    python benchmarks/compact.py engine [GROUPS ...]

``engine`` wants vLLM 0.32.0's CPU engine. It decodes with a tiny model of 64 equal layers that are
dealt out to more and more groups, and takes the CPU time of the engine's thread in a step, so that
other work on the machine does not count, and how much of it goes into scheduling, block table rows
(`MultiGroupBlockTable`) and attention metadata. The layers' own work is the same throughout, so
what is added is the price of the groups. With 16, 64 and 256 requests, with vLLM's KV cache manager
and with kvplan's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_LAYERS = 64
BATCHES = (16, 64, 256)
PROMPT_TOKENS = 32
DECODE_TOKENS = 40
PARTS = ("step", "scheduling", "rows", "metadata")


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


class Clock:
    """CPU microseconds of the parts of the step that runs."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)

    def timed(self, owner: Any, name: str, part: str) -> None:
        """Counts calls of a method as that part; of nested calls, the outer one alone."""
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._inside = True
            begin = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self.spent[part] += 1e6 * (time.thread_time() - begin)
                self._inside = False

        setattr(owner, name, call)

    _inside = False


def decode(llm: Any, batch: int, clock: Clock) -> dict[str, float]:
    """Medians over the decoding steps of so many requests."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0.0, max_tokens=DECODE_TOKENS, ignore_eos=True, detokenize=False
    )
    for i in range(batch):
        prompt = {"prompt_token_ids": [(i * 31 + k) % 250 + 3 for k in range(PROMPT_TOKENS)]}
        llm.llm_engine.add_request(f"{batch} {i}", prompt, sampling)
    steps = []
    while llm.llm_engine.has_unfinished_requests():
        clock.spent = dict.fromkeys(PARTS, 0.0)
        begin = time.thread_time()
        llm.llm_engine.step()
        steps.append(clock.spent | {"step": 1e6 * (time.thread_time() - begin)})
    # Without prefill, warm-up and the last steps; a mean, since few steps cross a block.
    decoding = steps[-DECODE_TOKENS + 3 : -2]
    return {part: statistics.fmean(step[part] for step in decoding) for part in PARTS}


def one_engine(manager: str, num_groups: int) -> None:
    """Prints a row for each number of requests."""
    with tempfile.TemporaryDirectory() as model_dir:
        Path(model_dir, "config.json").write_text(json.dumps(tiny_model()))
        if manager == "kvplan":
            import kvplan.vllm

            assert kvplan.vllm.install()
        deal_into(num_groups)
        from vllm import LLM
        from vllm.v1.worker.block_table import MultiGroupBlockTable

        llm = LLM(
            model=model_dir,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            seed=0,
            block_size=32,
            max_model_len=512,
            max_num_seqs=max(BATCHES),
            max_num_batched_tokens=PROMPT_TOKENS * max(BATCHES),
        )
        core = llm.llm_engine.engine_core.engine_core
        made = type(core.scheduler.kv_cache_manager).__module__
        assert made.startswith("kvplan") == (manager == "kvplan"), made
        assert len(core.scheduler.kv_cache_config.kv_cache_groups) == num_groups
        clock = Clock()
        for name in ("schedule", "update_from_output"):
            clock.timed(core.scheduler, name, "scheduling")
        for name, value in vars(MultiGroupBlockTable).items():
            if callable(value) and not name.startswith("__"):
                clock.timed(MultiGroupBlockTable, name, "rows")
        runner = core.model_executor.driver_worker.worker.model_runner
        clock.timed(runner, "_build_attention_metadata", "metadata")
        for batch in BATCHES:
            print("ROW " + json.dumps(decode(llm, batch, clock)), flush=True)
        core.shutdown()


def engine(group_counts: list[int]) -> None:
    """Decoding steps against the number of groups, with both managers."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    print(f"{'manager':>7} {'requests':>8} {'groups':>6}" + "".join(f"{p:>12}" for p in PARTS))
    for manager in ("vLLM", "kvplan"):
        rows: dict[int, dict[int, dict[str, float]]] = {batch: {} for batch in BATCHES}
        for num_groups in group_counts:
            environment["KVPLAN_DISABLE"] = "1" if manager == "vLLM" else "0"
            command = [sys.executable, __file__, "one_engine", manager, str(num_groups)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
            found = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
            for batch, line in zip(BATCHES, found, strict=True):
                rows[batch][num_groups] = json.loads(line.removeprefix("ROW "))
        for batch, by_groups in rows.items():
            for num_groups, row in by_groups.items():
                times = "".join(f"{row[part]:>12.0f}" for part in PARTS)
                print(f"{manager:>7} {batch:>8} {num_groups:>6}{times}", flush=True)
            first, last = min(by_groups), max(by_groups)
            if first == last:
                continue
            more = {p: (by_groups[last][p] - by_groups[first][p]) / (last - first) for p in PARTS}
            print(f"{manager:>7} {batch:>8} a more" + "".join(f"{more[p]:>12.1f}" for p in PARTS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["search"]:
        search()
    elif sys.argv[1:2] == ["engine"]:
        engine([int(n) for n in sys.argv[2:]] or [1, 4, 16, 64])
    elif sys.argv[1:2] == ["one_engine"]:
        one_engine(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(__doc__)
