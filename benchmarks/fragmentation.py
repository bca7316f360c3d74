"""How full plain and sliced pools get, and what that is worth in requests and tokens.

    cmake -S . -B build -DKVPLAN_BENCHMARKS=ON
    cmake --build build --target fragmentation_simulator
    python benchmarks/fragmentation.py [--requests 20000] [--only WORKLOAD ...] [--json FILE]
    python benchmarks/fragmentation.py sizes        # by min_large_blocks
    python benchmarks/fragmentation.py policies     # values of own_first_above, moving or not

Columns: the share of the pool that requests hold when an allocation is refused for the first time,
and the share that is free then but that the refused request cannot use, since other groups have it;
after a warm-up, the mean of the first at all refusals, and the value that 5 % lie below, the share
that is free then but that only one group can use, and what of it the refused request cannot;
averages over the steps; output tokens a step over those of vLLM's plan; preemptions per 100
requests; tokens found in the prefix cache, of 100 in prompts; where slices are moved, bytes moved
per output token, per 1,000 bytes of cache that a step reads, and the most in one step.

Plans a model in several ways for the same memory and serves the same requests from each plan's pool
(benchmarks/cpp/fragmentation_simulator.cpp, which says how a step goes). Everything is counted in
blocks and tokens, nothing is timed, and the seeds are fixed: the figures are the same on every
machine. docs/fragmentation.md explains them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import compact_models  # noqa: E402

import kvplan  # noqa: E402

DATA = ROOT / "benchmarks" / "data"
SIMULATOR = ROOT / "build" / "benchmarks" / "cpp" / "fragmentation_simulator"
TOKEN_BUDGET = 8192  # of a step
MAX_RUNNING = 4096
SEED = 9
LARGE_BLOCKS = (400, 700, 1400, 2800)
NARROW = 2800  # large blocks at least: the widest kind is not cut then
OWN_FIRST_ABOVE = 1 / 16  # what the pool does by default
SHARES = {"1 (by age)": 1, "1/16": 1 / 16, "1/64": 1 / 64, "1/256": 1 / 256, "0": 0}


@dataclass(frozen=True)
class Lengths:
    """Lognormal token counts."""

    median: float
    sigma: float
    most: int

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        values = random.lognormal(math.log(self.median), self.sigma, count)
        return np.clip(values, 1, self.most).astype(np.int64)


@dataclass(frozen=True)
class Workload:
    """Requests of one or two kinds; `share` of them are of the second."""

    prompt: Lengths
    output: Lengths
    share: float = 0.0
    second_prompt: Lengths | None = None
    second_output: Lengths | None = None
    caching: bool = False
    system_prompts: int = 0  # distinct ones, of 500 to 4,000 tokens
    turns: float = 1.0  # of a conversation, on average
    load: float = 0.0  # arrivals over what the pool serves; 0: there is always one waiting
    requests: float = 1.0  # of the number asked for
    trace: str | None = None  # prompts and outputs are rows of this file, drawn at random


CHAT = Workload(Lengths(250, 1.1, 8000), Lengths(200, 0.8, 2000))
DOCUMENTS = Workload(Lengths(24000, 0.6, 100000), Lengths(300, 0.6, 2000), requests=0.2)
MIXED = replace(
    CHAT, share=0.1, second_prompt=DOCUMENTS.prompt, second_output=DOCUMENTS.output, requests=0.5
)
WORKLOADS = {
    "chat": CHAT,
    "documents": DOCUMENTS,
    "chat and documents": MIXED,
    "long answers": Workload(Lengths(250, 1.0, 4000), Lengths(3000, 0.8, 16000), requests=0.3),
    "Azure conversations": replace(CHAT, trace="azure_conversations_2023.csv"),
    "chat, arrivals at random": replace(CHAT, load=0.9),
    "chat, cached": replace(CHAT, caching=True),
    "system prompts, cached": replace(CHAT, caching=True, system_prompts=30),
    "conversations, cached": replace(CHAT, caching=True, turns=5.0, system_prompts=30),
    "chat and documents, cached": replace(MIXED, caching=True, turns=3.0),
}


def requests_of(w: Workload, count: int, per_step: float) -> list[str]:
    """Lines for the simulator."""
    random = np.random.default_rng(SEED)
    count = max(int(count * w.requests), 200)
    if w.trace is not None:
        rows = np.loadtxt(DATA / w.trace, dtype=np.int64, delimiter=",", skiprows=1)
        prompt, output = rows[random.integers(0, len(rows), count)].T
    else:
        prompt, output = w.prompt.draw(random, count), w.output.draw(random, count)
    if w.second_prompt is not None and w.second_output is not None:
        second = random.random(count) < w.share
        prompt = np.where(second, w.second_prompt.draw(random, count), prompt)
        output = np.where(second, w.second_output.draw(random, count), output)
    system = random.zipf(1.3, count) % max(w.system_prompts, 1)
    system_tokens = (
        500 + system * 3500 // max(w.system_prompts, 1) if w.system_prompts else 0 * system
    )
    conversation = np.arange(count)
    if w.turns > 1:
        # A turn repeats the conversation so far; others lie between two turns.
        open_turns: list[int] = []
        history: dict[int, int] = {}
        for i in range(count):
            if len(open_turns) > 200 and random.random() < 1 - 1 / w.turns:
                c = open_turns.pop(int(random.integers(0, len(open_turns) - 50)))
                conversation[i] = c
                system[i], system_tokens[i] = system[c], system_tokens[c]
            c = int(conversation[i])
            prompt[i] += history.get(c, 0)
            if prompt[i] + output[i] > 60000:
                prompt[i] = min(int(prompt[i]), 60000)
                history[c] = 0
                continue
            history[c] = int(prompt[i] + output[i])
            open_turns.append(c)
    arrival = np.zeros(count)
    if per_step:
        arrival = np.cumsum(random.exponential(1 / per_step, count))
    prompt = prompt + system_tokens
    columns = (arrival.astype(np.int64), prompt, output, system, system_tokens, conversation)
    return [f"request {' '.join(map(str, row))}" for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Shape:
    """A plan as its pool sees it."""

    name: str
    kind: str
    num_blocks: int
    block_bytes: int
    groups: list[str]  # lines for the simulator
    own_first_above: float = OWN_FIRST_ABOVE

    def lines(self, caching: bool, warm_up: int) -> list[str]:
        return [
            f"pool {self.kind} {self.num_blocks} {int(caching)} {self.own_first_above}",
            *self.groups,
            f"server {self.block_bytes} {TOKEN_BUDGET} {MAX_RUNNING} {warm_up}",
        ]


def shape(
    name: str, case: compact_models.Case, config: kvplan.PlanningConfig, memory: int
) -> Shape:
    """Plan the model, and describe the pool."""
    plan = kvplan.plan(config, case.kv_cache_specs, [memory])
    layers = case.kv_cache_specs[0]
    groups = []
    for group in plan.groups:
        windows = [getattr(layers[n], "sliding_window", None) for n in group.layer_names]
        window = max((w for w in windows if w is not None), default=None)
        slices = getattr(group, "slices", 1)
        groups.append(
            f"group {group.tokens_per_page or group.block_size} {window or 0} {slices}"
            f" {group.content_bytes}"
        )
    kind = "sliced" if config.grouping == "sliced" else "plain"
    return Shape(name, kind, plan.num_blocks, plan.bytes_per_block, groups)


@dataclass(frozen=True)
class Model:
    """A model, the memory for its cache, and the groups that compact may use."""

    case: compact_models.Case
    memory: int
    max_groups: int

    def shapes(self, memory: int | None = None) -> list[Shape]:
        memory = memory or self.memory
        config = self.case.config.replace(max_model_len=131072)
        compact = config.replace(grouping="compact", max_groups=self.max_groups)
        shapes = [
            shape("vLLM", self.case, config, memory),
            shape("compact", self.case, compact, memory),
            self.sliced(memory),
            self.moving(memory),
        ]
        narrow = self.sliced(memory, NARROW)
        if narrow.groups != shapes[2].groups:  # else it is the planner's choice as it is
            shapes.append(narrow)
        return shapes

    def sliced(self, memory: int, min_large_blocks: int | None = None) -> Shape:
        """With the planner's least number of large blocks, or another."""
        # Slices need a layout with the blocks outermost. The other groupings do not depend on it.
        config = self.case.config.replace(
            max_model_len=131072, grouping="sliced", kv_cache_layout="BLHNC"
        )
        if min_large_blocks is None:
            return shape("sliced", self.case, config, memory)
        config = config.replace(min_large_blocks=min_large_blocks)
        return shape(f"sliced, {min_large_blocks:,}", self.case, config, memory)

    def moving(self, memory: int) -> Shape:
        """As sliced, in a pool that moves slices. What lies scattered does no harm: by age."""
        return replace(self.sliced(memory), name="moving", kind="moving", own_first_above=1)


