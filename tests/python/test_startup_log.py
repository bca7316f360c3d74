"""Start-up logs: figures, sums, findings, refusals and phases, whatever stands around the lines."""

import io
import json
import re
from pathlib import Path

import pytest
from cli_runner import answer_to, run
from test_docs_json import broken

from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.serve_line import read_line, written
from kvplan.offline.startup_log import (
    MemorySum,
    NoStart,
    Rank,
    findings_of,
    memory_sum,
    phases_of,
    read_starts,
    reconstructed_line,
)

LOGS = Path(__file__).parents[1] / "data" / "startup_logs"
ALL = sorted(path.name for path in LOGS.iterdir())


def starts(text):
    data = text.encode() if isinstance(text, str) else text
    return read_starts(io.BytesIO(data), "a.log")


def logged(name):
    return starts((LOGS / name).read_bytes())


def last(name):
    return logged(name)[-1]


def test_version_0_10():
    start = last("v0.10.log")
    (rank,) = start.workers
    assert (start.version, start.is_ready, start.refusal) == ("0.10.0", True, None)
    assert (rank.weights, rank.kv_cache, rank.graphs) == (14.9889, 58.11, 0.57)
    assert (start.capacity_tokens, start.max_model_len, start.max_concurrency) == (
        476016,
        32768,
        14.53,
    )
    found = memory_sum(rank)
    assert found.missing == ("non-torch", "peak activation", "requested memory")
    assert not found.closes
    (phases,) = phases_of(start)
    assert phases.seconds == {
        "import": 14,
        "start": 3,
        "weights": 4.102841,
        "compile": 6.12,
        "profile": 16 - 6.12,
        "plan": 0,
        "graphs": 17,
        "warm-up": 0,
    }
    assert phases.total == 54


def test_two_interleaved_ranks_close():
    start = last("v0.19-tp2-kubernetes.log")
    assert [rank.name for rank in start.workers] == ["TP0", "TP1"]
    for rank in start.workers:
        found = memory_sum(rank)
        assert found.closes
        assert found.parts == {
            "weights": 7.51,
            "non-torch": 2.07,
            "peak activation": 1.89,
            "KV cache": 63.76,
        }
        assert found.requested == 75.23
    first, second = phases_of(start)
    assert first.seconds["download"] == 38.512
    assert "download" not in second.seconds
    assert first.seconds["weights"] == pytest.approx(43.201 - 38.512)


def test_one_figure_for_weights_and_non_torch_closes():
    start = last("v0.28-tp4-compose.log")
    assert [rank.name for rank in start.workers] == [f"TP{i}_EP{i}" for i in range(4)]
    for rank in start.workers:
        found = memory_sum(rank)
        assert found.closes
        assert found.estimate_in_activation
        assert found.parts["peak activation"] == pytest.approx(6.31)
        assert found.parts["CUDA graphs (estimated)"] == 4.99
    assert {"KV cache": 50.10}.items() <= memory_sum(start.workers[0]).parts.items()


def test_findings_with_their_numbers():
    found = {finding.kind: finding for finding in findings_of(last("v0.28-tp4-compose.log"))}
    assert set(found) == {"graph estimate", "suggestion", "ranks"}
    assert found["graph estimate"].gain_gib == pytest.approx(4.18)
    assert f"{0.92 + 4.18 / 184.31:.4f}" in found["graph estimate"].words
    right = 52763668480 + round(4.99 * 2**30)
    assert f"--kv-cache-memory-bytes {right} is what fits" in found["suggestion"].words
    assert "50.10 GiB on TP0_EP0 and 50.63 GiB on TP1_EP1" in found["ranks"].words


def rank(**figures):
    return Rank("", **figures)


