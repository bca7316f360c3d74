"""The C++ library's own figures, from the Google Benchmark executables of `benchmarks/cpp`."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from kvplan.bench.manager import GROUPS, MEAN, row_name
from kvplan.bench.report import Row

POOL = "block_pool_benchmark"
PLAN = "request_benchmark"
CORE = "plan_benchmark"
MANAGER = "cache_manager_benchmark"
SIDE = "cpp"
REPETITIONS = 5

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

#: Rows of the pool by the names in block_pool_benchmark.cpp.
POOL_NAMES = {
    "construct and use 10,000": "construct_and_use_all/10000",
    "construct and use 200,000": "construct_and_use_all/200000",
    "construct and use 2,000,000": "construct_and_use_all/2000000",
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
#: Rows of the cache manager by the names in cache_manager_benchmark.cpp.
MANAGER_NAMES = {
    row_name(MEAN, n): f"BM_DecodeStep/requests:256/groups:{n}/caching:1" for n in GROUPS
}
Key = tuple[str, str, "int | None"]


def benchmark_of(row: Row) -> tuple[str, str]:
    """The executable and the benchmark that does a row's work; empty names where none does."""
    if row.work in ("construction", "allocation"):
        return POOL, POOL_NAMES.get(row.name, "")
    if row.work == "manager":
        return MANAGER, MANAGER_NAMES.get(row.name, "")
    if row.work == "gcd":
        return CORE, f"BM_ApproximateGcd/{10 ** int(row.name.removeprefix('10^'))}"
    if row.work == "scale":
        return CORE, f"BM_Scale/{row.layers}/{row.workers}"
    return "", ""


@dataclasses.dataclass(frozen=True)
class Executables:
    """A folder with the built benchmarks. Raises `FileNotFoundError` if one is missing."""

    folder: Path

    def __post_init__(self) -> None:
        for name in (POOL, PLAN, CORE, MANAGER):
            if not (self.folder / name).is_file():
                raise FileNotFoundError(2, "no such benchmark executable", str(self.folder / name))

    def named(self, rows: Sequence[Row], budget_s: float) -> list[Row]:
        """Rows with the C++ side added where a benchmark is known to do the same."""
        found: dict[tuple[str, str], float] = {}
        for executable in (POOL, CORE, MANAGER):
            wanted = {
                name for row in rows for exe, name in [benchmark_of(row)] if exe == executable
            }
            seconds = self._run(executable, wanted, budget_s)
            found |= {(executable, name): s for name, s in seconds.items()}
        return [_with(row, found.get(benchmark_of(row))) for row in rows]

    def planning(
        self, rows: Sequence[Row], requests: Mapping[Key, bytes], budget_s: float
    ) -> list[Row]:
        """Rows of planning with the C++ side added; `requests` are files' contents by row."""
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for i, (key, content) in enumerate(requests.items()):
                files[key] = f"{i:03}.json"
                (Path(folder) / files[key]).write_bytes(content)
            found = self._run(PLAN, files.values(), budget_s, KVPLAN_BENCH_REQUESTS=folder)
        return [_with(row, found.get(files.get(row.key, ""))) for row in rows]

    def _run(
        self, name: str, only: Iterable[str], budget_s: float, **variables: str
    ) -> dict[str, float]:
        """Seconds per item of each benchmark: the median of the repetitions' CPU time."""
        names = sorted(filter(None, only))
        if not names:
            return {}
        pattern = "|".join(n.replace(".", "[.]") for n in names)
        command = [
            str(self.folder / name),
            "--benchmark_format=json",
            f"--benchmark_filter=^({pattern})$",
            f"--benchmark_repetitions={REPETITIONS}",
            f"--benchmark_min_time={max(0.01, budget_s / 10 / REPETITIONS):.3f}",
            "--benchmark_report_aggregates_only=true",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **variables}
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
        found = {}
        for run in json.loads(done.stdout)["benchmarks"]:
            if run.get("aggregate_name") != "median":
                continue
            seconds = run["cpu_time"] * _UNITS[run["time_unit"]]
            if "items_per_second" in run:
                seconds = 1 / run["items_per_second"]
            found[run["run_name"]] = seconds
        return found


def _with(row: Row, seconds: float | None) -> Row:
    if seconds is None:
        return row
    return msgspec.structs.replace(row, seconds={**row.seconds, SIDE: seconds})
