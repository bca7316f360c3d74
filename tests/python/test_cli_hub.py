"""MODEL as a Hub id: config and index files from a small local server that speaks the Hub's API."""

import json
import os
from importlib import resources

import pytest
from cli_runner import execute, run, surroundings
from hub_server import COMMIT, HubServer

from kvplan.offline import models
from kvplan.offline.cli.failures import BAD_INPUT, FITS
from kvplan.offline.models.hub import hub_model

pytest.importorskip("huggingface_hub")

CONFIG = (resources.files("kvplan.offline.models") / "configs" / "llama-3.1-70b.json").read_bytes()
REPO = "meta/llama-70b"
PLAN = ("--tp", "4", "--memory", "40GiB", "--json")


@pytest.fixture
def hub():
    with HubServer() as server:
        server.files[REPO, "main", "config.json"] = CONFIG
        yield server


@pytest.fixture
def ask(hub, tmp_path):
    """Run kvplan with this Hub and an empty cache."""

    def run_with(*args, offline=False, token="", **env):
        variables = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "1" if offline else "0",
            "HF_TOKEN": token,
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            variables[name] = str(tmp_path / "hf" / "hub")
        return execute(*args, env={**variables, **env}, cwd=tmp_path)

    return run_with


def test_a_hub_id_is_planned_like_its_config(hub, ask):
    result = ask("plan", REPO, *PLAN)
    assert result.returncode == FITS, result.stderr
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    expected = json.loads(run("plan", "llama-3.1-70b", *PLAN).stdout)
    assert answer.pop("model") == REPO
    expected.pop("model")
    assert answer == expected
    assert {path.rpartition("/")[2] for _, path in hub.asked} == {
        "config.json",
        "hf_quant_config.json",
    }


QUANTIZATION = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
}


def test_a_quantization_config_of_its_own(hub, ask):
    plain = json.loads(ask("plan", REPO, *PLAN).stdout)
    hub.files[REPO, "fp8", "config.json"] = CONFIG
    hub.files[REPO, "fp8", "hf_quant_config.json"] = json.dumps(QUANTIZATION).encode()
    for offline in (False, True):
        answer = json.loads(ask("plan", f"{REPO}@fp8", *PLAN, offline=offline).stdout)
        assert answer["facts"]["KV cache dtype"] == "fp8_e4m3"
        assert answer["num_blocks"] // 2 == plain["num_blocks"]
    # What config.json itself says comes first.
    own = {**json.loads(CONFIG), "quantization_config": {"quant_method": "fp8"}}
    hub.files["meta/own", "main", "config.json"] = json.dumps(own).encode()
    hub.files["meta/own", "main", "hf_quant_config.json"] = json.dumps(QUANTIZATION).encode()
    answer = json.loads(ask("plan", "meta/own", *PLAN).stdout)
    assert answer["facts"]["KV cache dtype"] == "auto"


def test_a_quantization_config_beside_a_local_one(tmp_path):
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(QUANTIZATION))
    for path in (tmp_path, tmp_path / "config.json"):
        assert models.kv_cache_specs(path).cache_dtype == "fp8_e4m3"
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(models.ModelError, match=r"hf_quant_config.json holds a list"):
        models.load(tmp_path)


def test_the_second_time_nothing_is_fetched(hub, ask):
    ask("plan", REPO, *PLAN)
    hub.asked.clear()
    assert ask("plan", REPO, *PLAN).returncode == FITS
    assert [method for method, _ in hub.asked] == ["HEAD"]
    hub.asked.clear()
    offline = ask("plan", REPO, *PLAN, offline=True)
    assert offline.returncode == FITS, offline.stderr
    assert hub.asked == []


def test_offline_without_a_cached_config(hub, ask):
    result = ask("plan", REPO, *PLAN, offline=True)
    assert result.returncode == BAD_INPUT
    assert f"config.json of {REPO} is not in the cache" in result.stderr
    assert "HF_HUB_OFFLINE" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert hub.asked == []