CLOSED = {"requested": 71.27, "weights": 15.0, "activation": 2.0, "non_torch": 0.25}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({**CLOSED, "kv_cache": 54.02}, (True, 54.02, None)),
        ({**CLOSED, "kv_cache": 54.05}, (False, 54.05, None)),
        ({**CLOSED, "kv_cache": 53.02, "graphs_estimated": 1.0}, (True, 53.02, 1.0)),
        # An estimate that is logged and not taken off (0.18, 0.19), or with the switch off.
        ({**CLOSED, "kv_cache": 54.02, "graphs_estimated": 1.0}, (True, 54.02, None)),
        (
            {**CLOSED, "kv_cache": 54.02, "graphs_estimated": 1.0, "estimate_applies": False},
            (True, 54.02, None),
        ),
        # The activation holds the estimate.
        (
            {**CLOSED, "kv_cache": 54.02, "graphs_estimated": 1.0, "estimate_applies": True},
            (True, 54.02, 1.0),
        ),
    ],
)
def test_where_the_estimate_of_graphs_is(figures, expected):
    found = memory_sum(rank(**figures))
    graphs = found.parts.get("CUDA graphs (estimated)")
    assert (found.closes, found.parts["KV cache"], graphs) == expected
    if found.closes:
        assert sum(found.parts.values()) == pytest.approx(found.requested, abs=0.021)


def test_missing_parts_are_what_is_left():
    found = memory_sum(rank(total=80.0, utilization=0.9, weights=15.0, kv_cache=54.0))
    assert isinstance(found, MemorySum)
    assert found.missing == ("non-torch", "peak activation")
    assert found.rest == pytest.approx(3.0)


def test_no_finding_where_nothing_is_wrong():
    for name in ("v0.10.log", "v0.19-tp2-kubernetes.log", "v0.32-out-of-memory-docker.log"):
        assert findings_of(last(name)) == []


@pytest.mark.parametrize(
    ("name", "kind", "numbers", "words"),
    [
        (
            "v0.15-refused-length.log",
            "length",
            {
                "max_model_len": 40960,
                "needed_gib": 10.0,
                "available_gib": 7.09,
                "estimated_len": 29024,
            },
            "--max-model-len 29024 fits",
        ),
        (
            "v0.32-out-of-memory-docker.log",
            "out of memory",
            {"tried_gib": 298 / 1024, "total_gib": 23.52},
            "while it was warming up",
        ),
    ],
)
def test_a_refusal_is_answered_first(name, kind, numbers, words):
    refusal = last(name).refusal
    assert (refusal.kind, refusal.numbers) == (kind, numbers)
    result = run("log", LOGS / name)
    assert result.exit_code == DOES_NOT_FIT
    first = " ".join(result.stdout.split("\n\n")[0].split())
    assert first.startswith("It did not start. ")
    assert words in first
    assert f"line {refusal.line}: " in first


MESSAGES = [
    ("ValueError: No available memory for the cache blocks. Try increasing", "no memory", {}),
    ("ValueError: Cannot auto-fit max_model_len: not enough GPU memory", "no memory", {}),
    (
        "ValueError: Free memory on device cuda:0 (20.0/23.6 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 21.24 GiB). Decrease",
        "utilization",
        {"free_gib": 20.0, "total_gib": 23.6, "utilization": 0.9, "requested_gib": 21.24},
    ),
    (
        "ValueError: User-specified max_model_len (999999) is greater than the derived "
        "max_model_len (max_position_embeddings=40960 or model_max_length=None in model's config",
        "context",
        {"max_model_len": 999999, "derived_len": 40960},
    ),
    ("AssertionError: Error in memory profiling. Initial free memory 9 GiB", "changed memory", {}),
    ("RuntimeError: NCCL error: unhandled system error", "other", {}),
]
BEGUN = "(EngineCore pid=7) INFO 01-02 03:04:05 [core.py:1] Initializing a V1 LLM engine (v0.33.0)"
BEGUN += " with config: model='m', max_seq_len=40960, tensor_parallel_size=1\n"


@pytest.mark.parametrize(("message", "kind", "numbers"), MESSAGES)
@pytest.mark.parametrize(
    "prefix", ["", "(EngineCore pid=7) ", "(EngineCore pid=7) ERROR 01-02 03:04:06 [core.py:9] "]
)
def test_refusals(prefix, message, kind, numbers, tmp_path):
    consequence = "RuntimeError: Engine core initialization failed. See root cause above.\n"
    (start,) = starts(BEGUN + prefix + message + "\n" + consequence)
    assert (start.refusal.kind, start.refusal.numbers) == (kind, numbers)
    path = tmp_path / "a.log"
    path.write_text(BEGUN + prefix + message + "\n" + consequence)
    result = run("log", path)
    assert result.exit_code == DOES_NOT_FIT
    assert result.stdout.startswith("It did not start. ")


