"""``kvplan sweep``: every combination is a row, equal to its plan; none is lost."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import pytest
from cli_runner import answer_to, run, surroundings

from kvplan.offline.cli import sweep_run
from kvplan.offline.cli.failures import BAD_INPUT, FITS, INTERRUPTED
from kvplan.offline.cli.param_types import parse_lengths, parse_sizes
from kvplan.offline.cli.row_writers import RowWriter
from kvplan.offline.cli.sweep_grid import COLUMN_TYPES, COLUMNS, Grid
from kvplan.offline.cli.sweep_plot import SweepPlot

SVG = "{http://www.w3.org/2000/svg}"


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_the_plans(tmp_path):
    path = tmp_path / "sweep.csv"
    result = run(
        "sweep",
        "gemma-3-27b",
        "llama-3.1-70b",
        "--memory",
        "10GiB:30GiB:20GiB",
        "--tp",
        "1,2",
        "--grouping",
        "vllm,compact",
        "-o",
        path,
    )
    assert result.exit_code == FITS, result.stderr
    rows = rows_of(path)
    assert len(rows) == 2 * 2 * 2 * 2
    assert list(rows[0]) == list(COLUMNS)
    for row in rows:
        plan = run(
            "plan",
            row["model"],
            "--memory",
            row["memory_bytes"],
            "--tp",
            row["tp"],
            "--grouping",
            row["grouping"],
            "--json",
        )
        answer = json.loads(plan.stdout)
        assert answer["fits"] == (row["fits"] == "true")
        if answer["fits"]:
            assert answer["num_blocks"] == int(row["num_blocks"])
            assert answer["max_concurrency"] == float(row["max_concurrency"])
            assert len(answer["groups"]) == int(row["num_groups"])
        else:
            assert answer["error"]["estimated_max_len"] == int(row["estimated_max_len"])
            assert row["error"].startswith("To serve at least one request")


def test_what_cannot_be_planned_is_a_row(tmp_path):
    path = tmp_path / "sweep.jsonl"
    run("sweep", "llama-3.1-70b", "--memory", "99GiB", "--tp", "8,7", "-o", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["fits"] for row in rows] == [True, False]
    assert "7" in rows[1]["error"]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl"])
def test_formats_hold_the_same(tmp_path, suffix):
    path = tmp_path / f"sweep{suffix}"
    run(
        "sweep", "gpt-oss-120b", "--memory", "20GiB,40GiB", "--max-model-len", "8K,auto", "-o", path
    )
    if suffix == ".csv":
        rows = rows_of(path)
    elif suffix == ".json":
        rows = json.loads(path.read_text())
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [int(row["memory_bytes"]) >> 30 for row in rows] == [20, 40, 20, 40]
    assert [str(row["asked_max_model_len"]) for row in rows] == ["8192", "8192", "auto", "auto"]


def test_stdout_is_csv():
    result = run("sweep", "gpt-oss-120b", "--memory", "20GiB", "--quiet")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == ""


def test_processes_change_nothing(tmp_path):
    texts = []
    for jobs in ("1", "2"):
        path = tmp_path / f"{jobs}.csv"
        run("sweep", "gemma-3-27b", "--memory", "1GiB:60GiB:0.05GiB", "-o", path, "-j", jobs)
        texts.append(path.read_text())
    assert len(texts[0].splitlines()) > 1000
    assert texts[0] == texts[1]


@pytest.mark.skipif(os.name != "posix", reason="sends an interrupt")
@pytest.mark.parametrize(
    ("jobs", "number"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)]
)
def test_an_interruption_keeps_whole_rows(tmp_path, jobs, number):
    path = tmp_path / "sweep.json"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvplan.offline.cli",
            "sweep",
            "gemma-3-27b",
            "--memory",
            "1GiB:60GiB:1MiB",
            "--tp",
            "1,2,4,8,16",
            "-o",
            str(path),
            "-j",
            jobs,
        ],
        stderr=subprocess.PIPE,
        text=True,
        **surroundings(),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.stat().st_size < 10_000):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    rows = json.loads(path.read_text())
    assert rows
    assert f"interrupted: {len(rows):,} of " in stderr
    memory = [row["memory_bytes"] for row in rows if row["tp"] == 1]
    assert memory == [(1 << 30) + n * (1 << 20) for n in range(len(memory))]


def read_parquet(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path)


def test_parquet_holds_the_same_with_types(tmp_path):
    pytest.importorskip("pyarrow")
    args = ("sweep", "gpt-oss-120b", "--memory", "1MiB,20GiB", "--max-model-len", "8K,auto", "-o")
    run(*args, tmp_path / "sweep.json")
    result = run(*args, tmp_path / "sweep.parquet")
    assert result.exit_code == FITS, result.stderr
    table = read_parquet(tmp_path / "sweep.parquet")
    assert table.column_names == list(COLUMNS)
    assert {str(table.schema.field(name).type) for name in ("fits", "num_blocks", "error")} == {
        "bool",
        "int64",
        "string",
    }
    expected = json.loads((tmp_path / "sweep.json").read_text())
    for row in expected:
        row["asked_max_model_len"] = str(row["asked_max_model_len"])
    assert table.to_pylist() == expected
    assert {row["fits"] for row in expected} == {True, False}


def test_parquet_is_whole_after_an_interruption(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    rows = [(f"model{i}", i, None) for i in range(70_000)]
    columns = {"model": str, "tp": int, "error": str}

    def interrupted():
        with RowWriter(path, columns) as writer:
            writer.write(rows[:69_000])
            writer.write(rows[69_000:])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    table = read_parquet(path)
    assert table.num_rows == 70_000
    assert table.to_pylist()[-1] == {"model": "model69999", "tp": 69_999, "error": None}


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("sweep", "gemma-3-27b", "--memory", "1GiB", "-o", tmp_path / "sweep.parquet")
    assert result.exit_code == BAD_INPUT
    assert "pip install pyarrow" in result.stderr


def words_of(path):
    """The texts of a picture."""
    return [text.text for text in ET.parse(path).getroot().iter(f"{SVG}text")]


def test_plot_against_the_length(tmp_path):
    path = tmp_path / "plot.svg"
    result = run(
        "sweep", "gemma-3-27b", "--memory", "40GiB", "--max-model-len", "8K:32K:8K", "--grouping",
        "vllm,compact", "--kv-cache-dtype", "auto,fp8", "--plot", path, "-o", tmp_path / "rows.csv",
    )  # fmt: skip
    assert result.exit_code == FITS, result.stderr
    assert "wrote" in result.stderr
    words = words_of(path)
    assert "fp8 cache, compact grouping" in words
    assert "tokens of the longest request" in words
    assert "gemma-3-27b, TP 1, 8,192 tokens a step, 40 GiB" in words


def test_lines_are_the_rows():
    grid = Grid(
        models=["gemma-3-27b"],
        options={
            "tensor_parallel_size": [1],
            "pipeline_parallel_size": [1],
            "decode_context_parallel_size": [1],
            "kv_cache_dtype": ["auto", "fp8"],
            "block_size": [None],
            "max_num_batched_tokens": [8192],
        },
        groupings=["vllm"],
        memory=[1 << 30, 40 << 30],
        lengths=[None],
    )
    picture = SweepPlot(grid, "capacity_tokens")
    rows = [row for chunk in grid.chunks() for row in chunk.plan()]
    picture.add(rows)
    column = COLUMNS.index("capacity_tokens")
    drawn = [line.get_ydata() for line in picture.figure().axes[0].lines]
    assert [list(y) for y in drawn] == [
        [pytest.approx(math.nan, nan_ok=True), rows[1][column]],
        [pytest.approx(math.nan, nan_ok=True), rows[3][column]],
    ], "what does not fit is a gap"


def test_lines_that_are_the_same_are_one(tmp_path):
    path = tmp_path / "plot.svg"
    run(
        "sweep", "llama-3.1-70b", "--memory", "20GiB,40GiB", "--max-model-len", "8K", "--grouping",
        "vllm,compact", "--plot", path, "--plot-column", "num_groups", "-o", tmp_path / "rows.csv",
    )  # fmt: skip
    words = words_of(path)
    assert "vllm grouping = compact grouping" in words
    assert "memory for the KV cache of each GPU" in words


def test_an_interruption_waits_for_the_chunk(tmp_path):
    grid = Grid(
        models=["gemma-3-27b"],
        options={
            "tensor_parallel_size": [1, 2, 4],
            "pipeline_parallel_size": [1],
            "decode_context_parallel_size": [1],
            "kv_cache_dtype": ["auto"],
            "block_size": [None],
            "max_num_batched_tokens": [8192],
        },
        groupings=["vllm"],
        memory=[30 << 30],
        lengths=[None],
    )
    assert len(grid) == 3

    def interrupted():
        for number, chunk in enumerate(grid.chunks()):
            if number == 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield chunk

    with RowWriter(tmp_path / "rows.csv", COLUMN_TYPES) as writer, pytest.raises(KeyboardInterrupt):
        sweep_run.run_chunks(interrupted(), 1, writer.write)
    assert [row["tp"] for row in rows_of(tmp_path / "rows.csv")] == ["1", "2"]


def test_ranges():
    assert parse_sizes("1KiB:3KiB:1KiB,10KB") == [1024, 2048, 3072, 10000]
    assert parse_lengths("1K,auto,1K") == [1024, "auto"]
    for text, word in (
        ("", "empty"),
        ("1KiB,", "empty"),
        ("1:2", "START:STOP:STEP"),
        ("3B:1B:1B", "backwards"),
        ("1B:1GB:1B", "100,000"),
        ("1B:2B:0", "less than one"),
    ):
        with pytest.raises(ValueError, match=word):
            parse_sizes(text)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "model"),
        (("gemma-3-27b",), "--memory"),
        (("gema-3-27b", "--memory", "1GiB"), "Did you mean gemma-3-27b?"),
        (("gemma-3-27b", "--memory", "1 parsec"), "'parsec'"),
        (("gemma-3-27b", "--memory", "1GiB", "--grouping", "compat"), "compact"),
        (("gemma-3-27b", "--memory", "1GiB", "--kv-cache-dtype", "fp9"), "fp8"),
        (("gemma-3-27b", "--memory", "1GiB", "-o", "x.xlsx"), ".csv"),
        (("gemma-3-27b", "--memory", "1GiB", "--plot", "x.pdf"), ".svg, .html, .png"),
        (("gemma-3-27b", "--memory", "1GiB", "--plot", "no/x.svg"), "there is no folder no"),
        (("gemma-3-27b", "--memory", "1GiB", "--tp", "1,0"), "'0' is not a whole number of at"),
        (("gemma-3-27b", "--memory", "1GiB", "--pp", "1:4K:1"), "'4K' is not a whole number of at"),
        (("gemma-3-27b", "--memory", "1GiB", "--plot", "x.svg"), "several numbers"),
        (
            ("gemma-3-27b", "--memory", "1GiB:64GiB:1GiB", "--tp", "1:30:1", "--plot", "x.svg"),
            "30 lines",
        ),
        (("gemma-3-27b", "--memory", "1GiB", "--plot-column", "tokens"), "capacity_tokens"),
        (("gemma-3-27b", "--memory", "1GiB", "-o", "/no/such/folder/x.csv"), "/no/such/folder"),
    ],
)
def test_bad_input(args, word):
    result = run("sweep", *args)
    assert result.exit_code == BAD_INPUT
    assert word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_estimated_memory_of_several_gpus(tmp_path):
    args = ("--gpu", "H100,h200", "--weights", "141GB", "--tp", "1,4")
    rows = sweep_rows(tmp_path, "llama-3.1-70b", *args)
    assert [(row["gpu"], row["tp"], row["fits"]) for row in rows] == [
        ("H100", 1, False),
        ("h200", 1, False),
        ("H100", 4, True),
        ("h200", 4, True),
    ]
    plan = run(
        "plan", "llama-3.1-70b", "--tp", "4", "--gpu", "H200", "--weights", "141GB", "--json"
    )
    assert rows[3]["num_blocks"] == json.loads(plan.stdout)["num_blocks"]
    assert "leave nothing" in rows[0]["error"]


def test_a_gpu_has_its_defaults_and_each_stage_its_own_memory(tmp_path):
    args = ("--weights", "16GB", "--pp", "2")
    rows = sweep_rows(tmp_path, "llama-3.1-8b", "--gpu", "RTX 4090,H100", *args)
    assert [row["max_num_batched_tokens"] for row in rows] == [2048, 8192]
    for row in rows:
        plan = run("plan", "llama-3.1-8b", "--gpu", row["gpu"], *args, "--json")
        answer = json.loads(plan.stdout)
        assert row["num_blocks"] == answer["num_blocks"]
        assert row["memory_bytes"] == min(w["available_bytes"] for w in answer["workers"])


def test_a_line_stands_for_its_options(tmp_path):
    line = ("vllm", "serve", "gemma-3-27b", "-tp", "2", "--max-model-len", "32k", "--block-size")
    line += ("32", "--no-async-scheduling", "--gpu-memory-utilization", "0.5", "--seed", "7")
    rows = sweep_rows(tmp_path, "--gpu", "H100,H200", "--kv-cache-dtype", "auto,fp8", "--", *line)
    assert len(rows) == 4
    for row in rows:
        own = ("--gpu", row["gpu"], "--kv-cache-dtype", row["kv_cache_dtype"], "--json")
        answer = json.loads(run("plan", *own, "--", *line).stdout)
        assert (row["model"], row["tp"], row["block_size"]) == ("gemma-3-27b", 2, 32)
        assert row["num_blocks"] == answer["num_blocks"]
        assert row["steady_concurrency"] == answer["steady_concurrency"]


def test_as_many_sequences_as_a_recurrent_model_has_blocks(tmp_path):
    args = ("qwen3.5-27b", "--gpu", "H100", "--weights", "54.7GB", "--max-model-len", "128K")
    (row,) = sweep_rows(tmp_path, *args)
    assert not row["fits"]
    assert "--max-num-seqs" in row["error"]
    (row,) = sweep_rows(tmp_path, *args, "--max-num-seqs", "64")
    assert row["fits"]


def test_requests_that_the_null_block_leaves_room_for(tmp_path):
    args = ("llama-3.1-8b", "--memory", "8GiB", "--max-model-len", "16384")
    (row,) = sweep_rows(tmp_path, *args)
    assert (row["max_concurrency"], row["usable_concurrency"]) == (4.0, 4095 / 1024)
    answer = answer_to("explain", *args)
    assert answer["usable_concurrency"] == answer["by_length"][-1]["usable_concurrency"]
    assert "3.99 without the null block" in " ".join(run("explain", *args).stdout.split())
    assert "requests (usable)" in run("diff", "llama-3.1-8b", "--tp 2", *args[1:]).stdout


def test_a_recorded_request(tmp_path):
    recorded = tmp_path / "rec.json"
    run("plan", "gemma-3-27b", "--memory", "30GiB", "--write-request", recorded)
    axes = ("--memory", "20GiB,40GiB", "--max-model-len", "32K,auto", "--grouping", "vllm,compact")
    rows = sweep_rows(tmp_path, "--request", recorded, *axes)
    model = sweep_rows(tmp_path, "gemma-3-27b", *axes)
    answers = ("memory_bytes", "max_model_len", "num_blocks", "request_bytes", "grouping")
    assert [[row[key] for key in answers] for row in rows] == [
        [row[key] for key in answers] for row in model
    ]
    for args in (("--tp", "2"), ("--gpu", "H100"), ("gemma-3-27b",)):
        result = run("sweep", "--request", recorded, *args)
        assert result.exit_code == BAD_INPUT


def sweep_rows(folder, *args):
    """The rows of a sweep as objects."""
    path = folder / "rows.json"
    result = run("sweep", "-o", path, "--quiet", *args)
    assert result.exit_code == FITS, result.stderr
    return json.loads(path.read_text())
