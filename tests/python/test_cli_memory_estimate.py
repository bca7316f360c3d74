"""``--gpu``, ``--weights`` and ``--overhead``: the memory as an estimate, marked as one."""

import json
import shutil
from importlib import resources

import pytest
from cli_runner import run

from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.cli.gpus import GPUS, find_gpu
from kvplan.offline.cli.weights import weights_bytes

LLAMA = ("plan", "llama-3.1-70b")


@pytest.fixture
def snapshot(tmp_path):
    """A model's directory without weights."""
    source = resources.files("kvplan.offline.models") / "configs" / "llama-3.1-70b.json"
    with resources.as_file(source) as path:
        shutil.copy(path, tmp_path / "config.json")
    return tmp_path


def test_sum_and_mark():
    result = run(*LLAMA, "--tp", "4", "--gpu", "H100", "--weights", "141GB", "--json")
    assert result.exit_code == FITS, result.stderr
    answer = json.loads(result.stdout)
    expected = int(GPUS["H100"].memory_bytes * 0.9) - -(-141 * 10**9 // 4) - (3 << 30)
    assert [w["available_bytes"] for w in answer["workers"]] == [expected] * 4
    assert "ESTIMATED" in answer["facts"]["memory"]
    table = run(*LLAMA, "--tp", "4", "--gpu", "H100", "--weights", "141GB")
    assert "ESTIMATED" in table.stdout


def test_every_part_counts():
    args = (*LLAMA, "--tp", "4", "--weights", "141GB", "--gpu")
    first = json.loads(run(*args, "96GiB", "--json").stdout)["workers"][0]["available_bytes"]
    more = ("--gpu-memory-utilization", "0.95", "--overhead", "2GiB")
    second = json.loads(run(*args, "96GiB", *more, "--json").stdout)["workers"][0]
    gained = int((96 << 30) * 0.95) - int((96 << 30) * 0.9) + (1 << 30)
    assert second["available_bytes"] - first == gained


def test_the_gpu_decides_the_backend():
    def backends(gpu):
        result = run(
            "plan", "llama-3.1-70b", "--tp", "4", "--gpu", gpu, "--weights", "1GB", "--json"
        )
        return json.loads(result.stdout)["facts"]["attention backends"]

    assert backends("H100") == "FLASH_ATTN"
    assert backends("B200") == "FLASHINFER"


def test_weights_alone_are_too_large():
    result = run(*LLAMA, "--gpu", "H100", "--weights", "141GB")
    assert result.exit_code == DOES_NOT_FIT
    assert result.stderr.startswith("kvplan: llama-3.1-70b does not fit: the weights' share of ")
    assert "--tp" in result.stderr
    gpus = run("fit", "llama-3.1-70b", "--gpu", "H100", "--weights", "141GB", "--find", "gpus")
    assert gpus.stdout.startswith("--tp 4:")


def test_weights_from_the_index(snapshot):
    (snapshot / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 141 * 10**9}, "weight_map": {}})
    )
    assert weights_bytes(str(snapshot)) == 141 * 10**9
    assert weights_bytes(str(snapshot / "config.json")) == 141 * 10**9
    assert run("plan", snapshot, "--tp", "4", "--gpu", "H100").exit_code == FITS


def test_weights_from_the_files(snapshot):
    header = b'{"a":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}'
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (snapshot / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(1000))
    assert weights_bytes(str(snapshot)) == 2000


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"metadata": {"total_size": -1}}'])
def test_bad_index(snapshot, text):
    (snapshot / "model.safetensors.index.json").write_text(text)
    result = run("plan", snapshot, "--gpu", "H100")
    assert result.exit_code == BAD_INPUT
    assert "--weights" in result.stderr


def test_no_weights_to_read():
    result = run(*LLAMA, "--gpu", "H100")
    assert result.exit_code == BAD_INPUT
    assert "--weights 140GB" in result.stderr


def test_memory_and_gpu():
    result = run(*LLAMA, "--gpu", "H100", "--weights", "1GB", "--memory", "1GiB")
    assert result.exit_code == BAD_INPUT
    assert "not both" in result.stderr


def test_gpu_names():
    assert find_gpu("h100") == GPUS["H100"]
    assert find_gpu("RTX 4090") == GPUS["RTX4090"]
    assert find_gpu("96GiB").memory_bytes == 96 << 30
    with pytest.raises(ValueError, match="Did you mean H100"):
        find_gpu("H10")
