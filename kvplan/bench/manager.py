"""The KV cache manager: what a scheduler asks of it for each request.

One full attention group and windows of 1,024 tokens beside it, all with blocks of 16 tokens. A
round admits `NUM_REQUESTS` requests of 1,000 new tokens each, decodes three blocks, and frees them.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Protocol

import kvplan
from kvplan.bench.report import Row

GROUPS = (1, 7, 25, 47)
BLOCK = 16
WINDOW = 1024
PROMPT = 1000
STEPS = 3 * BLOCK
NUM_REQUESTS = 64
NUM_BLOCKS = NUM_REQUESTS * (PROMPT // BLOCK + 8)  # a group
MAX_MODEL_LEN = 8192
FEWEST_ROUNDS, MOST_ROUNDS = 3, 30

#: With vLLM's objects, admission includes the hashes of the prompt's blocks.
CALLS = ("decode step inside a block", "decode step, mean of a block", "admission", "free")
QUIET, MEAN, ADMISSION, FREE = CALLS


class Load(Protocol):
    """The calls of a scheduler, for all requests of a round."""

    def new_requests(self) -> None: ...
    def admit(self) -> None: ...
    def step(self) -> None: ...
    def next_tokens(self) -> None: ...
    def free(self) -> None: ...


class NativeLoad:
    """`kvplan.CacheManager`: a step is one call; the hashes are there already."""

    def __init__(self, num_groups: int) -> None:
        import numpy as np

        full = kvplan.CacheGroup("full_attention", BLOCK)
        window = kvplan.CacheGroup("sliding_window", BLOCK, window=WINDOW)
        self._manager = kvplan.CacheManager(
            [full] + [window] * (num_groups - 1),
            num_blocks=1 + num_groups * NUM_BLOCKS,
            max_model_len=MAX_MODEL_LEN,
        )
        self._appended = np.zeros((NUM_REQUESTS * num_groups, 4), np.int32)
        self._numbers = itertools.count(1)

    def new_requests(self) -> None:
        import numpy as np

        self._computed = np.full(NUM_REQUESTS, PROMPT - 1, np.int64)
        self._hashes = [
            [next(self._numbers).to_bytes(32, "little") for _ in range((PROMPT + STEPS) // BLOCK)]
            for _ in range(NUM_REQUESTS)
        ]

    def admit(self) -> None:
        import numpy as np

        requests = []
        for hashes in self._hashes:
            request = self._manager.add_request()
            self._manager.append_hashes(request, hashes)
            hit = self._manager.find_prefix(request, PROMPT - 1)
            self._manager.allocate(
                request, PROMPT, num_tokens=PROMPT, num_prompt_tokens=PROMPT, hit=hit
            )
            requests.append(request)
        self._requests = np.array(requests, np.int32)

    def step(self) -> None:
        self._manager.schedule(self._requests, self._computed, appended=self._appended)

    def next_tokens(self) -> None:
        self._computed += 1

    def free(self) -> None:
        for request in self._requests.tolist():
            self._manager.remove_request(request)


def _round(load: Load) -> Iterator[tuple[str, float]]:
    """Each call and its CPU seconds a request."""
    clock = time.process_time

    def timed(call: object) -> float:
        start = clock()
        call()  # type: ignore[operator]
        return (clock() - start) / NUM_REQUESTS

    load.new_requests()
    yield ADMISSION, timed(load.admit)
    steps = []
    for _ in range(STEPS):
        load.next_tokens()
        steps.append(timed(load.step))
    yield QUIET, statistics.median(steps)
    yield MEAN, statistics.mean(steps)
    yield FREE, timed(load.free)


@functools.lru_cache(maxsize=1)
def _measure(num_groups: int, sides: object, budget_s: float) -> dict[str, dict[str, float]]:
    """Median seconds by call and side; the sides take turns."""
    loads: dict[str, Load] = {"native": NativeLoad(num_groups)}
    if sides is not None:
        loads = {**sides.managers(num_groups), **loads}  # type: ignore[attr-defined]
    samples: dict[str, dict[str, list[float]]] = {call: {} for call in CALLS}
    start = time.perf_counter()
    for i in range(MOST_ROUNDS):
        if i >= FEWEST_ROUNDS and time.perf_counter() - start > budget_s:
            break
        for side, load in loads.items():
            for call, seconds in _round(load):
                samples[call].setdefault(side, []).append(seconds)
    return {
        call: {side: statistics.median(values) for side, values in by_side.items()}
        for call, by_side in samples.items()
    }


def row_name(call: str, num_groups: int) -> str:
    return f"{call}, {num_groups} group{'s' * (num_groups > 1)}"


def manager_row(call: str, num_groups: int, sides: object, budget_s: float) -> Row:
    """One of `CALLS`. All calls of a number of groups are measured at once."""
    return Row(
        work="manager",
        name=row_name(call, num_groups),
        per="request",
        seconds=_measure(num_groups, sides, len(CALLS) * budget_s)[call],
    )
