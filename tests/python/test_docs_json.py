"""Every ``--json`` answer is what docs/answers.schema.json says."""

import json
from pathlib import Path

import pytest
from cli_runner import answer_to, run
from jsonschema import Draft202012Validator
from test_docs_commands import load_script

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json.loads((DOCS / "answers.schema.json").read_text())

GEMMA = ("gemma-3-27b", "--memory", "30GiB")
SMALL = ("gemma-3-27b", "--memory", "3GiB")
SLICED = ("deepseek-v4.1-flash", "--tp", "4", "--memory", "20GiB", "--grouping", "sliced")
GOAL = ("--workload", "chat:requests=20", "--max-first-token", "9")
WHISPER = ("whisper-large-v3", "--memory", "20GiB")


def broken(definition, answer):
    """What is wrong with an answer."""
    schema = {**SCHEMA, "$ref": f"#/$defs/{definition}"}
    Draft202012Validator.check_schema(schema)
    return [error.message for error in Draft202012Validator(schema).iter_errors(answer)]


@pytest.mark.parametrize(
    ("definition", "command"),
    [
        ("plan", ("plan", *GEMMA)),
        ("plan", ("plan", *SLICED)),
        ("plan", ("plan", *WHISPER, "--dp", "2")),
        ("refusal", ("plan", *SMALL)),
        ("fit", ("fit", *GEMMA, "--concurrency", "4")),
        ("fit", ("fit", "gemma-3-27b", "--find", "memory")),
        ("fit", ("fit", *GEMMA, "--find", "gpus", "--concurrency", "8")),
        ("fit", ("fit", *GEMMA, "--find", "batch")),
        ("fit", ("fit", "gemma-3-27b", "--memory", "1MiB", "--find", "gpus")),
        ("explain", ("explain", "gemma-3-27b")),
        ("explain", ("explain", *WHISPER)),
        ("explain", ("explain", *SLICED)),
        ("frontier", ("frontier", "gemma-3-27b")),
        ("frontier", ("frontier", "deepseek-v4-flash", "--memory", "40GiB")),
        ("diff", ("diff", "gemma-3-27b", "--tp 2", "--memory", "30GiB")),
        ("diff", ("diff", "gemma-3-27b", "--tp 2", "--memory", "3GiB")),
        ("replay", ("replay", "chat:requests=20", *GEMMA)),
        ("plan", ("plan", *GEMMA, "--max-model-len", "32K", "--workload", "chat:requests=20")),
        ("frontier", ("frontier", *GEMMA, "--workload", "chat:requests=20")),
        ("fit", ("fit", *GEMMA, "--workload", "chat:requests=20")),
        ("fit", ("fit", *GEMMA, "--find", "gpus", *GOAL)),
        ("offers", ("fit", "qwen3-8b", "--gpu", "H100", "--users", "9", *GOAL[:2])),
        ("models", ("models",)),
        ("serve_line", ("serve-line", *SMALL)),
    ],
)
def test_the_answer_is_what_the_schema_says(definition, command):
    answer = json.loads(run(*command, "--json").stdout)
    assert broken(definition, answer) == []


def test_a_measurement_is_what_the_schema_says():
    args = ("bench", "gemma-3-27b", "--workers", "1", "--work", "planning", "--budget", "0.01")
    answer = answer_to(*args, "--no-vllm", "--quiet")
    assert answer["rows"]
    assert broken("bench", answer) == []


def test_broken_rules_are_what_the_schema_says(tmp_path):
    plan = answer_to("plan", *GEMMA)
    del plan["placement"]["workers"][0]["layers"][0]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    violations = json.loads(run("check", path, "--json").stdout)
    assert violations
    assert broken("check", violations) == []


def test_rows_of_a_sweep_are_what_the_schema_says(tmp_path):
    path = tmp_path / "rows.json"
    for args in (("--memory", "1GiB,30GiB", "--max-model-len", "8K,auto"), ("--gpu", "H100")):
        run("sweep", "gemma-3-27b", *args, "--weights", "54GB", "-o", path)
        rows = json.loads(path.read_text())
        assert broken("sweep", rows) == []
        assert list(rows[0]) == SCHEMA["$defs"]["row"]["required"]
    load = ("--workload", "chat:requests=20", "--memory", "1GiB,30GiB")
    run("sweep", "gemma-3-27b", *load, "-o", path)
    rows = json.loads(path.read_text())
    assert broken("sweep", rows) == []
    assert list(rows[0]) == list(SCHEMA["$defs"]["row"]["properties"])


def test_a_wrong_answer_is_noticed():
    answer = answer_to("models")
    answer[0]["surprise"] = 1
    answer[1]["layers"] = "many"
    del answer[2]["groups"]
    assert len(broken("models", answer)) == 3


def test_the_page_is_made_from_the_schema():
    page = load_script().answers(SCHEMA["$defs"])
    assert all(f"`{field}`" in page for field in SCHEMA["$defs"]["plan"]["properties"])
