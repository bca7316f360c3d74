"""The block pool: construction, and what a server does with blocks."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.bench.measure import resident_bytes, take_turns
from kvplan.bench.report import Row

if TYPE_CHECKING:
    from kvplan.bench.vllm_sides import Sides

NUM_BLOCKS = 200_000
BLOCK = 16
SIZES = (10_000, 200_000, 2_000_000)

Case = Callable[..., tuple[Callable[[], None], int]]


class ArrayPool:
    """`kvplan.BlockPool`, arrays of ids in and out, behind the calls that the cases make."""

    def __init__(self, num_blocks: int, enable_caching: bool, hash_block_size: int) -> None:
        self.native = kvplan.BlockPool(num_blocks, enable_caching=enable_caching)
        self.get_new_blocks = self.native.get_new_blocks
        self.free_blocks = self.native.free_blocks
        self.touch = self.native.touch
        self.get_cached_block = self.native.get_cached_block

    def cache_full_blocks(
        self, request: Any, blocks: Any, first: int, last: int, block_size: int, group_id: int
    ) -> None:
        """The call of vLLM in the native pool's terms."""
        self.native.cache_full_blocks(
            blocks[first:last],
            request.block_hashes[first:last],
            block_size,
            first_block=first,
            group_id=group_id,
        )


def _request_of(block_hashes: list[bytes]) -> SimpleNamespace:
    return SimpleNamespace(block_hashes=block_hashes)


def _new_hashes(count: int, seed: int) -> list[bytes]:
    raw = random.Random(seed).randbytes(32 * count)
    return [raw[i : i + 32] for i in range(0, len(raw), 32)]


# Cases: each takes a pool and returns a call and the number of blocks that it handles.


