"""``kvplan plan``: what it prints, what it refuses, and how."""

import json
import re
import subprocess

import pytest
from cli_runner import answer_to, execute, execute_line, run, surroundings

import kvplan
from kvplan.offline import models
from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS, wrapped

LLAMA = ("plan", "llama-3.1-70b", "--tp", "4", "--memory", "40GiB")
GEMMA = ("plan", "gemma-3-27b", "--memory", "30GiB")


def plan_of(name, memory, **options):
    found = models.kv_cache_specs(name, models.ModelOptions(**options))
    return kvplan.plan(
        found.planning_config(), found.kv_cache_specs, [memory] * len(found.kv_cache_specs)
    )


def plan(*args):
    """The JSON of ``kvplan plan`` for a plan that fits."""
    return answer_to("plan", *args)


@pytest.fixture
def config_file(tmp_path):
    """A small config.json; call it with keys to replace."""

    def write(**changes):
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_hidden_layers": 4,
            "max_position_embeddings": 4096,
            "torch_dtype": "bfloat16",
        }
        config.update(changes)
        path = tmp_path / "config.json"
        path.write_text(
            json.dumps({key: value for key, value in config.items() if value is not None})
        )
        return path

    return write


def test_table_and_figures():
    result = run(*GEMMA, "--tp", "2")
    plan = plan_of("gemma-3-27b", 30 << 30, tensor_parallel_size=2)
    assert result.exit_code == FITS, result.stderr
    assert result.stderr == ""
    assert f"{plan.num_blocks:,} of 640 KiB" in result.stdout
    assert f"{plan.capacity_tokens:,} by vLLM's figure" in result.stdout
    assert f"{plan.usable_capacity_tokens:,} usable" in result.stdout
    assert f"{plan.max_concurrency:,.2f} of 131,072 tokens" in result.stdout
    assert f"{plan.steady_capacity_tokens:,} tokens" in result.stdout
    assert "sliding window of 1,024" in result.stdout
    assert "full attention (5-59 by 6)" in result.stdout
    assert "3.99 GiB fixed from 17,393 tokens on + 40 KiB per token" in result.stdout
    assert "Limited by" in result.stdout
    assert "--kv-cache-dtype fp8" in result.stdout


def test_json_holds_the_plan():
    result = run(*GEMMA, "--json")
    plan = plan_of("gemma-3-27b", 30 << 30)
    answer = json.loads(result.stdout)
    assert result.exit_code == FITS
    assert answer["fits"] is True
    for name in ("num_blocks", "max_concurrency", "capacity_tokens", "request_bytes"):
        assert answer[name] == getattr(plan, name)
    assert [g["layer_names"] for g in answer["groups"]] == [
        list(g.layer_names) for g in plan.groups
    ]
    assert sum(g["pages_per_request"] for g in answer["groups"]) == answer["request_blocks"]


def test_vllms_long_names_are_taken():
    vllm = ("--tensor-parallel-size", "4", "--pipeline-parallel-size", "2")
    memory = ("--kv-cache-memory-bytes", "10GiB")
    short = ("--tp", "4", "--pp", "2", "--memory", "10GiB")
    answers = [run("plan", "llama-3.1-70b", *o, "--json") for o in ((*vllm, *memory), short)]
    assert answers[0].exit_code == FITS, answers[0].stderr
    assert answers[0].stdout == answers[1].stdout


def test_a_memory_without_a_unit_is_questioned():
    result = run("plan", "llama-3.1-70b", "--memory", "40")
    assert result.exit_code == BAD_INPUT
    assert "40GiB" in result.stderr
    assert "40B if bytes are meant" in result.stderr


def test_errors_break_between_words_on_a_terminal():
    error = run("plan", "gemma-3-27b", "--memory", "12GiB").stderr.rstrip("\n")
    lines = wrapped(error, 60).split("\n")
    assert max(map(len, lines)) <= 60
    assert " ".join(wrapped(error, 60).split()) == " ".join(error.split())
    assert "  --max-model-len 52720: fits, for one request at a time" in lines


def test_no_command_shows_the_help():
    result = run()
    assert result.exit_code == BAD_INPUT
    assert result.stderr.startswith("Usage: ")


def test_a_models_family_finds_the_model():
    result = run("plan", "jamba", "--memory", "40GiB")
    assert result.exit_code == BAD_INPUT
    assert "Did you mean jamba-1.5-large?" in result.stderr


