"""``--preset`` and ``--print-config``; shell completion."""

import pytest
from cli_runner import answer_to, execute, run

from kvplan.offline.cli.failures import BAD_INPUT, FITS

ARGS = (
    "llama-3.1-70b",
    "--tp",
    "4",
    "--memory",
    "40GiB",
    "--max-model-len",
    "64K",
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 3}',
    "--no-enable-prefix-caching",
)


def test_round_trip(tmp_path):
    preset = tmp_path / "preset.toml"
    printed = run("plan", *ARGS, "--print-config")
    assert printed.exit_code == FITS, printed.stderr
    preset.write_text(printed.stdout)
    expected = run("plan", *ARGS, "--json")
    assert expected.exit_code == FITS
    assert run("plan", "--preset", preset, "--json").stdout == expected.stdout
    again = run("plan", "--preset", preset, "--print-config")
    assert again.stdout == printed.stdout


def test_the_command_line_wins(tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text('model = "llama-3.1-70b"\nmemory = "40GiB"\ntp = 4\n')
    answer = answer_to("plan", "--preset", preset, "--tp", "8")
    assert answer["config"]["tensor_parallel_size"] == 8
    other = answer_to("plan", "gpt-oss-120b", "--preset", preset)
    assert other["model"] == "gpt-oss-120b"


def test_several_sizes(tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text('model = "llama-3.1-70b"\nmemory = ["80GiB", "60GiB"]\npp = 2\n')
    answer = answer_to("plan", "--preset", preset)
    assert [w["available_bytes"] >> 30 for w in answer["workers"]] == [80, 60]


def test_sweep(tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text(
        'models = ["gemma-3-27b", "gpt-oss-120b"]\nmemory = ["40GiB", "60GiB"]\ntp = [1, 2]\n'
        'max-model-len = "8K:16K:8K"\nquiet = true\njobs = 1\n'
    )
    rows = run("sweep", "--preset", preset).stdout
    asked = ("--memory", "40GiB,60GiB", "--tp", "1,2", "--max-model-len", "8K:16K:8K")
    assert rows == run("sweep", "gemma-3-27b", "gpt-oss-120b", *asked, "--quiet", "-j", "1").stdout
    assert len(rows.splitlines()) == 1 + 2 * 2 * 2 * 2
    printed = run("sweep", "--preset", preset, "--print-config")
    assert printed.exit_code == FITS, printed.stderr
    again = tmp_path / "again.toml"
    again.write_text(printed.stdout)
    assert run("sweep", "--preset", again).stdout == rows
    fewer = run("sweep", "gemma-3-27b", "--preset", preset, "--tp", "4").stdout.splitlines()
    assert len(fewer) == 1 + 2 * 2
    assert all(row.startswith("gemma-3-27b,4,") for row in fewer[1:])
    preset.write_text('models = "gemma-3-27b"\nmemory = "40GiB"\n')
    assert len(run("sweep", "--preset", preset, "--quiet").stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("tp = ", "not a TOML file"),
        ("memroy = '1GiB'", "Did you mean memory?"),
        ("memory = '12 parsecs'", "'parsecs'"),
        ("tp = 0", "--tp"),
    ],
)
def test_bad_presets(tmp_path, text, word):
    preset = tmp_path / "preset.toml"
    preset.write_text(text)
    result = run("plan", "llama-3.1-70b", "--preset", preset)
    assert result.exit_code == BAD_INPUT
    assert word in result.stderr


def test_absent_preset():
    result = run("plan", "--preset", "absent.toml")
    assert result.exit_code == BAD_INPUT
    assert "absent.toml" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell):
    result = run("completion", shell)
    assert result.exit_code == FITS
    assert "_KVPLAN_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kvplan pl", {"plan"}),
        ("kvplan plan gemma-3-2", {"gemma-3-27b"}),
        ("kvplan plan --kv-cache-d", {"--kv-cache-dtype", "--kv-cache-dtype-skip-layers"}),
        ("kvplan plan --layout BL", {"BLHNC", "BLNHC"}),
        ("kvplan fit --find m", {"memory"}),
    ],
)
def test_completion(words, expected):
    env = {
        "_KVPLAN_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    lines = execute(env=env).stdout.splitlines()
    assert {line.partition(",")[2] for line in lines} == expected
