"""``kvplan plan --request`` and ``--write-request``."""

import json

from cli_runner import run

from kvplan.offline.cli.failures import BAD_INPUT, FITS

GEMMA = ("plan", "gemma-3-27b", "--memory", "30GiB")


def test_request_round_trip(tmp_path):
    request = tmp_path / "request.json"
    first = run(*GEMMA, "--write-request", request, "--json")
    second = run("plan", "--request", request, "--json")
    assert first.exit_code == second.exit_code == FITS, second.stderr
    a, b = json.loads(first.stdout), json.loads(second.stdout)
    for name in ("num_blocks", "groups", "workers", "request_bytes", "max_concurrency", "config"):
        assert a[name] == b[name]
    smaller = run("plan", "--request", request, "--memory", "3GiB", "--max-model-len", "auto")
    assert smaller.exit_code == FITS
    assert "5,600 tokens fit" in smaller.stdout


def test_request_refuses_model_options(tmp_path):
    request = tmp_path / "request.json"
    run(*GEMMA, "--write-request", request)
    result = run("plan", "--request", request, "--tp", "2")
    assert result.exit_code == BAD_INPUT
    assert "--tp" in result.stderr
    both = run("plan", "gemma-3-27b", "--request", request)
    assert both.exit_code == BAD_INPUT
    assert "not both" in both.stderr


def test_absent_and_malformed_requests(tmp_path):
    absent = run("plan", "--request", tmp_path / "absent.json")
    assert absent.exit_code == BAD_INPUT
    assert "absent.json" in absent.stderr
    path = tmp_path / "request.json"
    for text, word in (("{", "not a JSON request"), ('{"kvplan_request": 2}', "version 1")):
        path.write_text(text)
        result = run("plan", "--request", path)
        assert result.exit_code == BAD_INPUT
        assert word in result.stderr