def _allocate_and_free(pool: Any, n: int) -> tuple[Callable[[], None], int]:
    repeats = max(1, 2000 // n)

    def call() -> None:
        for _ in range(repeats):
            pool.free_blocks(pool.get_new_blocks(n))

    return call, n * repeats


def _allocate_cache_and_free(pool: Any, n: int) -> tuple[Callable[[], None], int]:
    """Each allocated block evicts a cached one and is cached under a new hash."""
    _fill(pool)
    repeats = max(1, 2000 // n)
    # Made before, and so many that each is evicted before its turn comes again.
    hashes = _new_hashes(2 * NUM_BLOCKS, 6)
    request = _request_of([])
    position = 0

    def call() -> None:
        nonlocal position
        for _ in range(repeats):
            request.block_hashes = hashes[position : position + n]
            blocks = pool.get_new_blocks(n)
            pool.cache_full_blocks(request, blocks, 0, n, BLOCK, 0)
            pool.free_blocks(blocks)
            position = (position + n) % len(hashes)

    return call, n * repeats


def _touch_and_free(pool: Any, n: int) -> tuple[Callable[[], None], int]:
    blocks = pool.get_new_blocks(n)
    pool.cache_full_blocks(_request_of(_new_hashes(n, 5)), blocks, 0, n, BLOCK, 0)
    pool.free_blocks(blocks)
    repeats = max(1, 2000 // n)

    def call() -> None:
        for _ in range(repeats):
            pool.touch(blocks)
            pool.free_blocks(blocks)

    return call, n * repeats


def _fill(pool: Any) -> list[bytes]:
    """Caches every block of the pool."""
    hashes = _new_hashes(NUM_BLOCKS - 1, 1)
    blocks = pool.get_new_blocks(NUM_BLOCKS - 1)
    pool.cache_full_blocks(_request_of(hashes), blocks, 0, NUM_BLOCKS - 1, BLOCK, 0)
    pool.free_blocks(blocks)
    return hashes


def _lookup_hot(pool: Any) -> tuple[Callable[[], None], int]:
    """The same 1,000 entries again and again: a popular prefix."""
    keys = _fill(pool)[50_000:51_000]
    groups = [0]

    def call() -> None:
        get = pool.get_cached_block
        for key in keys:
            get(key, groups)

    return call, len(keys)


def _lookup(pool: Any, hit: bool) -> tuple[Callable[[], None], int]:
    hashes = _fill(pool)
    keys = hashes if hit else _new_hashes(NUM_BLOCKS - 1, 2)
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


def _insert(pool: Any, n: int) -> tuple[Callable[[], None], int]:
    """Caches n fresh blocks and evicts them again."""
    request = _request_of(_new_hashes(n, 4))
    blocks = pool.get_new_blocks(n)
    ids = {getattr(b, "block_id", b) for b in blocks}
    if isinstance(pool, ArrayPool):
        ids, evict = blocks, pool.native.evict_blocks
    else:
        evict = pool.evict_blocks

    def call() -> None:
        pool.cache_full_blocks(request, blocks, 0, n, BLOCK, 0)
        evict(ids)

    return call, n


def _trace(pool: Any) -> tuple[Callable[[], None], int]:
    """A serving load: 400 requests with shared prefixes arrive, hit, grow by blocks and leave."""
    import numpy as np

    num_steps = 400
    rng = random.Random(7)
    families = [_new_hashes(200, 100 + i) for i in range(20)]
    plan = [
        (rng.randrange(20), rng.randrange(20, 180), rng.randrange(4, 40)) for _ in range(num_steps)
    ]
    own = [_new_hashes(60, 1000 + i) for i in range(num_steps)]
    is_array = isinstance(pool, ArrayPool)
    total = sum(shared + 60 for _, shared, _ in plan)

    def cached_prefix(hashes: list[bytes]) -> Any:
        if is_array:
            return pool.native.get_cached_prefix(hashes)
        hit: list[Any] = []
        for block_hash in hashes:
            found = pool.get_cached_block(block_hash, [0])
            if found is None:
                break
            hit += found
        return hit

    def join(table: Any, more: Any) -> Any:
        return np.concatenate([table, more]) if is_array else table + more

    def call() -> None:
        running: list[list[Any]] = []
        for (family, shared, life), tail in zip(plan, own, strict=True):
            hashes = families[family][:shared] + tail
            request = _request_of(hashes)
            hit = cached_prefix(hashes)
            pool.touch(hit)
            prompt = min(len(hashes), max(shared, len(hit)) + 20)
            table = join(hit, pool.get_new_blocks(prompt - len(hit)))
            pool.cache_full_blocks(request, table, len(hit), prompt, BLOCK, 0)
            running.append([request, table, prompt, life, len(hashes)])
            for entry in list(running):
                request, table, length, life, most = entry
                if life == 0:
                    pool.free_blocks(table[::-1])
                    running.remove(entry)
                    continue
                if length < most:
                    entry[1] = table = join(table, pool.get_new_blocks(1))
                    pool.cache_full_blocks(request, table, length, length + 1, BLOCK, 0)
                    entry[2] += 1
                entry[3] -= 1
        for _, table, *_ in running:
            pool.free_blocks(table[::-1])

    return call, total


CASES: dict[str, tuple[Case, dict[str, Any]]] = {
    "allocate + free, n = 1": (_allocate_and_free, {"n": 1}),
    "allocate + free, n = 8": (_allocate_and_free, {"n": 8}),
    "allocate + free, n = 1000": (_allocate_and_free, {"n": 1000}),
    "allocate + cache + free, n = 1": (_allocate_cache_and_free, {"n": 1}),
    "allocate + cache + free, n = 8": (_allocate_cache_and_free, {"n": 8}),
    "allocate + cache + free, n = 1000": (_allocate_cache_and_free, {"n": 1000}),
    "touch + free, n = 8": (_touch_and_free, {"n": 8}),
    "touch + free, n = 1000": (_touch_and_free, {"n": 1000}),
    "lookup, hit in a popular prefix": (_lookup_hot, {}),
    "lookup, hit": (_lookup, {"hit": True}),
    "lookup, miss": (_lookup, {"hit": False}),
    "insert + evict, n = 1000": (_insert, {"n": 1000}),
    "serving trace, 400 requests": (_trace, {}),
}


def faces(sides: Sides | None) -> dict[str, Any]:
    """The pool's class by side."""
    made: dict[str, Any] = {}
    if sides is not None:
        made = {"vllm": sides.stock_pool, "drop_in": sides.drop_in_pool}
    return made | {"native": ArrayPool}


def construction_row(num_blocks: int, sides: Sides | None, budget_s: float) -> Row:
    """A pool from nothing, and every block of it handed out once: its memory is paid for then."""

    def use_all(make: Any) -> None:
        make(num_blocks, True, BLOCK).get_new_blocks(num_blocks - 1)

    calls = {side: functools.partial(use_all, make) for side, make in faces(sides).items()}
    return Row(
        work="construction",
        name=f"construct and use {num_blocks:,}",
        per="pool",
        seconds=take_turns(calls, budget_s),
    )


def memory_row(with_vllm: bool) -> Row:
    """Growth of a fresh process when every block of a pool has been handed out and cached."""
    grown = {}
    for side in ("vllm", "drop_in", "native") if with_vllm else ("native",):
        command = [sys.executable, "-m", "kvplan.bench.pool", side]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[1:])} failed: {done.stderr.strip()[-500:]}")
        grown[side] = int(done.stdout.split()[-1])
    return Row(
        work="memory",
        name=f"{NUM_BLOCKS:,} blocks, all used and cached",
        per="pool",
        seconds={},
        peak_bytes=grown,
    )


def _growth(side: str) -> int:
    sides = None
    if side != "native":
        from kvplan.bench.vllm_sides import Sides

        sides = Sides()
    make = faces(sides)[side]
    hashes = _new_hashes(NUM_BLOCKS - 1, 1)
    before = resident_bytes()
    pool = make(NUM_BLOCKS, True, BLOCK)
    blocks = pool.get_new_blocks(NUM_BLOCKS - 1)
    pool.cache_full_blocks(_request_of(hashes), blocks, 0, NUM_BLOCKS - 1, BLOCK, 0)
    del blocks
    return resident_bytes() - before


def allocation_row(name: str, sides: Sides | None, budget_s: float) -> Row:
    """One of `CASES`, with a pool of `NUM_BLOCKS` blocks each."""
    case, keywords = CASES[name]
    calls, items = {}, 1
    for side, make in faces(sides).items():
        calls[side], items = case(make(NUM_BLOCKS, True, BLOCK), **keywords)
    seconds = {side: s / items for side, s in take_turns(calls, budget_s).items()}
    return Row(work="allocation", name=name, per="block", seconds=seconds)


if __name__ == "__main__":
    print(_growth(sys.argv[1]))