def test_revisions(hub, ask):
    hub.files[REPO, "small", "config.json"] = json.dumps(
        {**json.loads(CONFIG), "num_hidden_layers": 8}
    ).encode()
    for name, layers in ((f"{REPO}@small", 8), (f"{REPO}@{COMMIT}", 80), (REPO, 80)):
        answer = json.loads(ask("plan", name, *PLAN).stdout)
        assert answer["model"] == name
        assert sum(group["num_layers"] for group in answer["groups"]) == layers
    result = ask("plan", f"{REPO}@mian", *PLAN)
    assert result.returncode == BAD_INPUT
    assert f"{REPO} on the Hub ({hub.url}) has no revision 'mian'" in result.stderr


def one_paragraph(result):
    assert result.returncode == BAD_INPUT
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


def test_no_such_model(hub, ask):
    message = one_paragraph(ask("plan", "meta/lama-70b", *PLAN))
    assert f"no model 'meta/lama-70b' on the Hub ({hub.url})" in message
    assert "no file or directory" in message


def test_gated(hub, ask):
    hub.gated.add("meta/gated")
    message = one_paragraph(ask("plan", "meta/gated@main", *PLAN))
    assert "meta/gated@main is gated" in message
    assert "HF_TOKEN" in message


def test_without_a_config(hub, ask):
    hub.files["meta/gguf", "main", "model.gguf"] = b"GGUF"
    message = one_paragraph(ask("plan", "meta/gguf", *PLAN))
    assert "has no config.json" in message
    assert "GGUF" in message


def test_a_server_that_fails(hub, ask):
    hub.status = 503
    message = one_paragraph(ask("plan", REPO, *PLAN, HF_HUB_ETAG_TIMEOUT="1"))
    assert "503" in message


def test_a_server_that_is_not_there(ask):
    message = one_paragraph(ask("plan", REPO, *PLAN, HF_ENDPOINT="http://127.0.0.1:9"))
    assert f"{REPO} on the Hub (http://127.0.0.1:9)" in message


def test_a_huge_config_is_not_fetched(hub, ask):
    hub.files[REPO, "main", "config.json"] = bytes(17 << 20)
    message = one_paragraph(ask("plan", REPO, *PLAN))
    assert "17,825,792 bytes" in message
    assert "GET" not in {method for method, _ in hub.asked}


def test_a_config_that_is_not_json(hub, ask):
    hub.files[REPO, "main", "config.json"] = b"<html>"
    assert f"{REPO} is not valid JSON" in one_paragraph(ask("plan", REPO, *PLAN))


def test_without_the_library(ask, tmp_path):
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), surroundings()["env"]["PYTHONPATH"]])
    message = one_paragraph(ask("plan", REPO, *PLAN, PYTHONPATH=path))
    assert "pip install huggingface_hub" in message


GPU = ("--tp", "4", "--gpu", "H100", "--json")


#: The table of sines and cosines, which no checkpoint holds.
ROTARY = 131072 * 128 * 2


UP = "model.layers.0.mlp.up_proj.weight"


def held(result):
    """Bytes of weights on a rank."""
    (budget,) = json.loads(result.stdout)["budget"]
    return next(part["bytes"] for part in budget["parts"] if part["name"] == "weights")


def test_weights_from_the_index(hub, ask):
    hub.files[REPO, "main", "model.safetensors.index.json"] = json.dumps(
        {"metadata": {"total_size": 141 * 10**9}, "weight_map": {}}
    ).encode()
    result = ask("plan", REPO, *GPU)
    assert result.returncode == FITS, result.stderr
    assert held(result) == pytest.approx(141 * 10**9 / 4 + ROTARY, rel=1e-4)
    assert ask("plan", REPO, *GPU, offline=True).stdout == result.stdout
    names = {path.rpartition("/")[2] for _, path in hub.asked}
    assert names == {"config.json", "hf_quant_config.json", "model.safetensors.index.json"}


