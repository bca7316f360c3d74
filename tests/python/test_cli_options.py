"""Options that cannot be heeded are refused, and streams that cannot take the answer."""

import json
import math
import subprocess

import pytest
from cli_runner import answer_to, execute, execute_line, run, surroundings
from recordings import recorded_config

import kvplan
from kvplan.offline.cli.failures import BAD_INPUT, BROKEN_PIPE, DOES_NOT_FIT, FITS

LLAMA = ("llama-3.1-8b", "--memory", "30GiB")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("fit", *LLAMA, "--find", "gpus", "--tp", "2"), ["--find gpus", "--tp"]),
        (("fit", *LLAMA, "--find", "memory"), ["--find memory", "--memory"]),
        (("fit", "llama-3.1-8b", "--gpu", "H100", "--find", "memory"), ["--find memory", "--gpu"]),
        (
            ("fit", *LLAMA, "--find", "batch", "--max-num-batched-tokens", "1K"),
            ["--find batch", "--max-num-batched-tokens"],
        ),
        (("plan", *LLAMA, "--max-groups", "4"), ["--max-groups", "--grouping compact"]),
        (("plan", *LLAMA, "--min-large-blocks", "4"), ["--min-large-blocks", "--grouping sliced"]),
        (("plan", *LLAMA, "--reference-model-len", "4"), ["--reference-model-len", "--grouping"]),
        (("plan", *LLAMA, "--overhead", "1GiB"), ["--overhead", "--gpu"]),
        (("sweep", *LLAMA, "--max-groups", "4"), ["--max-groups", "--grouping vllm"]),
    ],
)
def test_an_option_that_is_not_heeded_is_refused(args, words):
    result = run(*args)
    assert result.exit_code == BAD_INPUT, result.stdout
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def test_an_unheeded_option_of_a_recorded_request(tmp_path):
    path = tmp_path / "request.json"
    run("plan", *LLAMA, "--grouping", "compact", "--write-request", path)
    assert run("plan", "--request", path, "--max-groups", "4").exit_code == FITS
    refused = run("plan", "--request", path, "--grouping", "vllm", "--max-groups", "4")
    assert refused.exit_code == BAD_INPUT


def test_no_weights_and_no_overhead():
    def memory(*args):
        return answer_to("plan", "llama-3.1-8b", "--gpu", "80GiB", *args)["workers"][0][
            "available_bytes"
        ]

    usable = math.ceil((80 << 30) * 0.92)
    assert memory("--weights", "0", "--overhead", "0") == usable
    assert memory("--weights", "0B", "--overhead", "1GiB") == usable - (1 << 30)
    negative = run("plan", "llama-3.1-8b", "--gpu", "80GiB", "--weights", "-1GiB")
    assert negative.exit_code == BAD_INPUT


def test_a_side_of_a_comparison_keeps_its_own_options():
    sides = ("llama-3.1-8b --tp 2", "llama-3.1-8b")
    result = run("diff", *sides, "--tp", "8", "--memory", "20GiB")
    (line,) = (line for line in result.stdout.splitlines() if line.startswith(" TP"))
    assert line.split()[1:3] == ["2", "8"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("llama-3.1-8b --tp 2", "--memory", "20GiB"), ["two sides", "'20GiB'"]),
        (("llama-3.1-8b --foo", "--tp 2", "--memory", "2GiB"), ["--foo", "'kvplan plan --help'"]),
    ],
)
def test_errors_of_a_comparison(args, words):
    result = run("diff", *args)
    assert result.exit_code == BAD_INPUT
    for word in words:
        assert word in result.stderr


def test_a_directory_hidden_by_a_built_in_model(tmp_path):
    (tmp_path / "llama-3.1-8b").mkdir()
    for command in ("plan", "sweep"):
        hidden = execute(command, *LLAMA, cwd=tmp_path)
        assert hidden.returncode == FITS
        assert "./llama-3.1-8b" in hidden.stderr
    assert execute("plan", *LLAMA).stderr == ""


@pytest.mark.parametrize("args", [("--json",), (), ("--help",)])
def test_a_reader_that_went_away_is_no_answer(args):
    command = execute_line("plan", *LLAMA, *args)
    # The reader is gone before anything is written.
    script = f"(sleep 0.3; exec {command}) | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, **surroundings()
    )
    assert result.returncode == BROKEN_PIPE
    assert result.stderr == ""


def test_a_name_that_the_encoding_lacks_is_escaped(tmp_path):
    folder = tmp_path / "mod\xe8le"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    result = execute(
        *("plan", folder, "--memory", "1GiB"), env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )
    assert result.returncode == FITS, result.stderr
    assert "mod\\xe8le" in result.stdout


def test_any_batch_fits_a_model_without_windows():
    result = run("fit", *LLAMA, "--find", "batch")
    assert "any fits" in result.stdout
    answer = answer_to("fit", *LLAMA, "--find", "batch")
    assert answer["any_fits"] is True
    limited = run("fit", "gemma-3-27b", "--memory", "15GiB", "--find", "batch", "--json")
    assert json.loads(limited.stdout)["any_fits"] is False


def test_gpus_that_dcp_and_the_heads_allow():
    def tried(*args):
        return answer_to("fit", *LLAMA, "--find", "gpus", *args)

    assert tried()["split"]["tensor_parallel_size"] == 1
    # 8 KV heads: two ranks share a sequence only where each head is there twice.
    dcp = tried("--dcp", "2")
    assert dcp["split"]["tensor_parallel_size"] == dcp["found"] == 16
    assert dcp["split"]["decode_context_parallel_size"] == 2