def models() -> dict[str, Model]:
    """Few large blocks and many kinds; many bytes a token and two kinds."""
    described = compact_models.cases.deepseek_v4_1_flash()
    reported = compact_models.reported("DeepSeek-V4.1-Flash as reported, TP 4", described)
    gemma = compact_models.published("gemma-3-27b", "Gemma-3-27B")
    return {
        "DeepSeek-V4.1-Flash, TP 4": Model(reported, 4509715660, 47),
        "Gemma-3-27B": Model(gemma, 40 << 30, 16),
    }


def simulate(
    s: Shape,
    w: Workload,
    count: int,
    per_step: float = 0.0,
) -> dict[str, Any]:
    """Serve the requests from the pool."""
    requests = requests_of(w, count, per_step)
    lines = s.lines(w.caching, len(requests) // 5) + requests
    done = subprocess.run(
        [SIMULATOR], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{SIMULATOR.name}: {done.stderr}")
    return json.loads(done.stdout)


def run_all(shapes: list[Shape], w: Workload, count: int) -> list[dict[str, Any]]:
    """Every shape under one workload; arrivals at random follow what vLLM's plan can serve."""
    per_step = 0.0
    if w.load:
        full = simulate(shapes[0], replace(w, load=0.0), count // 4)
        per_step = w.load * full["output_tokens_per_step"] / w.output.median / 1.3
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda s: simulate(s, w, count, per_step=per_step), shapes))


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def at_failure(result: dict[str, Any], what: str, part: str = "mean") -> float | None:
    return result.get(f"{what}_at_failure", {}).get(part)


def table(header: list[str], rows: Iterator[list[str]]) -> None:
    """Markdown, a line as soon as it is there."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


HEADER = [
    "workload",
    "pool",
    "held at first refusal",
    "lost",
    "held at refusals",
    "5 %",
    "one group's",
    "lost",
    "held, average",
    "requests",
    "over vLLM",
    "preemptions per 100",
    "hits",
    "moved per token",
    "of 1,000 read",
    "most",
]


def moved(s: Shape, r: dict[str, Any]) -> list[str]:
    """Bytes moved: per output token, per 1,000 bytes of cache read, most in a step."""
    if s.kind != "moving":
        return ["-"] * 3
    return [
        f"{r['moved_bytes_per_output_token'] / 1000:.1f} kB",
        f"{1000 * r['moved_bytes_per_step'] / r['read_bytes_per_step']:.2f}",
        f"{r['most_moved_bytes'] / 1e6:,.0f} MB",
    ]


def workload_rows(
    shapes: list[Shape], names: list[str], count: int, results: dict[str, Any]
) -> Iterator[list[str]]:
    for name in names:
        answers = run_all(shapes, WORKLOADS[name], count)
        results[name] = dict(zip([s.name for s in shapes], answers, strict=True))
        for s, r in zip(shapes, answers, strict=True):
            gain = r["output_tokens_per_step"] / answers[0]["output_tokens_per_step"]
            yield [
                name if s is shapes[0] else "",
                s.name,
                percent(r.get("first_failure")),
                percent(r.get("first_failure_lost")),
                percent(at_failure(r, "held")),
                percent(at_failure(r, "held", "p5")),
                percent(at_failure(r, "one_group")),
                percent(at_failure(r, "lost")),
                percent(r["held"]),
                f"{r['running']:.1f}",
                f"{gain:.2f}x",
                f"{100 * r['preemptions'] / max(r['finished'], 1):.1f}",
                percent(r["hit_rate"]) if WORKLOADS[name].caching else "-",
                *moved(s, r),
            ]


def workloads(names: list[str], count: int, target: str | None) -> None:
    """The main table, for each model."""
    results: dict[str, Any] = {}
    for title, model in models().items():
        shapes = model.shapes()
        print(f"\n{title}, {model.memory / 2**30:.1f} GiB")
        for s in shapes:
            print(f"- {s.name}: {s.num_blocks:,} blocks of {s.block_bytes:,} bytes;", end=" ")
            print(f"{len(s.groups)} groups")
        print()
        table(HEADER, workload_rows(shapes, names, count, results.setdefault(title, {})))
    if target:
        Path(target).write_text(json.dumps(results, indent=1) + "\n")


def size_rows(names: list[str], count: int) -> Iterator[list[str]]:
    for title, model in models().items():
        plain, *_ = model.shapes()
        for name in names:
            cells = []
            base = simulate(plain, WORKLOADS[name], count)["output_tokens_per_step"]
            for least in LARGE_BLOCKS:
                s = model.sliced(model.memory, least)
                r = simulate(s, WORKLOADS[name], count)
                lost = percent(at_failure(r, "lost"))
                gain = r["output_tokens_per_step"] / base
                cells.append(f"{lost} / {gain:.2f}x ({s.num_blocks:,})")
            yield [title, name, *cells]


def policy_rows(names: list[str], count: int) -> Iterator[list[str]]:
    for title, model in models().items():
        for s in (model.sliced(model.memory), model.moving(model.memory)):
            for name in names:
                if not WORKLOADS[name].caching:
                    continue
                cells = []
                for share in SHARES.values():
                    r = simulate(replace(s, own_first_above=share), WORKLOADS[name], count)
                    tokens = r["output_tokens_per_step"]
                    lost = percent(at_failure(r, "lost"))
                    cells.append(f"{lost} / {percent(r['hit_rate'])} / {tokens:.1f}")
                yield [title, s.name, name, *cells]


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="workloads", help="workloads, sizes, policies")
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), help="names of workloads")
    parser.add_argument("--json", help="file for all numbers")
    args = parser.parse_args()
    if args.what == "workloads":
        workloads(args.only, args.requests, args.json)
    elif args.what == "sizes":
        sizes = [f"at least {n:,}" for n in LARGE_BLOCKS]
        table(["model", "workload", *sizes], size_rows(args.only, args.requests))
    elif args.what == "policies":
        table(["model", "pool", "workload", *SHARES], policy_rows(args.only, args.requests))
    else:
        parser.error(f"no such table: {args.what}")


if __name__ == "__main__":
    main()
