"""Many runs in several processes, and going on after some were lost."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_runner import run

from kvplan.offline.cli import sweep_run
from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.row_writers import ParquetParts

pytest.importorskip("joblib")
pytestmark = pytest.mark.filterwarnings("ignore")  # joblib's, Ray's and Dask's own

COLUMNS = {"number": int, "process": int}
SWEEP = ("sweep", "gemma-3-27b", "--memory", "1GiB:60GiB:0.05GiB", "--tp", "1,2,4")


@dataclass(frozen=True)
class Work:
    """Rows of a number; while a file is missing, the process that does number 5 dies."""

    number: int
    mended: str = ""

    def plan(self):
        if self.mended and self.number == 5 and not Path(self.mended).exists():
            os._exit(9)
        return [(self.number, os.getpid()), (100 + self.number, os.getpid())]


def rows_of(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pydict()


@pytest.mark.parametrize("backend", sweep_run.BACKENDS)
def test_rows_come_in_order_from_several_processes(backend):
    package = {"ray": "ray", "dask": "distributed"}.get(backend)
    if package is not None:
        pytest.importorskip(package)
    rows = []
    sweep_run.run_chunks((Work(i) for i in range(40)), 2, rows.extend, backend)
    assert [number for number, _ in rows] == [n for i in range(40) for n in (i, 100 + i)]
    # Small work may all be done by the process that starts first.
    assert os.getpid() not in {process for _, process in rows}


def test_a_killed_worker_loses_nothing_and_doubles_nothing(tmp_path):
    path, mended = tmp_path / "rows.parquet", tmp_path / "mended"
    chunks = [Work(i, str(mended)) for i in range(30)]

    def go(jobs):
        with ParquetParts(path, COLUMNS, "these") as parts:
            sweep_run.run_chunks(parts.missing(chunks), jobs, parts.write)
            return parts.count

    with pytest.raises(BadInput, match="a process was killed"):
        go(2)
    before = len(list(path.glob("part-*.parquet")))
    assert before < 30
    mended.touch()
    assert go(2) == 2 * (30 - before)
    assert go(2) == 0
    assert sorted(rows_of(path)["number"]) == [*range(30), *range(100, 130)]
    with pytest.raises(BadInput, match="another sweep"):
        ParquetParts(path, COLUMNS, "those")


def test_a_sweep_goes_on(tmp_path):
    whole, parts = tmp_path / "whole.json", tmp_path / "rows.parquet"
    assert run(*SWEEP, "-o", whole, "-j", "1").exit_code == 0
    assert run(*SWEEP, "-o", parts, "--resume", "-j", "2").exit_code == 0
    lost = sorted(parts.glob("part-*.parquet"))[1]
    lost.unlink()
    cut = sorted(parts.glob("part-*.parquet"))[0]
    cut.write_bytes(cut.read_bytes()[:100])
    (parts / ".part-000009.parquet").write_bytes(b"half")
    assert run(*SWEEP, "-o", parts, "--resume", "-j", "2").exit_code == 0
    assert lost.exists()
    expected = json.loads(whole.read_text())
    assert sorted(rows_of(parts)["memory_bytes"]) == sorted(r["memory_bytes"] for r in expected)


def test_what_resuming_refuses(tmp_path):
    assert run(*SWEEP, "--resume").exit_code == 2
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"")
    result = run(*SWEEP, "-o", file, "--resume")
    assert result.exit_code == 2
    assert "a folder of Parquet files" in result.stderr
    assert run(*SWEEP, "-o", tmp_path / "rows.csv", "--resume").exit_code == 2
    foreign = tmp_path / "foreign.parquet"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("mine")
    result = run(*SWEEP, "-o", foreign, "--resume")
    assert result.exit_code == 2
    assert "no _about.txt" in result.stderr
    assert [file.name for file in foreign.iterdir()] == ["mine.txt"]
    (foreign / "_about.txt").write_bytes(b"\xff\xfe")
    result = run(*SWEEP, "-o", foreign, "--resume")
    assert result.exit_code == 2
    assert "of another sweep" in result.stderr


def test_without_joblib(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "joblib", None)
    with pytest.raises(BadInput, match="pip install joblib"):
        sweep_run.run_chunks([Work(1)], 2, list)