def test_several_starts():
    first, second = logged("v0.33-two-starts.log")
    assert first.refusal.kind == "states"
    assert first.refusal.numbers == {"max_num_seqs": 1024, "blocks": 339}
    assert second.is_ready
    assert second.refusal is None
    (only,) = second.workers
    assert (only.kv_cache, only.kv_cache_given) == (15.2, True)
    shown = run("log", LOGS / "v0.33-two-starts.log")
    assert shown.exit_code == FITS
    assert "holds 2 starts" in shown.stderr
    assert "there is no sum to close" in " ".join(shown.stdout.split())
    assert run("log", LOGS / "v0.33-two-starts.log", "--start", "1").exit_code == DOES_NOT_FIT
    assert run("log", LOGS / "v0.33-two-starts.log", "--start", "3").exit_code == BAD_INPUT


def test_what_is_logged_on_the_way_is_no_refusal():
    """A start of vLLM 0.32.0's CPU engine, as it was; its template could not be warmed up."""
    start = last("v0.32-cpu.log")
    assert (start.version, start.device, start.is_ready) == ("0.32.0", "CPU", True)
    assert start.refusal is None
    assert (start.capacity_tokens, start.workers[0].kv_cache) == (645277, 1.0)
    (phases,) = phases_of(start)
    assert phases.seconds["import"] == 42
    assert phases.total == 92
    assert log_json(LOGS / "v0.32-cpu.log")["not_planned"].startswith("plans are those of CUDA")


def test_the_turn_of_the_year():
    (phases,) = phases_of(last("v0.15-refused-length.log"))
    assert phases.seconds["profile"] == 28


def test_the_gpu_of_an_environment_report():
    assert last("v0.15-refused-length.log").gpu_name == "NVIDIA L40S"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "v0.19-tp2-kubernetes.log",
            "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --host 0.0.0.0 --dtype bfloat16 "
            "--gpu-memory-utilization 0.95 --enable-log-requests --max-model-len 131072 "
            "--max-num-batched-tokens 8192 --compilation-config "
            '\'{"mode": 3, "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}\'',
        ),
        (
            "v0.28-tp4-compose.log",
            "vllm serve /models/GLM-5.2-NVFP4 -tp 4 --enable-expert-parallel --dtype bfloat16 "
            "--max-model-len 131072 --kv-cache-dtype fp8 --quantization modelopt_fp4 "
            "--max-num-batched-tokens 16384 --gpu-memory-utilization 0.92 --speculative-config "
            '\'{"method": "mtp", "num_speculative_tokens": 1}\'',
        ),
        (
            "v0.15-refused-length.log",
            "vllm serve Qwen/Qwen3-32B-AWQ --gpu-memory-utilization 0.6 --dtype float16 "
            "--quantization awq_marlin --max-model-len 40960 --max-num-batched-tokens 2048",
        ),
    ],
)
def test_the_line_behind_a_log(name, line):
    found, expected = reconstructed_line(last(name)), read_line([line])
    assert found.model == expected.model
    assert found.values() == expected.values()
    assert read_line([written(found, {})]).values() == expected.values()


def plain(name):
    """The lines of a log without what its container put around them."""
    lines = (LOGS / name).read_text().splitlines()
    if name.endswith("docker.log"):
        lines = [json.loads(line)["log"].rstrip("\n") for line in lines]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))
    text = re.sub(r"^\S+T\S+Z stderr F |^vllm-1  \| ", "", text, flags=re.M)
    return text.splitlines()


