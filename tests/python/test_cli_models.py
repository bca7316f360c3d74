"""``kvplan models``."""

import json

from cli_runner import run

from kvplan import models


def test_table_names_every_model():
    result = run("models")
    assert result.exit_code == 0
    for name in models.builtin_models():
        assert name in result.stdout


def test_json():
    rows = json.loads(run("models", "--json").stdout)
    assert [row["name"] for row in rows] == models.builtin_models()
    llama = next(row for row in rows if row["name"] == "llama-3.1-70b")
    # 80 layers of keys and values, 8 heads of 128 elements of 2 bytes.
    assert llama["bytes_per_token"] == 80 * 2 * 8 * 128 * 2
    assert llama["fixed_bytes_per_request"] == 0


def test_architectures():
    result = run("models", "--architectures")
    assert result.stdout.split() == models.known_architectures()
    assert json.loads(run("models", "--architectures", "--json").stdout) == (
        models.known_architectures()
    )