def test_weights_from_the_header_of_a_single_file(hub, ask):
    header = json.dumps(
        {UP: {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}
    ).encode()
    file = len(header).to_bytes(8, "little") + header + bytes(1 << 20)
    hub.files[REPO, "main", "model.safetensors"] = file
    result = ask("plan", REPO, *GPU)
    assert result.returncode == FITS, result.stderr
    assert held(result) == pytest.approx((1 << 18) + ROTARY, rel=1e-4)


def shard(name, rows):
    """A safetensors file of one bfloat16 tensor of so many rows of 1,024."""
    stored = rows * 1024 * 2
    entry = {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, stored]}
    header = json.dumps({name: entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(stored)


def test_weights_from_the_headers_of_shards(hub, ask):
    """Split as their names say, and only their headers are fetched."""
    shards = {
        UP: 4096,  # over the TP ranks
        "model.layers.0.input_layernorm.weight": 2048,  # on each of them
    }
    index = {"metadata": {"total_size": 1}, "weight_map": {}}
    for number, (name, rows) in enumerate(shards.items()):
        file = f"model-{number}.safetensors"
        hub.files[REPO, "main", file] = shard(name, rows)
        index["weight_map"][name] = file
    hub.files[REPO, "main", "model.safetensors.index.json"] = json.dumps(index).encode()
    before = hub.sent
    result = ask("plan", REPO, *GPU)
    assert result.returncode == FITS, result.stderr
    assert held(result) == (4096 // 4 + 2048) * 1024 * 2 + ROTARY
    assert hub.sent - before < 1 << 20
    (budget,) = json.loads(result.stdout)["budget"]
    (part,) = [part for part in budget["parts"] if part["name"] == "weights"]
    assert "headers on the Hub" in part["source"]


def test_a_damaged_header_on_the_hub(hub, ask):
    hub.files[REPO, "main", "model.safetensors"] = bytes(64)
    result = ask("plan", REPO, *GPU)
    assert result.returncode != FITS
    assert "model.safetensors" in result.stderr


def test_no_weights_on_the_hub(ask):
    result = ask("plan", REPO, *GPU)
    assert result.returncode == FITS, result.stderr
    assert held(result) == pytest.approx(141.1e9 / 4 + ROTARY, rel=1e-3), "by the config alone"


def test_a_folder_of_the_cache(hub, ask, tmp_path):
    ask("plan", REPO, *PLAN)
    folder = tmp_path / "hf" / "hub" / "models--meta--llama-70b"
    for directory in (folder, folder / "snapshots" / COMMIT):
        assert models.load(str(directory)).values == json.loads(CONFIG)


def test_a_drafter_from_the_hub(hub, ask):
    drafter = {**json.loads(CONFIG), "num_hidden_layers": 1}
    hub.files["meta/eagle", "main", "config.json"] = json.dumps(drafter).encode()
    config = {"method": "eagle", "num_speculative_tokens": 2, "model": "meta/eagle"}
    result = ask("plan", REPO, *PLAN, "--speculative-config", json.dumps(config))
    assert result.returncode == FITS, result.stderr
    assert sum(g["num_layers"] for g in json.loads(result.stdout)["groups"]) == 81


def test_files_come_first(ask, tmp_path):
    directory = tmp_path / "meta" / "llama-70b"
    directory.mkdir(parents=True)
    (directory / "config.json").write_bytes(CONFIG)
    assert json.loads(ask("plan", REPO, *PLAN).stdout)["model"] == f"{REPO}/config.json"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", ("meta-llama/Llama-3.1-8B", None)),
        ("a/b@refs/pr/1", ("a/b", "refs/pr/1")),
        ("gemma-3-27b", None),
        ("a/b/c", None),
        ("folder/config.json", None),
        ("./folder", None),
        ("../a/b", None),
        ("/a/b", None),
        ("a/b@", None),
        ("a b/c", None),
    ],
)
def test_what_a_hub_id_looks_like(name, expected):
    found = hub_model(name)
    assert (found and (found.repo_id, found.revision)) == expected