def test_another_grouping_says_what_it_came_to():
    def line(*args):
        lines = run("plan", *args).stdout.splitlines()
        return [text for text in lines if text.startswith("Grouping ")]

    (compact,) = line("gemma-3-27b", "--memory", "40GiB", "--grouping", "compact")
    assert "13 groups of at most 5 layers, 17.31 GiB" in compact
    (sliced,) = line(*LLAMA[1:], "--grouping", "sliced")
    assert "nothing to cut" in sliced
    assert line("gemma-3-27b", "--memory", "40GiB") == []


def test_the_knob_keeps_its_promise():
    answer = answer_to(*GEMMA)
    assert answer["knobs"]
    for knob in answer["knobs"]:
        changed = answer_to(*GEMMA, *knob["option"].split())
        assert changed["max_concurrency"] == pytest.approx(knob["max_concurrency"])
        assert changed["max_concurrency"] > answer["max_concurrency"]


def test_fitted_length():
    result = run("plan", "gemma-3-27b", "--memory", "3GiB", "--max-model-len", "auto", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == FITS
    assert answer["max_model_len"] == 5600
    assert answer["requested_max_model_len"] == 131072
    explicit = ("plan", "gemma-3-27b", "--memory", "3GiB", "--max-model-len")
    assert run(*explicit, "5600").exit_code == FITS
    assert run(*explicit, "5601").exit_code == DOES_NOT_FIT


def test_does_not_fit():
    result = run("plan", "gemma-3-27b", "--memory", "3GiB")
    assert result.exit_code == DOES_NOT_FIT
    assert result.stdout == ""
    start = "kvplan: gemma-3-27b does not fit: a request of 131,072 tokens holds 17.98 GiB of"
    assert result.stderr.startswith(start)
    assert "--max-model-len 5600" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_memory_it_names_is_enough():
    small = ("plan", "gemma-3-27b", "--memory")
    knobs = json.loads(run(*small, "3GiB", "--json").stdout)["knobs"]
    memory = next(k for k in knobs if k.startswith("--memory ")).split()[1].rstrip(":")
    assert run(*small, memory).exit_code == FITS
    assert run(*small, f"{float(memory.removesuffix('GiB')) - 0.01}GiB").exit_code == DOES_NOT_FIT


def test_batch_knob_of_a_window_model():
    args = ("plan", "gemma-3-27b", "--memory", "18GiB", "--max-num-batched-tokens", "16K")
    failed = run(*args, "--json")
    assert failed.exit_code == DOES_NOT_FIT
    knobs = json.loads(failed.stdout)["knobs"]
    batch = next(k for k in knobs if k.startswith("--max-num-batched")).split()[1].rstrip(":")
    assert run(*args, "--max-num-batched-tokens", batch).exit_code == FITS
    assert run(*args, "--max-num-batched-tokens", str(int(batch) + 16)).exit_code == DOES_NOT_FIT


def test_override_is_the_limit():
    result = run("plan", "llama-3.1-70b", "--num-gpu-blocks-override", "100", "--memory", "40GiB")
    assert result.exit_code == DOES_NOT_FIT
    assert "num_gpu_blocks_override=100" in result.stderr
    assert "--memory" not in result.stderr


def test_memory_per_stage_and_per_worker():
    args = ("plan", "llama-3.1-70b", "--tp", "2", "--pp", "2", "--json", "--memory")
    by_stage = json.loads(run(*args, "40GiB,30GiB").stdout)
    each = json.loads(run(*args, "40GiB,40GiB,30GiB,30GiB").stdout)
    assert [w["available_bytes"] >> 30 for w in by_stage["workers"]] == [40, 40, 30, 30]
    assert by_stage == each
    assert by_stage["limiting_worker"] == 2
    wrong = run(*args, "1GiB,2GiB,3GiB")
    assert wrong.exit_code == BAD_INPUT
    assert "3 sizes" in wrong.stderr


def test_concurrent_batches():
    for batches in (1, 3):
        args = (*GEMMA, "--max-concurrent-batches", str(batches), "--json")
        plan = json.loads(run(*args, "--max-num-batched-tokens", "1K").stdout)
        assert plan["config"]["max_in_flight_tokens"] == 1024 * batches


def test_compact_grouping_option():
    vllm = answer_to(*GEMMA)
    compact = answer_to(*GEMMA, "--grouping", "compact")
    assert compact["request_bytes"] < vllm["request_bytes"]
    limited = run(*GEMMA, "--grouping", "compact", "--max-groups", "7", "--json")
    assert len(json.loads(limited.stdout)["groups"]) <= 7


def test_config_file_and_directory(config_file):
    path = config_file()
    for model in (path, path.parent):
        assert run("plan", model, "--memory", "1GiB").exit_code == FITS


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("plna",), ["no command 'plna'", "Did you mean plan?"]),
        (("plan",), ["give a model", "kvplan models"]),
        (("plan", "llama-3.1-70b"), ["--memory 60GiB"]),
        (("plan", "lama-3.1-70b", "--memory", "1GiB"), ["Did you mean llama-3.1-70b?"]),
        (("plan", "llama-3.1-70b", "--memory", "12 parsecs"), ["--memory", "'parsecs'", "60GiB"]),
        (("plan", "llama-3.1-70b", "--memory", "0"), ["--memory", "less than one byte"]),
        (("plan", "llama-3.1-70b", "--memroy", "1GiB"), ["--memroy", "--memory"]),
        ((*LLAMA, "--tp", "0"), ["--tp", "0"]),
        ((*LLAMA, "--tp", "128"), ["128", "64"]),
        ((*LLAMA, "--pp", "81"), ["pipeline_parallel_size 81", "80 layers"]),
        ((*LLAMA, "--pp", "2000000000"), ["pipeline_parallel_size 2000000000"]),
        ((*LLAMA, "--dcp", "3"), ["3"]),
        ((*LLAMA, "--max-model-len", "many"), ["'many'", "131072"]),
        ((*LLAMA, "--max-model-len", "0"), ["out of range"]),
        ((*LLAMA, "--block-size", "-16"), ["--block-size", "-16"]),
        ((*LLAMA, "--layout", "NBHC"), ["Did you mean", "BLNHC"]),
        ((*LLAMA, "--grouping", "compat"), ["Did you mean compact?"]),
        ((*LLAMA, "--kv-cache-dtype", "fp9"), ["fp9", "fp8"]),
        ((*LLAMA, "--attention-backend", "FLASHINFR"), ["Did you mean FLASHINFER?"]),
        ((*LLAMA, "--speculative-config", "mtp"), ["not JSON", "num_speculative_tokens"]),
        ((*LLAMA, "--speculative-config", "[1]"), ["not an object"]),
    ],
)
def test_bad_input(args, words):
    result = run(*args)
    assert result.exit_code == BAD_INPUT, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("kvplan: ")
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_bad_config(config_file):
    result = run("plan", config_file(hidden_size=None, model_type="own"), "--memory", "1GiB")
    assert result.exit_code == BAD_INPUT, result.stdout
    assert len(result.stderr.strip().splitlines()) == 1
    assert "no 'hidden_size'" in result.stderr


