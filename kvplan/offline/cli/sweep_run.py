"""Running a grid on all cores: rows in the grid's order, none lost to an interruption."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from kvplan.offline.cli.sweep_grid import Chunk

Rows = list[tuple[Any, ...]]


#: What a person, and what a batch system ends a sweep with.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Interrupts:
    """Holds back Ctrl-C and SIGTERM until a chunk is written; a second one goes through at once."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> _Interrupts:
        # Signal handlers are the main thread's.
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            self._put_back()

    def _note(self, *_: object) -> None:
        self.came = True
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run_chunks(chunks: Iterable[Chunk], jobs: int, write: Callable[[Rows], None]) -> None:
    """Plan all chunks and hand their rows to ``write``.

    Raises KeyboardInterrupt after an interruption; by then all rows that were planned are written.
    """
    with _Interrupts() as interrupts:
        if jobs == 1:
            for chunk in chunks:
                write(chunk.plan())
                if interrupts.came:
                    raise KeyboardInterrupt
        else:
            _run_in_pool(chunks, jobs, write, interrupts)


def _run_in_pool(
    chunks: Iterable[Chunk], jobs: int, write: Callable[[Rows], None], interrupts: _Interrupts
) -> None:
    with ProcessPoolExecutor(jobs, initializer=_leave_interrupts_to_parent) as pool:
        pending: deque[Future[Rows]] = deque()
        for chunk in chunks:
            pending.append(pool.submit(Chunk.plan, chunk))
            while len(pending) > 4 * jobs:
                write(pending.popleft().result())
            if interrupts.came:
                break
        while pending and not interrupts.came:
            write(pending.popleft().result())
        if interrupts.came:
            pool.shutdown(wait=True, cancel_futures=True)
            for future in pending:
                if not future.cancelled():
                    write(future.result())
            raise KeyboardInterrupt


def _leave_interrupts_to_parent() -> None:
    # A batch system's SIGTERM reaches the parent, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def default_jobs(num_plans: int) -> int:
    """Processes worth starting: one for a small grid, else one for each core."""
    if num_plans < 5_000:
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
