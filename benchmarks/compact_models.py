"""What compact grouping gives for real hybrid models, as a Markdown table.

    python benchmarks/compact_models.py

GiB of one request of the full length, groups in brackets. Models with a config.json in the package
are planned from it; the others are the shapes that their users reported. No memory size enters:
tokens for the same memory are in inverse proportion to bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvplan
from kvplan import request, specs
from kvplan.offline import models

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import reported_cases as cases

GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """One model as the planner sees it."""

    name: str
    config: kvplan.PlanningConfig
    kv_cache_specs: list[dict[str, specs.KVCacheSpec]]


def reported(name: str, described: dict[str, Any], *drafters: int) -> Case:
    """A model as users reported it; specs of the given numbers are a drafter's."""
    for number in drafters:
        described["specs"][number]["is_draft"] = True
    read = request.loads(json.dumps(described))
    return Case(name, read.planning_config(), read.kv_cache_specs())


def published(name: str, title: str, **options: Any) -> Case:
    """A model from its config.json."""
    found = models.kv_cache_specs(name, models.ModelOptions(**options))
    return Case(title, found.planning_config(), found.kv_cache_specs)


def all_cases() -> Iterator[Case]:
    """At least ten models that mix kinds of layers."""
    yield published("gemma-3-27b", "Gemma-3-27B")
    yield reported("MiMo-V2-Flash, TP 2, drafter", cases.mimo(), 2)
    yield reported("Gemma-4-26B, fp8 per token and head", cases.gemma_4_26b())
    yield reported("Gemma-4-31B", cases.gemma_4_31b(32768))
    yield reported("gpt-oss-120b, EAGLE3", cases.gpt_oss_eagle3(marked=True))
    yield reported("Llama-4-Scout, TP 8", cases.llama_4_scout(chunked=True))
    yield reported("Nemotron-3-Nano, TP 4, block 64", cases.nemotron_3_nano())
    yield reported("Qwen3.6-35B, drafter", cases.one_odd_layer(), 2, 3)
    yield published("qwen3-next-80b", "Qwen3-Next-80B, TP 2", tensor_parallel_size=2)
    yield published("jamba-1.5-large", "Jamba-1.5-Large, TP 8", tensor_parallel_size=8)
    yield published("deepseek-v4-flash", "DeepSeek-V4-Flash, TP 4", tensor_parallel_size=4)
    yield published(
        "deepseek-v4.1-flash",
        "DeepSeek-V4.1-Flash, TP 4",
        tensor_parallel_size=4,
        max_model_len=524288,
    )
    yield reported("DeepSeek-V4.1-Flash as reported, TP 4", cases.deepseek_v4_1_flash())


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