WRAPPINGS = {
    "as it is": lambda line: line,
    "kubernetes": lambda line: f"2026-09-12T10:33:44.123456789Z stdout F {line}",
    "compose": lambda line: f"vllm-server-1  | {line}",
    "journal": lambda line: f"Aug 18 14:14:59 host python3[28148]: {line}",
    "docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "t"}),
    "json": lambda line: json.dumps({"timestamp": "t", "message": line}),
    "colours": lambda line: re.sub(r"(INFO|\(\w+ pid=\d+\))", "\x1b[0;36m\\1\x1b[0;0m", line),
    "windows": lambda line: f"{line}\r",
    "progress bar": lambda line: f"Loading: 1%\rLoading: 2%\r{line}",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("name", ALL)
def test_what_stands_around_a_line_changes_nothing(name, wrapping):
    expected = logged(name)
    lines = map(WRAPPINGS[wrapping], plain(name))
    for found, start in zip(starts("\n".join(lines) + "\n"), expected, strict=True):
        found.last_line = start.last_line
        assert found == start


@pytest.mark.parametrize("name", ALL)
def test_a_log_that_is_cut_off_anywhere(name):
    data = (LOGS / name).read_bytes()
    for end in range(0, len(data), 97):
        try:
            found = starts(data[:end])
        except NoStart:
            continue
        for start in found:
            for worker in start.workers:
                memory_sum(worker)
            phases_of(start)
            findings_of(start)
            reconstructed_line(start)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02" * 999, "is a binary file"),
        (b"hello\nworld\n", "none of its 2 lines is one that vLLM"),
        (b"x" * 3_000_000, "none of its 1 lines"),
    ],
)
def test_what_is_no_log(data, words, tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(data)
    for result in (run("log", path), run("log", "-", input=data)):
        assert result.exit_code == BAD_INPUT
        assert result.stdout == ""
        assert words in result.stderr


def test_files_that_are_none(tmp_path):
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for path, words in [
        (tmp_path, "is a directory"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "a.gz", "zcat"),
    ]:
        result = run("log", path)
        assert result.exit_code == BAD_INPUT
        assert words in result.stderr


class Endless(io.RawIOBase):
    """Some lines over and over, made when they are read."""

    def __init__(self, block, times):
        super().__init__()
        self.block, self.times, self.rest = block, times, b""

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.rest:
            if not self.times:
                return 0
            self.times -= 1
            self.rest = self.block
        part, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.parametrize(
    "block",
    [
        (LOGS / "v0.33-two-starts.log").read_bytes(),
        b"(APIServer pid=1) INFO 11-02 07:30:00 [loggers.py:1] Engine 000: running\n" * 1000,
        b"z" * (1 << 20),  # one line without an end
    ],
)
def test_memory_does_not_grow_with_a_log(block):
    import tracemalloc

    def peak(times):
        stream = io.BufferedReader(Endless(block, times))
        tracemalloc.start()
        try:
            read_starts(stream, "a.log")
        except NoStart:
            assert b"LLM engine" not in block
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    small, large = peak(2), peak(40)
    assert large < small + (2 << 20)


def log_json(*args):
    result = run("log", *args, "--json")
    assert result.exit_code in (FITS, DOES_NOT_FIT), result.stderr
    return json.loads(result.stdout)


def test_the_plan_of_a_log_agrees_with_it():
    answer = log_json(LOGS / "v0.10.log", "--model", "llama-3.1-8b", "--gpu", "H100")
    assert answer["plan"]["agrees"] is True
    assert answer["not_planned"] is None
    (only,) = answer["ranks"]
    assert only["missing"] == ["non-torch", "peak activation"]
    assert 1.9 < only["rest_gib"] < 2.3
    assert any("--kv-cache-dtype fp8" in line for line in answer["helps"])
    two = log_json(LOGS / "v0.19-tp2-kubernetes.log", "--model", "llama-3.1-8b")
    assert two["plan"]["agrees"] is True
    other = log_json(LOGS / "v0.10.log", "--model", "qwen3-8b")
    assert other["plan"]["agrees"] is False


def test_what_limits():
    answer = log_json(LOGS / "v0.28-tp4-compose.log")
    share = 108.17 / 169.57
    assert answer["limits"] == [
        f"{share:.0%} of the requested memory on TP0_EP0 are weights and non-torch, "
        f"{50.10 / 169.57:.0%} the KV cache"
    ]


def test_a_refusal_is_planned_too():
    answer = log_json(LOGS / "v0.15-refused-length.log", "--model", "qwen3-32b")
    assert "--max-model-len 29024: fits, for one request at a time" in answer["helps"]


def test_a_model_that_is_not_here_is_said(tmp_path):
    answer = log_json(LOGS / "v0.28-tp4-compose.log")
    assert answer["plan"] is None
    assert "no such model '/models/GLM-5.2-NVFP4'" in answer["not_planned"]
    request = tmp_path / "request.json"
    result = run("log", LOGS / "v0.28-tp4-compose.log", "--write-request", request)
    assert result.exit_code == BAD_INPUT
    assert not request.exists()


def test_the_request_of_a_log(tmp_path):
    path = tmp_path / "request.json"
    args = (LOGS / "v0.10.log", "--model", "llama-3.1-8b", "--write-request", path)
    answer = log_json(*args)
    planned = answer_to("plan", "--request", path)
    plan = answer["plan"]
    assert plan["least_capacity_tokens"] <= planned["capacity_tokens"]
    assert planned["capacity_tokens"] <= plan["most_capacity_tokens"]


def test_several_logs_side_by_side(tmp_path):
    names = [LOGS / "v0.10.log", LOGS / "v0.19-tp2-kubernetes.log"]
    plot = tmp_path / "starts.svg"
    result = run("log", *names, "--plot", plot)
    assert result.exit_code == FITS, result.stderr
    assert "54.0" in result.stdout
    assert "99.0" in result.stdout
    assert "--tensor-parallel-size: - | 2" in result.stdout
    assert plot.read_text().count("v0.1") >= 2
    answers = log_json(*names)
    assert [answer["vllm"] for answer in answers] == ["0.10.0", "0.19.0"]


def test_capacity_that_the_memory_does_not_explain(tmp_path):
    text = (LOGS / "v0.10.log").read_text()
    (tmp_path / "b.log").write_text(text.replace("476,016 tokens", "300,000 tokens"))
    result = run("log", LOGS / "v0.10.log", tmp_path / "b.log")
    assert "The same memory holds another number of tokens" in result.stdout


def test_windows_make_two_figures():
    batch = "max_num_batched_tokens="
    text = (LOGS / "v0.10.log").read_text().replace(f"{batch}8192", f"{batch}65536")
    result = run("log", "-", "--model", "gpt-oss-20b", "--json", input=text.encode())
    answer = json.loads(result.stdout)
    assert "in-flight tokens" in {finding["kind"] for finding in answer["findings"]}


@pytest.mark.parametrize("name", ALL)
def test_the_json_is_what_the_schema_says(name):
    assert broken("log", log_json(LOGS / name)) == []


def test_the_json_of_a_planned_log_is_what_the_schema_says():
    answer = log_json(LOGS / "v0.10.log", "--model", "llama-3.1-8b", "--gpu", "H100")
    assert broken("log", answer) == []
    assert broken("logs", log_json(LOGS / "v0.10.log", LOGS / "v0.19-tp2-kubernetes.log")) == []


def test_every_part_beside_its_prediction():
    """Figures of a public log of vLLM 0.19: all parts are predicted from the line and the GPU."""
    answer = log_json(LOGS / "v0.19-tp2-kubernetes.log", "--model", "llama-3.1-8b", "--gpu", "H100")
    assert answer["not_predicted"] is None
    for rank in answer["ranks"]:
        found = {row["part"]: row for row in rank["predictions"]}
        assert set(found) == {"weights", "non-torch", "peak activation", "KV cache"}
        assert all(row["agrees"] for row in found.values())
        assert found["weights"]["predicted"] == pytest.approx(7.51, abs=0.04)
        assert found["peak activation"]["predicted"] == pytest.approx(1.89, abs=0.02)
    args = (LOGS / "v0.19-tp2-kubernetes.log", "--model", "llama-3.2-3b", "--gpu", "H100")
    other = log_json(*args)
    found = {row["part"]: row for row in other["ranks"][0]["predictions"]}
    assert not found["weights"]["agrees"]


def test_why_nothing_is_predicted():
    text = (LOGS / "v0.10.log").read_text()
    alone = "".join(line for line in text.splitlines(True) if "KV cache" in line)
    answer = json.loads(run("log", "-", "--json", input=alone).stdout)
    assert "--model NAME" in answer["not_predicted"]
    assert answer["not_planned"] == answer["not_predicted"]
    assert "0.19 and later" in log_json(LOGS / "v0.10.log", "--gpu", "H100")["not_predicted"]
    assert "--gpu NAME" in log_json(LOGS / "v0.33-two-starts.log")["not_predicted"]
