"""The block pool: vLLM's, and kvplan's three faces, in one run on one machine.

Usage: python benchmarks/block_pool.py [--cpp build/benchmarks/cpp/block_pool_benchmark] [--quick]

Needs vLLM 0.33. Each figure is the smallest of many short samples, vLLM's and kvplan's taken
alternately; only the ratios mean anything. --cpp adds the C++ figures of the Google Benchmark
executable. Lookups draw their keys in random order.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import kvplan

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
from vllm.v1.core.block_pool import BlockPool as VllmPool

from kvplan.vllm.block_pool import BlockPool as KvplanPool

NUM_BLOCKS = 200_000
BLOCK = 16


class ArrayPool:
    """kvplan.BlockPool behind the calls that the cases make."""

    def __init__(self, num_blocks: int, enable_caching: bool, hash_block_size: int) -> None:
        self.native = kvplan.BlockPool(num_blocks, enable_caching=enable_caching)
        self.get_new_blocks = self.native.get_new_blocks
        self.free_blocks = self.native.free_blocks
        self.touch = self.native.touch
        self.get_cached_block = self.native.get_cached_block

    def cache_full_blocks(self, request, blocks, first, last, block_size, group_id) -> None:
        self.native.cache_full_blocks(
            blocks[first:last],
            request.block_hashes[first:last],
            block_size,
            first_block=first,
            group_id=group_id,
        )


FACES = {"vLLM": VllmPool, "kvplan objects": KvplanPool, "kvplan arrays": ArrayPool}


def request_of(block_hashes: list[bytes]) -> SimpleNamespace:
    return SimpleNamespace(block_hashes=block_hashes)


def new_hashes(count: int, seed: int) -> list[bytes]:
    raw = np.random.default_rng(seed).bytes(32 * count)
    return [raw[i : i + 32] for i in range(0, len(raw), 32)]


def sample(calls: dict[str, Callable[[], object]], items: int, samples: int) -> dict[str, float]:
    """Seconds per item of each call: the smallest of `samples`, taken in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(samples):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: seconds / items for name, seconds in best.items()}


# Cases: each takes a pool and returns a call and the number of blocks that it handles.


