"""Write the tables of docs/replay.md: the GPUs behind the default step time, and gains of plans.

Usage: python scripts/make_replay_page.py

Gains are those of benchmarks/results/workload.jsonl, which benchmarks/workload.py measures.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from kvplan.offline.replay.step_time import SPEEDS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "workload.jsonl"
PAGE = ROOT / "docs" / "replay.md"
END = "<!-- end -->"


def gpu_table() -> list[str]:
    """The data sheets' figures."""
    lines = ["| GPU | memory, TB/s | dense bfloat16, TFLOPS |", "|---|---|---|"]
    return lines + [
        f"| {name} | {speed:g} | {flops:,} |" for name, (speed, flops) in SPEEDS.items()
    ]


#: Column by what is divided by what, in a row of the results.
FACTORS = {
    "gain": ("chosen", "vllm"),
    "other seed": ("chosen_other_seed", "vllm_other_seed"),
    "no padding, no price": ("bound", "vllm"),
    "slices": ("sliced", "vllm"),
    "fp8 cache": ("fp8", "vllm"),
    "against stock vLLM": ("chosen", "vllm_with_vllms_manager"),
}


def factor(row: dict[str, Any], column: str) -> float | None:
    """A factor of a row; None where one of the two was not served or not planned."""
    above, below = (row[name] for name in FACTORS[column])
    return above / below if above and below else None


def gain_table() -> list[str]:
    """Each cell, and the medians."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    columns = ["model, H100s", "load", "vLLM's plan, requests/s", "chosen", *FACTORS]
    columns += ["hits", "blocks in use", "plan"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        factors = [factor(row, column) for column in FACTORS]
        cells = [
            f"{row['model']}, {row['options'].removeprefix('--')}",
            row["load"],
            f"{row['vllm']:.3g}",
            f"{row['chosen']:.3g}",
            *("-" if found is None else f"{found:.2f}x" for found in factors),
            f"{row['vllm_hits']:.0%} to {row['chosen_hits']:.0%}",
            f"{row['peak_blocks']:.0%}",
            f"`{row['plan']}`" if row["plan"] else "the same",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| | median | least | most | 1.15x or more |", "|---|---|---|---|---|"]
    for column in FACTORS:
        values = [found for row in rows if (found := factor(row, column)) is not None]
        if values:
            lines.append(
                f"| {column} | {statistics.median(values):.2f}x | {min(values):.2f}x | "
                f"{max(values):.2f}x | {sum(n >= 1.15 for n in values)} of {len(values)} |"
            )
    return lines


def updated(page: str) -> str:
    """The page with fresh tables."""
    for name, table in (("GPUs", gpu_table()), ("gains", gain_table())):
        begin = f"<!-- {name}: made by scripts/make_replay_page.py -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(END)
        page = "\n".join([f"{before}{begin}", *table, f"{END}{after}"])
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
