"""Write the table of docs/capacity_changes.md anew, from kvplan itself.

What a release of vLLM counted is planned again with what it had: another budget of the GPU, tokens
in flight, bytes of a block, or one block more. A test compares the page with this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvplan.kv_cache_config import layer_spec
from kvplan.offline import models
from kvplan.offline.budget.budget import Deployment, memory_budgets
from kvplan.offline.budget.gpus import defaults_for, find_gpu
from kvplan.offline.budget.weights import weights_on_ranks
from kvplan.offline.cli.knobs import plan_given_plenty
from kvplan.offline.cli.question import ModelQuestion

PAGE = Path(__file__).resolve().parents[1] / "docs" / "capacity_changes.md"
MARKED = re.compile(r"(<!-- changes -->\n).*?(<!-- end -->)", re.S)
GIB = 1 << 30
#: (model, options of its deployment, memory for the cache of each GPU)
MODELS = (
    ("llama-3.1-70b", {"tensor_parallel_size": 4}, 40 * GIB),
    ("gemma-3-27b", {}, 40 * GIB),
    ("deepseek-v4-flash", {"tensor_parallel_size": 4}, 40 * GIB),
)
#: The GPU of what depends on one.
GPU = find_gpu("H200")


def question(name: str, options: dict[str, int], memory: int) -> ModelQuestion:
    """The deployment at vLLM's defaults."""
    return ModelQuestion(models.load(name), models.ModelOptions(**options), (memory,))


def change(before: float, now: float) -> str:
    """Tokens before and now."""
    percent = f" ({now / before - 1:+.1%})" if now != before else ""
    return f"{before:,.0f} to {now:,.0f}{percent}" if percent else "no change"


def parts(q: ModelQuestion, version: tuple[int, int]) -> dict[str, int]:
    """What a rank of the GPU holds beside the KV cache, by part, as a release counts it."""
    defaults = defaults_for(GPU)
    options = q.options.replace(max_num_batched_tokens=defaults.max_num_batched_tokens)
    deployment = Deployment(GPU, 0.92, defaults.max_num_seqs, version=version)
    weights = weights_on_ranks(q.model, options)
    return {p.name: p.bytes for p in memory_budgets(q.model, options, deployment, weights)[0].parts}


def more_beside(
    before: tuple[int, int], now: tuple[int, int], *names: str
) -> Callable[[ModelQuestion], str]:
    """The capacity where these parts take as much more of the GPU as two releases differ."""

    def count(q: ModelQuestion) -> str:
        old, new = parts(q, before), parts(q, now)
        taken = sum(new.get(name, 0) - old.get(name, 0) for name in names)
        fewer = q.with_memory((q.memory[0] - taken,)).planner_input().plan()
        tokens = change(q.planner_input().plan().capacity_tokens, fewer.capacity_tokens)
        return f"{taken / GIB:+.2f} GiB: {tokens}"

    return count


def buckets(q: ModelQuestion) -> str:
    """0.23: slots of each page size are counted apart, not all as many as the most.

    The sizes are those of the widest group; others lie in the slots of these.
    """
    plan = q.planner_input().plan()
    pages = [
        Counter(layer_spec(g.kv_cache_spec, n).page_size_bytes for n in g.layer_names)
        for g in plan.kv_cache_groups
    ]
    widest = max(pages, key=lambda counter: counter.total())
    slots = {size: max(counter[size] for counter in pages) for size in widest}
    if len(slots) == 1:
        return "no change"
    before = sum(slots) * max(slots.values())
    now = sum(size * number for size, number in slots.items())
    return f"{before:,} to {now:,} bytes a block ({before / now - 1:+.1%} tokens)"


def in_flight(q: ModelQuestion) -> str:
    """0.26: a window keeps the tokens of all steps in flight, not of one."""
    before = q.with_options(async_scheduling=False).planner_input().plan()
    return change(before.capacity_tokens, q.planner_input().plan().capacity_tokens)


def null_block(q: ModelQuestion) -> str:
    """0.29: the longest context in the memory of one request, of which a block is null now."""
    full = plan_given_plenty(q.planner_input())
    assert full is not None
    exact = q.with_memory((full.request_bytes,)).with_options(max_model_len="auto")
    return change(full.max_model_len, exact.planner_input().plan().max_model_len)


CHANGES = (
    (
        "0.20",
        "the estimate of CUDA graphs is taken off the memory",
        more_beside((0, 19), (0, 20), "CUDA graphs"),
    ),
    ("0.23", "pages of each size are counted apart", buckets),
    ("0.26", "windows keep the tokens of all steps in flight", in_flight),
    ("0.29", "one block is the null block's; the longest context of a tight memory", null_block),
    (
        "0.31, dense 0.25",
        "the V2 model runner's sampler tables",
        more_beside((0, 24), (0, 31), "runner's buffers"),
    ),
    (
        "0.31, dense 0.25",
        "its profile run leaves the sampler's parameters out",
        more_beside((0, 24), (0, 31), "peak activation"),
    ),
    (
        "0.33",
        "its profile run sets them all",
        more_beside((0, 32), (0, 33), "peak activation"),
    ),
)


def table() -> str:
    """Rows by release, columns by model."""
    asked = [question(*model) for model in MODELS]
    lines = ["| since | what changed | " + " | ".join(name for name, _, _ in MODELS) + " |"]
    lines.append("|---" * (2 + len(MODELS)) + "|")
    for release, what, count in CHANGES:
        lines.append(f"| {release} | {what} | " + " | ".join(map(count, asked)) + " |")
    return "\n".join(lines)


def updated(text: str) -> str:
    """The page with its table written anew."""
    return MARKED.sub(lambda match: f"{match[1]}\n{table()}\n\n{match[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