def test_model_without_a_cache(config_file):
    path = config_file(architectures=["MambaForCausalLM"], model_type="mamba", state_size=16)
    result = run("plan", path, "--memory", "1GiB")
    assert result.exit_code in (FITS, BAD_INPUT)
    assert "internal error" not in result.stderr


def test_executable_on_a_pipe_prints_no_colour():
    result = execute(*LLAMA)
    assert result.returncode == FITS, result.stderr
    assert "\x1b" not in result.stdout
    assert "full attention (0-79)" in result.stdout
    assert execute("plan", "llama-3.1-70b", "--memory", "1GiB").returncode == DOES_NOT_FIT
    assert execute("plan", "nothing").returncode == BAD_INPUT


def test_colours_on_a_terminal_only():
    forced = execute(*LLAMA, env={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert "\x1b[" in forced.stdout
    quiet = execute(*LLAMA, env={"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b[3" not in quiet.stdout


def test_reader_that_goes_away():
    command = execute_line(*LLAMA, "--json")
    script = f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, **surroundings()
    )
    assert result.stdout == "{"
    assert result.stderr == ""


MTP = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
DSPARK = ("--speculative-config", '{"method": "dspark", "num_speculative_tokens": 3}')


def test_layers_of_a_drafter_are_labelled_apart():
    plain = run("plan", "deepseek-v3", "--tp", "8", "--memory", "40GiB")
    assert "MLA (0-60) " in plain.stdout
    drafted = run("plan", "deepseek-v3", "--tp", "8", "--memory", "40GiB", *MTP)
    assert "MLA (0-60; drafter 61) " in drafted.stdout
    words = " ".join(run("explain", "deepseek-v3", "--tp", "8", *MTP).stdout.split())
    assert "Group 0 with 62 layers (0-60; drafter 61) of MLA:" in words


def test_groups_alike_say_how_many_of_their_layers_are_a_drafters():
    words = " ".join(run("explain", "deepseek-v4.1-flash", "--tp", "4", *DSPARK).stdout.split())
    assert "Groups 0-2, each with 6 layers (1 of 6 a drafter's) of MLA, sliding window" in words
    assert "Groups 3-7, each with 5 layers of MLA, sliding window" in words


def test_a_longer_context_is_what_is_gained():
    knobs = plan("gemma-3-27b", "--memory", "12GiB", "--max-model-len", "auto")["knobs"]
    fp8 = next(knob for knob in knobs if knob["option"] == "--kv-cache-dtype fp8")
    assert fp8["gain"] == pytest.approx(fp8["max_model_len"] / 52720 - 1)
    assert f"{fp8['gain']:+.0%}" == "+149%"


def test_groups_of_a_kind_limit_together():
    text = run("plan", "gemma-3-27b", "--memory", "12GiB", "--max-model-len", "auto").stdout
    assert "Limited by   sliding window of 1,024 (groups 0-3, 4-5), 66% of a request" in text


def test_an_override_beyond_the_memory_is_warned_of():
    args = ("gemma-3-27b", "--memory", "12GiB", "--num-gpu-blocks-override")
    warned = plan(*args, "50000")["warnings"]
    assert any("takes 61.04 GiB of a GPU, more than the 12 GiB" in text for text in warned)
    assert not any(
        "of a GPU" in text for text in plan(*args, "9000", "--max-model-len", "8K")["warnings"]
    )


def test_no_advice_that_the_memory_does_not_hold():
    result = run("plan", "gemma-3-27b", "--memory", "12GiB", "--num-gpu-blocks-override", "500")
    assert "of the 14727 blocks needed the memory holds 9830" in result.stderr
    assert "raise it" not in result.stderr
    assert "without --num-gpu-blocks-override" not in result.stderr
    enough = run("plan", "gemma-3-27b", "--memory", "20GiB", "--num-gpu-blocks-override", "500")
    assert "raise it to at least 14727" in enough.stderr
    assert "without --num-gpu-blocks-override: fits" in enough.stderr


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--disable-hybrid-kv-cache-manager",), "without --disable-hybrid-kv-cache-manager"),
        ((), "--no-async-scheduling"),
    ],
)
def test_options_that_hurt_are_advised_against(options, advice):
    knobs = plan("gemma-3-27b", "--memory", "70GiB", *options)["knobs"]
    assert advice in [knob["option"] for knob in knobs]
    assert all(knob["gain"] >= 0.03 for knob in knobs)


def test_ranks_that_hold_copies_are_advised_to_share():
    knobs = plan("deepseek-v3", "--memory", "30GiB", "--tp", "8")["knobs"]
    best = next(knob for knob in knobs if knob["option"] == "--dcp 8")
    assert best["gain"] > 6


def test_replicas_hold_what_one_engine_holds_each():
    args = ("gemma-3-27b", "--memory", "30GiB")
    two = plan(*args, "--dp", "2")
    assert two["replicas"] == 2
    assert two["max_concurrency"] == plan(*args)["max_concurrency"]
    assert "2 engines with such a cache each; together 2 whole requests" in " ".join(
        run("plan", *args, "--dp", "2").stdout.split()
    )


def test_options_of_a_server_that_change_no_cache_are_taken():
    args = ("qwen3-235b-a22b", "--tp", "8", "--memory", "40GiB")
    server = ("--enable-expert-parallel", "--max-num-seqs", "64", "--enforce-eager")
    more = plan(
        "qwen3-235b-a22b",
        "--tp",
        "8",
        "--kv-cache-memory",
        "40GiB",
        *server,
        "--quantization",
        "fp8",
    )
    assert more["num_blocks"] == plan(*args)["num_blocks"]


def test_what_is_said_to_fit_does():
    text = run("plan", "llama-3.1-70b", "--tp", "4", "--memory", "40GiB").stdout
    assert "4.00 of 131,072 tokens at once (vLLM's figure), 3 of them whole" in text
    assert "Steady       3.99 requests" in text


def test_weights_that_fill_the_gpu_are_answered_with_a_split_that_holds_a_request():
    args = ("llama-3.1-70b", "--gpu", "H100", "--weights", "141GB")
    refused = run("plan", *args)
    assert refused.exit_code == DOES_NOT_FIT
    advice = re.search(r"; (--[a-z0-9 -]+) holds a request of the full length", refused.stderr)
    assert advice is not None, refused.stderr
    assert plan(*args, *advice[1].split())["max_concurrency"] >= 1
    hopeless = run("plan", "llama-3.1-70b", "--gpu-memory", "2GiB", "--weights", "14100GB")
    assert "no number of GPUs that is tried" in hopeless.stderr