def allocate_and_free(pool, n: int):
    repeats = max(1, 2000 // n)

    def call() -> None:
        for _ in range(repeats):
            pool.free_blocks(pool.get_new_blocks(n))

    return call, n * repeats


def allocate_cache_and_free(pool, n: int):
    """Each allocated block evicts a cached one and is cached under a new hash."""
    fill(pool)
    repeats = max(1, 2000 // n)
    counter = iter(range(10**9))

    def call() -> None:
        for _ in range(repeats):
            tail = next(counter).to_bytes(8, "little") * 3
            request = request_of([i.to_bytes(8, "little") + tail for i in range(n)])
            blocks = pool.get_new_blocks(n)
            pool.cache_full_blocks(request, blocks, 0, n, BLOCK, 0)
            pool.free_blocks(blocks)

    return call, n * repeats


def touch_and_free(pool, n: int):
    blocks = pool.get_new_blocks(n)
    pool.cache_full_blocks(request_of(new_hashes(n, 5)), blocks, 0, n, BLOCK, 0)
    pool.free_blocks(blocks)
    repeats = max(1, 2000 // n)

    def call() -> None:
        for _ in range(repeats):
            pool.touch(blocks)
            pool.free_blocks(blocks)

    return call, n * repeats


def fill(pool) -> list[bytes]:
    """Caches every block of the pool."""
    hashes = new_hashes(NUM_BLOCKS - 1, 1)
    blocks = pool.get_new_blocks(NUM_BLOCKS - 1)
    pool.cache_full_blocks(request_of(hashes), blocks, 0, NUM_BLOCKS - 1, BLOCK, 0)
    pool.free_blocks(blocks)
    return hashes


def lookup_hot(pool):
    """The same 1,000 entries again and again: a popular prefix."""
    keys = fill(pool)[50_000:51_000]
    groups = [0]

    def call() -> None:
        get = pool.get_cached_block
        for key in keys:
            get(key, groups)

    return call, len(keys)


def lookup(pool, hit: bool):
    hashes = fill(pool)
    keys = hashes if hit else new_hashes(NUM_BLOCKS - 1, 2)
    random.Random(3).shuffle(keys)
    # New objects in the order of the lookups: a server has just computed them.
    keys = [bytes(bytearray(key)) for key in keys]
    groups = [0]
    position = 0
    count = 2000

    def call() -> None:
        nonlocal position
        get = pool.get_cached_block
        for key in keys[position : position + count]:
            get(key, groups)
        position = (position + count) % (NUM_BLOCKS - count)

    return call, count


def insert(pool, n: int):
    """Caches n fresh blocks; their allocation is not timed but for its share of the reset."""
    hashes = new_hashes(n, 4)
    request = request_of(hashes)
    blocks = pool.get_new_blocks(n)
    ids = {int(b) if isinstance(b, np.integer) else b.block_id for b in blocks}
    evict = (
        (lambda: pool.native.evict_blocks(blocks))
        if isinstance(pool, ArrayPool)
        else (lambda: pool.evict_blocks(ids))
    )

    def call() -> None:
        pool.cache_full_blocks(request, blocks, 0, n, BLOCK, 0)
        evict()

    return call, n


def trace(pool, num_steps: int = 400):
    """A serving load: requests with shared prefixes arrive, hit, grow block by block and leave."""
    rng = random.Random(7)
    families = [new_hashes(200, 100 + i) for i in range(20)]
    plan = [
        (rng.randrange(20), rng.randrange(20, 180), rng.randrange(4, 40)) for _ in range(num_steps)
    ]
    own = [new_hashes(60, 1000 + i) for i in range(num_steps)]
    is_array = isinstance(pool, ArrayPool)
    total = sum(shared + 60 for _, shared, _ in plan)

    def call() -> None:
        running = []
        for (family, shared, life), tail in zip(plan, own, strict=True):
            hashes = families[family][:shared] + tail
            request = request_of(hashes)
            if is_array:
                hit = pool.native.get_cached_prefix(hashes)
                num_hits = len(hit)
            else:
                hit = []
                for block_hash in hashes:
                    found = pool.get_cached_block(block_hash, [0])
                    if found is None:
                        break
                    hit += found
                num_hits = len(hit)
            pool.touch(hit)
            prompt = min(len(hashes), max(shared, num_hits) + 20)
            fresh = pool.get_new_blocks(prompt - num_hits)
            table = np.concatenate([hit, fresh]) if is_array else hit + fresh
            pool.cache_full_blocks(request, table, num_hits, prompt, BLOCK, 0)
            running.append([request, table, prompt, life, len(hashes)])
            for entry in list(running):
                request, table, length, life, most = entry
                if life == 0:
                    pool.free_blocks(table[::-1])
                    running.remove(entry)
                    continue
                if length < most:
                    more = pool.get_new_blocks(1)
                    entry[1] = table = np.concatenate([table, more]) if is_array else table + more
                    pool.cache_full_blocks(request, table, length, length + 1, BLOCK, 0)
                    entry[2] += 1
                entry[3] -= 1
        for _, table, *_ in running:
            pool.free_blocks(table[::-1])

    return call, total


CASES = {
    "allocate + free, n = 1": (allocate_and_free, {"n": 1}, True),
    "allocate + free, n = 8": (allocate_and_free, {"n": 8}, True),
    "allocate + free, n = 1000": (allocate_and_free, {"n": 1000}, True),
    "allocate + cache + free, n = 1": (allocate_cache_and_free, {"n": 1}, True),
    "allocate + cache + free, n = 8": (allocate_cache_and_free, {"n": 8}, True),
    "allocate + cache + free, n = 1000": (allocate_cache_and_free, {"n": 1000}, True),
    "touch + free, n = 8": (touch_and_free, {"n": 8}, True),
    "touch + free, n = 1000": (touch_and_free, {"n": 1000}, True),
    "lookup, hit in a popular prefix": (lookup_hot, {}, True),
    "lookup, hit": (lookup, {"hit": True}, True),
    "lookup, miss": (lookup, {"hit": False}, True),
    "insert + evict, n = 1000": (insert, {"n": 1000}, True),
    "serving trace, 400 requests": (trace, {}, True),
}
CPP_NAMES = {
    "construct 10,000": "construct/10000",
    "construct 200,000": "construct/200000",
    "construct 2,000,000": "construct/2000000",
    "allocate + free, n = 1": "allocate_and_free/1",
    "allocate + free, n = 8": "allocate_and_free/8",
    "allocate + free, n = 1000": "allocate_and_free/1000",
    "allocate + cache + free, n = 1": "allocate_cache_and_free/1",
    "allocate + cache + free, n = 8": "allocate_cache_and_free/8",
    "allocate + cache + free, n = 1000": "allocate_cache_and_free/1000",
    "touch + free, n = 8": "touch_and_free/8",
    "touch + free, n = 1000": "touch_and_free/1000",
    "lookup, hit in a popular prefix": "find_hot",
    "lookup, hit": "find/hit",
    "lookup, miss": "find/miss",
}


def cpp_figures(executable: str) -> dict[str, float]:
    """Seconds per block, or per construction, of each C++ benchmark; the best of 5 repetitions.

    Google Benchmark counts CPU time, so what else runs disturbs these less than the others.
    """
    command = [executable, "--benchmark_format=json", "--benchmark_repetitions=5",
               "--benchmark_min_time=0.1"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    best: dict[str, float] = {}
    for run in json.loads(done.stdout)["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[run["time_unit"]]
        blocks = (
            run["items_per_second"] * run["cpu_time"] * scale if "items_per_second" in run else 1
        )
        seconds = run["cpu_time"] * scale / blocks
        best[run["name"]] = min(best.get(run["name"], seconds), seconds)
    return best


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bytes_per_block(face: str) -> float:
    """Growth of a fresh process when every block of a pool has been handed out and cached."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import block_pool as b\n"
        "hashes = b.new_hashes(b.NUM_BLOCKS - 1, 1)\n"
        "before = b.resident_bytes()\n"
        "pool = b.FACES[sys.argv[2]](b.NUM_BLOCKS, True, 16)\n"
        "blocks = pool.get_new_blocks(b.NUM_BLOCKS - 1)\n"
        "pool.cache_full_blocks(b.request_of(hashes), blocks, 0, b.NUM_BLOCKS - 1, 16, 0)\n"
        "del blocks\n"
        "print((b.resident_bytes() - before) / b.NUM_BLOCKS)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), face],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return float(done.stdout.split()[-1])


def show(seconds: float) -> str:
    for factor, unit in ((1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def machine() -> str:
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python "
        f"{platform.python_version()}, vLLM {version('vllm')}; {NUM_BLOCKS:,} blocks"
    )


def row(name: str, figures: dict[str, float], cpp: float | None) -> None:
    base = figures["vLLM"]
    cells = [name, show(base)]
    for face in ("kvplan objects", "kvplan arrays"):
        cells.append(f"{show(figures[face])} ({base / figures[face]:.1f}x)")
    cells.append("" if cpp is None else f"{show(cpp)} ({base / cpp:.0f}x)")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp", help="the block_pool_benchmark executable")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    args = parser.parse_args()
    samples = 10 if args.quick else 60
    cpp = cpp_figures(args.cpp) if args.cpp else {}
    print(machine())
    print("| per block | vLLM | kvplan, block objects | kvplan, arrays | kvplan, C++ |")
    print("|---|---|---|---|---|")
    for count in (10_000, 200_000, 2_000_000):
        if args.only not in f"construct {count:,}":
            continue
        calls = {
            name: (lambda make=make, count=count: make(count, True, BLOCK))
            for name, make in FACES.items()
        }
        name = f"construct {count:,}"
        figures = sample(calls, 1, 3 if count > 200_000 else max(3, samples // 6))
        row(name, figures, cpp.get(CPP_NAMES[name]))
    for name, (case, keywords, caching) in CASES.items():
        if args.only not in name:
            continue
        calls = {}
        items = 1
        for face, make in FACES.items():
            calls[face], items = case(make(NUM_BLOCKS, caching, BLOCK), **keywords)
        row(name, sample(calls, items, samples), cpp.get(CPP_NAMES.get(name, "")))
    memory = {face: bytes_per_block(face) for face in FACES}
    cells = [f"{memory[face]:.0f} bytes" for face in FACES]
    print("| memory, all blocks used and cached | " + " | ".join([*cells, ""]) + " |")


if __name__ == "__main__":
    main()
