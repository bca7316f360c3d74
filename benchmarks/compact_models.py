"""What compact grouping gives for real hybrid models, as a Markdown table.

    python benchmarks/compact_models.py

GiB of one request of the full length, groups in brackets. Models with a config.json in the package
are planned from it; the others are the shapes that their users reported. No memory size enters:
tokens for the same memory are in inverse proportion to bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kvplan
from kvplan import specs
from kvplan.offline import models

GIB = 1 << 30
Layers = dict[str, specs.KVCacheSpec]


@dataclass(frozen=True)
class Case:
    """One model as the planner sees it."""

    name: str
    config: kvplan.PlanningConfig
    kv_cache_specs: list[Layers]


def full(heads: int, head_size: int, block_size: int = 16, **fields: Any) -> specs.KVCacheSpec:
    """A bf16 full attention layer."""
    return specs.FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=heads,
        head_size=head_size,
        **{"dtype": "bfloat16"} | fields,
    )


def sliding(
    window: int, heads: int, head_size: int, block_size: int = 16, **fields: Any
) -> specs.KVCacheSpec:
    """A bf16 sliding-window layer."""
    return specs.SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=heads,
        head_size=head_size,
        sliding_window=window,
        **{"dtype": "bfloat16"} | fields,
    )


def mamba(page_bytes: int, block_size: int) -> specs.KVCacheSpec:
    """A recurrent state of a layer."""
    return specs.MambaSpec(block_size=block_size, shapes=((page_bytes // 4,),), dtypes=("float32",))


def reported(
    name: str, length: int, *counted: tuple[int, specs.KVCacheSpec], **config: Any
) -> Case:
    """A model from counts of layers."""
    rows = [spec for count, spec in counted for _ in range(count)]
    layers = {f"layers.{i}": spec for i, spec in enumerate(rows)}
    return Case(name, kvplan.PlanningConfig(max_model_len=length, **config), [layers])


def published(name: str, title: str, **options: Any) -> Case:
    """A model from its config.json."""
    found = models.kv_cache_specs(name, models.ModelOptions(**options))
    return Case(title, found.planning_config(), found.kv_cache_specs)


def all_cases() -> Iterator[Case]:
    """At least ten models that mix kinds of layers."""
    yield published("gemma-3-27b", "Gemma-3-27B")
    mimo = {"head_size_v": 128}
    yield reported(
        "MiMo-V2-Flash, TP 2, drafter",
        262144,
        (9, full(2, 192, **mimo)),
        (39, sliding(128, 4, 192, **mimo)),
        (5, sliding(1024, 4, 192, **mimo, is_draft=True)),
    )
    yield reported(
        "Gemma-4-26B, fp8 per token and head",
        32768,
        (25, sliding(1024, 8, 256, state_content_bytes=520)),
        (5, full(2, 512, state_content_bytes=1032)),
    )
    yield reported(
        "Gemma-4-31B",
        262144,
        (10, full(4, 512)),
        (50, sliding(1024, 16, 256)),
        max_in_flight_tokens=32768,
    )
    yield reported(
        "gpt-oss-120b, EAGLE3",
        131072,
        (18, full(8, 64)),
        (18, sliding(128, 8, 64)),
        (1, full(8, 64, is_draft=True)),
    )
    yield reported(
        "Llama-4-Scout, TP 8",
        10485760,
        (12, full(1, 128)),
        (
            36,
            specs.ChunkedLocalAttentionSpec(
                block_size=16,
                num_kv_heads=1,
                head_size=128,
                dtype="bfloat16",
                attention_chunk_size=8192,
            ),
        ),
        max_in_flight_tokens=16384,
    )
    yield reported(
        "Nemotron-3-Nano, TP 4, block 64",
        131072,
        (6, full(1, 128, 64)),
        (23, mamba(540672, 64)),
    )
    yield reported(
        "Qwen3.6-35B, drafter",
        262144,
        (30, mamba(1081344, 528)),
        (10, full(2, 256, 528)),
        (5, sliding(4096, 2, 256, 528, is_draft=True)),
        (1, full(1, 512, 528, is_draft=True)),
    )
    yield published("qwen3-next-80b", "Qwen3-Next-80B, TP 2", tensor_parallel_size=2)
    yield published("jamba-1.5-large", "Jamba-1.5-Large, TP 8", tensor_parallel_size=8)
    yield published("deepseek-v4-flash", "DeepSeek-V4-Flash, TP 4", tensor_parallel_size=4)
    yield published(
        "deepseek-v4.1-flash",
        "DeepSeek-V4.1-Flash, TP 4",
        tensor_parallel_size=4,
        max_model_len=524288,
    )
    yield deepseek_v4_1_flash_as_reported()


def deepseek_v4_1_flash_as_reported() -> Case:
    """The deployment whose users grouped it by hand: 40 layers, a drafter of three."""
    packing = {"dtype": "uint8", "alignment": 576, "num_kv_heads": 1}
    layers: Layers = {}
    for i in range(43):
        layers[f"layers.{i}.swa"] = specs.SlidingWindowMLASpec(
            block_size=64,
            head_size=512,
            sliding_window=192 if i >= 40 else 128,
            state_content_bytes=584,
            **packing,
        )
        if i in (2, 8, 14, 20):
            block_size, ratio = (64, 1) if i == 20 else (128, 2)
            shared = {"block_size": block_size, "tokens_per_state": ratio} | packing
            layers[f"layers.{i}.mla"] = specs.MLAAttentionSpec(
                head_size=512, state_content_bytes=584, **shared
            )
            layers[f"layers.{i}.indexer"] = specs.MLAAttentionSpec(head_size=132, **shared)
    config = kvplan.PlanningConfig(
        max_model_len=524288, max_in_flight_tokens=16384, kv_cache_layout="BLHNC"
    )
    return Case("DeepSeek-V4.1-Flash as reported, TP 4", config, [layers])


def cell(curve: Any, limit: int | None) -> str:
    """Bytes and groups of the best point with at most `limit` groups."""
    points = [p for p in curve.points if limit is None or p.num_groups <= limit]
    if not points:
        return "-"
    best = points[-1]
    return f"{best.request_bytes / GIB:.2f} ({best.num_groups})"


def row(case: Case) -> str:
    """One line of the table."""
    curve = kvplan.frontier(case.config.replace(grouping="compact"), case.kv_cache_specs)
    vllm = curve.vllm
    columns = [case.name, f"{case.config.max_model_len:,}"]
    columns.append(f"{vllm.request_bytes / GIB:.2f} ({vllm.num_groups})")
    columns += [cell(curve, limit) for limit in (vllm.num_groups, 16, 32, None)]
    columns.append(f"{curve.lower_bound_bytes / GIB:.2f}")
    at_default = curve.chosen
    columns.append(
        f"{vllm.request_bytes / at_default.request_bytes:.2f}x ({at_default.num_groups})"
    )
    columns.append("yes" if curve.exact else "bounded")
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    """Print the table."""
    head = (
        "model",
        "tokens",
        "vLLM 0.33",
        "compact, as many groups",
        "at most 16",
        "at most 32",
        "unlimited",
        "no padding",
        "tokens at the default",
        "proven",
    )
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for case in all_cases():
        print(row(case))


if __name__ == "__main__":
    main()
