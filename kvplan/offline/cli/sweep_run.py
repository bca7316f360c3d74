"""Running many chunks of work: rows in order, none lost to an interruption.

One process needs nothing; more are joblib's, here or on a Ray or Dask cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from kvplan.offline.cli.failures import BadInput

Rows = list[tuple[Any, ...]]

BACKENDS = ("loky", "ray", "dask")
#: What a person, and what a batch system ends a sweep with.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Work(Protocol):
    """A piece of work, which another process can do."""

    def plan(self) -> Rows:
        """Its rows."""


class Interrupts:
    """Holds back Ctrl-C and SIGTERM until a chunk is written; a second one goes through at once."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupts:
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


def run_chunks(
    chunks: Iterable[Work],
    jobs: int,
    write: Callable[[Rows], None],
    backend: str = "loky",
    address: str | None = None,
) -> None:
    """Do all chunks and hand their rows to ``write``, in order.

    Args:
        chunks: The work.
        jobs: Processes; 1 does it here.
        write: Takes the rows of one chunk.
        backend: One of `BACKENDS`: joblib's own processes, or those of a cluster.
        address: Of a Ray or Dask cluster; None starts one on this machine.

    Raises:
        KeyboardInterrupt: After an interruption; by then all rows that were asked for are written.
        BadInput: A package is not installed, or a process was killed.
    """
    with Interrupts() as interrupts:
        results: Iterator[Rows]
        if jobs == 1 and backend == "loky":
            results = (chunk.plan() for chunk in chunks)
        else:
            results = _in_processes(chunks, jobs, backend, address, interrupts)
        for rows in results:
            write(rows)
            if interrupts.came and jobs == 1:
                break
        if interrupts.came:
            raise KeyboardInterrupt


def _in_processes(
    chunks: Iterable[Work], jobs: int, backend: str, address: str | None, interrupts: Interrupts
) -> Iterator[Rows]:
    """The rows of each chunk, in order, by joblib; after an interruption no more are begun."""
    try:
        import joblib
    except ImportError:
        raise BadInput(
            "several processes are joblib's: pip install joblib; or give --jobs 1"
        ) from None
    rest = iter(chunks)
    own = {"initializer": _leave_interrupts_to_parent} if backend == "loky" else {}
    with _cluster(backend, address), joblib.parallel_config(backend, n_jobs=jobs, **own):
        while not interrupts.came:
            # In waves: no back end but joblib's own hands rows out while others are made.
            wave = [joblib.delayed(_plan)(chunk) for chunk in itertools.islice(rest, 4 * jobs)]
            if not wave:
                return
            try:
                yield from joblib.Parallel()(wave)
            except Exception as error:
                if type(error).__name__ not in ("TerminatedWorkerError", "KilledWorker"):
                    raise
                raise BadInput(
                    f"a process was killed ({type(error).__name__}), perhaps for want of memory; "
                    "what was written is kept, and --resume goes on from there"
                ) from None


def _plan(chunk: Work) -> Rows:
    return chunk.plan()


@contextlib.contextmanager
def _cluster(backend: str, address: str | None) -> Iterator[None]:
    """A connection to the cluster of a back end, registered with joblib."""
    try:
        if backend == "ray":
            import ray
            from ray.util.joblib import register_ray

            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
            register_ray()
            yield
        elif backend == "dask":
            from distributed import Client

            with Client(address):
                yield
        else:
            yield
    except ImportError as error:
        package = {"ray": "ray", "dask": "distributed"}.get(backend, backend)
        raise BadInput(
            f"--backend {backend} needs the package {package}: pip install {package} ({error})"
        ) from None


def _leave_interrupts_to_parent() -> None:
    # A batch system's SIGTERM reaches the parent, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def default_jobs(num_plans: int) -> int:
    """Processes worth starting: one for a small grid or without joblib, else one for each core."""
    import importlib.util

    if num_plans < 5_000 or importlib.util.find_spec("joblib") is None:
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
