"""``kvplan models``."""

import pytest
from cli_runner import answer_to, execute, run

from kvplan.offline import models
from kvplan.offline.cli.sizes import format_token_count, parse_token_count


def test_table_names_every_model():
    result = run("models")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0] in models.builtin_models()] == (
        models.builtin_models()
    )
    cells = next(row for row in rows if row and row[0] == "llama-3.1-8b")
    assert cells[1:] == ["LlamaForCausalLM", "32", "1", "128K", "128", "KiB", "0", "B"]


def test_sizes_are_sorted_by_value():
    names = models.builtin_models()
    llamas = [name for name in names if name.startswith("llama-3.1-")]
    assert llamas == ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]
    assert names.index("qwen3-8b") < names.index("qwen3-32b")


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_breaks_no_name(width):
    result = execute("models", env={"COLUMNS": str(width)})
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= width
    numbers = lines[lines.index("llama-3.1-8b, LlamaForCausalLM") + 1]
    assert numbers.split() == ["32", "1", "128K", "128", "KiB", "0", "B"]
    for row in answer_to("models"):
        assert f"{row['name']}, {row['architecture']}" in lines


def test_json():
    rows = answer_to("models")
    assert [row["name"] for row in rows] == models.builtin_models()
    llama = next(row for row in rows if row["name"] == "llama-3.1-70b")
    # 80 layers of keys and values, 8 heads of 128 elements of 2 bytes.
    assert llama["bytes_per_token"] == 80 * 2 * 8 * 128 * 2
    assert llama["fixed_bytes_per_request"] == 0


def test_architectures():
    result = run("models", "--architectures")
    assert result.stdout.split() == models.known_architectures()
    assert answer_to("models", "--architectures") == (models.known_architectures())


def test_lengths_are_short_and_exact():
    lengths = {
        448: "448",
        40960: "40K",
        131072: "128K",
        1 << 20: "1M",
        10 << 20: "10M",
        1000: "1,000",
    }
    for tokens, text in lengths.items():
        assert format_token_count(tokens) == text
        assert parse_token_count(text) == tokens