def test_gpus_of_all_stages():
    result = run("fit", "llama-3.1-70b", "--memory", "30GiB", "--find", "gpus", "--pp", "2")
    assert result.stdout.startswith("--tp 1 --pp 2: 2 GPUs, the fewest that hold ")


def test_what_would_be_enough_is_said_in_the_terms_given():
    args = ("fit", "llama-3.1-8b", "--gpu", "24GiB", "--weights", "16GB", "--concurrency", "9999")
    result = run(*args, "--find", "gpus")
    assert result.exit_code == DOES_NOT_FIT
    assert "a larger --gpu" in result.stderr
    assert "--memory" not in result.stderr
    assert "9,999 requests of 131,072 tokens" in result.stderr
    assert "64" not in result.stderr.partition("(")[0]


def test_a_pipe_gets_no_trailing_blanks():
    for args in (("plan", *LLAMA), ("models",), ("explain", "gemma-3-27b")):
        lines = execute(*args).stdout.splitlines()
        assert len(lines) > 5
        assert [line for line in lines if line != line.rstrip()] == []


def test_one_is_singular(tmp_path):
    summary = run("sweep", *LLAMA, "-o", tmp_path / "rows.csv").stderr
    assert "1 row in " in summary
    (tmp_path / "plan.json").write_text(run("plan", *LLAMA, "--json").stdout)
    assert "1 worker, " in run("check", tmp_path / "plan.json").stdout


def test_a_request_that_cannot_be_written_is_named_as_asked_for(tmp_path):
    path = tmp_path / "nowhere" / "request.json"
    result = run("plan", *LLAMA, "--write-request", path)
    assert result.exit_code == BAD_INPUT
    assert f"--write-request {path}: No such file" in result.stderr
    assert ".partial" not in result.stderr


def recorded(tmp_path, *args):
    """The specs and the config that a command line comes to."""
    path = tmp_path / "request.json"
    result = run("plan", *args, "--memory", "40GiB", "--write-request", path)
    assert result.exit_code == FITS, result.stderr
    request = json.loads(path.read_text())
    return request["specs"], request["config"]


def test_dtypes_of_states(tmp_path):
    def dtypes(*args):
        specs, _ = recorded(tmp_path, "jamba-1.5-large", "--tp", "8", *args)
        return next(spec["dtypes"] for spec in specs if spec["kind"] == "MambaSpec")

    assert dtypes() == ["bfloat16", "bfloat16"]
    assert dtypes("--mamba-ssm-cache-dtype", "float32") == ["bfloat16", "float32"]
    assert dtypes("--mamba-cache-dtype", "float32") == ["float32", "float32"]
    both = ("--mamba-cache-dtype", "float32", "--mamba-ssm-cache-dtype", "bfloat16")
    assert dtypes(*both) == ["float32", "bfloat16"]


def test_block_size_of_states(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(recorded_config("MambaForCausalLM")))
    (spec,), _ = recorded(tmp_path, config, "--enable-prefix-caching", "--mamba-block-size", "64")
    assert spec["block_size"] == 64
    refused = run("plan", config, "--memory", "40GiB", "--mamba-block-size", "64")
    assert refused.exit_code == BAD_INPUT
    assert "mamba_block_size 64 needs --enable-prefix-caching" in refused.stderr


def test_layers_that_are_not_quantized(tmp_path):
    quantized = ("llama-3.1-8b", "--kv-cache-dtype", "fp8")
    specs, _ = recorded(tmp_path, *quantized, "--kv-cache-dtype-skip-layers", "0,1")
    assert sorted(spec["dtype"] for spec in specs) == ["bfloat16", "uint8"]
    refused = run("plan", *LLAMA, "--kv-cache-dtype-skip-layers", "first")
    assert refused.exit_code == BAD_INPUT
    assert "'first' is not a list of layer indices and sliding_window, e.g. 0,1" in refused.stderr


def test_without_async_scheduling_one_step_is_in_flight(tmp_path):
    def in_flight(*args):
        _, config = recorded(tmp_path, "llama-3.1-8b", *args)
        planned = kvplan.PlanningConfig(**config)
        return planned.max_concurrent_batches, planned.max_in_flight_tokens

    assert in_flight("--async-scheduling") == in_flight() == (2, 16384)
    assert in_flight("--no-async-scheduling") == (1, 8192)
    assert in_flight("--no-async-scheduling", "--pp", "2") == (2, 16384)


def test_asynchronous_scheduling_of_a_recorded_request(tmp_path):
    path = tmp_path / "request.json"
    recorded(tmp_path, "llama-3.1-8b", "--pp", "2")

    def in_flight(*args):
        answer = answer_to("plan", "--request", path, *args)
        planned = kvplan.PlanningConfig(**answer["config"])
        return planned.max_concurrent_batches, planned.max_in_flight_tokens

    assert in_flight() == in_flight("--async-scheduling") == (3, 24576)
    assert in_flight("--no-async-scheduling") == (2, 16384)
    assert in_flight("--no-async-scheduling", "--max-concurrent-batches", "4") == (4, 32768)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "qwen3-8b", "--memory", "9GiB", "--concurrency", "0.5"), "integer"),
        (("sweep", "qwen3-8b", "--memory", "9GiB", "--jobs", "x"), "integer"),
        (("bench", "--budget", "x"), "number"),
        (
            ("plan", "qwen3-8b", "--gpu", "H100", "--weights", "1GB")
            + ("--gpu-memory-utilization", "x"),
            "number",
        ),
    ],
)
def test_what_is_no_number_is_not_called_a_range(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"is not a valid {said}." in result.stderr
