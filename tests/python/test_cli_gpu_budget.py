"""``--gpu`` and what goes with it: the memory as a prediction, marked as one."""

import json
import shutil
from importlib import resources

import pytest
from cli_runner import answer_to, run

from kvplan.offline.budget.gpus import find_gpu
from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS

LLAMA = ("plan", "llama-3.1-70b", "--tp", "4")
GIB = 2**30


@pytest.fixture
def snapshot(tmp_path):
    """A model's directory without weights."""
    source = resources.files("kvplan.offline.models") / "configs" / "llama-3.1-8b.json"
    with resources.as_file(source) as path:
        shutil.copy(path, tmp_path / "config.json")
    return tmp_path


def write_tensors(path, tensors):
    """A safetensors file of (name, dtype, shape, bytes), without the tensors' content."""
    header, end = {}, 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def weights(*args):
    (budget,) = answer_to("plan", *args, "--gpu", "H100", "--max-model-len", "4096")["budget"]
    return next(part for part in budget["parts"] if part["name"] == "weights")


def test_the_parts_make_the_sum():
    found = answer_to(*LLAMA, "--gpu", "H100")
    (budget,) = found["budget"]
    usable = -int(-find_gpu("H100").memory_bytes * 0.92 // 1)
    taken = sum(part["bytes"] for part in budget["parts"])
    assert budget["kv_cache_bytes"] == usable - taken
    assert [w["available_bytes"] for w in found["workers"]] == [usable - taken] * 4
    low, high = budget["interval"]
    assert low < budget["kv_cache_bytes"] < high
    assert "ESTIMATED" in found["facts"]["memory"]
    assert f"--kv-cache-memory-bytes {usable - taken}" in found["facts"]["memory"]
    assert "ESTIMATED" in run(*LLAMA, "--gpu", "H100").stdout


def test_given_sizes_count_as_they_are():
    gpu = (*LLAMA, "--gpu", "96GiB", "--gpu-memory-utilization", "0.5")
    (budget,) = answer_to(*gpu, "--weights-per-gpu", "10GiB", "--overhead", "2GiB")["budget"]
    assert budget["kv_cache_bytes"] == 36 * GIB
    (same,) = answer_to(*gpu, "--gpu-memory-utilization", "0.5", "--weights-per-gpu", "10GiB",
                     "--overhead", "2GiB", "--enforce-eager")["budget"]  # fmt: skip
    assert same == budget


def test_no_graphs_in_eager_mode():
    def names(*args):
        return {
            part["name"] for part in answer_to(*LLAMA, "--gpu", "H100", *args)["budget"][0]["parts"]
        }

    assert names() - names("--enforce-eager") == {"CUDA graphs"}
    assert names() - names("--vllm-version", "0.19") == {"CUDA graphs"}


def test_defaults_by_gpu():
    small, large = (answer_to("plan", "llama-3.1-8b", "--gpu", gpu) for gpu in ("A100", "B200"))
    assert small["config"]["max_in_flight_tokens"] == 2 * 2048
    assert large["config"]["max_in_flight_tokens"] == 2 * 16384
    assert small["facts"]["attention backends"] == "FLASH_ATTN"
    assert large["facts"]["attention backends"] == "FLASHINFER"


def test_fewer_sequences_leave_more():
    def left(*args):
        return answer_to("plan", "llama-3.1-8b", "--gpu", "H100", *args)["budget"][0][
            "kv_cache_bytes"
        ]

    assert left("--max-num-seqs", "64") > left() + GIB


def test_each_stage_has_a_budget():
    found = answer_to("plan", "llama-3.1-8b", "--pp", "2", "--gpu", "H100")
    first, last = found["budget"]
    assert first["kv_cache_bytes"] > last["kv_cache_bytes"], "the last stage samples"
    assert [w["available_bytes"] for w in found["workers"]] == [
        stage["kv_cache_bytes"] for stage in found["budget"]
    ]


def test_verdicts():
    def verdict(length):
        args = ("plan", "qwen3-14b", "--gpu-memory", "37GiB", "--max-model-len", str(length))
        result = run(*args, "--json")
        return result.exit_code, json.loads(result.stdout)["facts"]["verdict"]

    plan = answer_to("plan", "qwen3-14b", "--gpu-memory", "37GiB", "--max-model-len", "8K")
    longest = plan["usable_capacity_tokens"]
    # The interval is some hundreds of MiB wide, and a token takes 160 KiB.
    assert verdict(longest - 8000) == (FITS, "fits")
    assert verdict(longest + 8000) == (DOES_NOT_FIT, "does not")
    for length, code in ((longest - 640, FITS), (longest + 640, DOES_NOT_FIT)):
        exit_code, words = verdict(length)
        assert exit_code == code
        short = int(words.removeprefix("too close to call, by ").removesuffix(" MiB"))
        assert short == pytest.approx(100, abs=5)


def test_weights_alone_are_too_large():
    result = run("plan", "llama-3.1-70b", "--gpu", "H100")
    assert result.exit_code == DOES_NOT_FIT
    assert result.stderr.startswith("kvplan: llama-3.1-70b does not fit: ")
    assert "131.4 GiB weights" in result.stderr
    assert "--tp" in result.stderr
    gpus = run("fit", "llama-3.1-70b", "--gpu", "H100", "--find", "gpus")
    assert gpus.stdout.startswith("--tp 4:")


def test_weights_from_the_config():
    # What vLLM logs for Meta-Llama-3.1-8B: "Model loading took 14.99 GiB", and 7.51 of two ranks.
    assert weights("llama-3.1-8b")["bytes"] / GIB == pytest.approx(14.99, abs=0.01)
    assert weights("llama-3.1-8b", "--tp", "2")["bytes"] / GIB == pytest.approx(7.51, abs=0.01)


def test_weights_from_headers(snapshot):
    rotary = 131072 * 128 * 2
    tensors = [
        ("model.embed_tokens.weight", "F32", [128256, 4096], 128256 * 4096 * 4),
        ("model.layers.0.self_attn.q_proj.weight", "BF16", [4096, 4096], 4096 * 4096 * 2),
        ("model.layers.0.self_attn.k_proj.weight", "BF16", [1024, 4096], 1024 * 4096 * 2),
        ("model.layers.0.input_layernorm.weight", "BF16", [4096], 4096 * 2),
        ("model.layers.0.mlp.down_proj.weight", "F8_E4M3", [4096, 14336], 4096 * 14336),
    ]
    write_tensors(snapshot / "model-1.safetensors", tensors[:2])
    write_tensors(snapshot / "model-2.safetensors", tensors[2:])
    write_tensors(snapshot / "consolidated.safetensors", tensors)
    split = 128256 * 4096 * 2 + 4096 * 4096 * 2 + 1024 * 4096 * 2 + 4096 * 14336
    assert weights(snapshot)["bytes"] == split + 4096 * 2 + rotary
    assert weights(snapshot, "--tp", "4")["bytes"] == split // 4 + 4096 * 2 + rotary
    assert weights(snapshot)["source"] == "the checkpoint's headers"
    # Sixteen ranks hold half a KV head's worth of replicas each: no fewer than one whole head.
    sixteen = (split - 1024 * 4096 * 2) // 16 + 128 * 4096 * 2 + 4096 * 2 + rotary
    assert weights(snapshot, "--tp", "16")["bytes"] == sixteen


def test_weights_from_an_index_alone(snapshot):
    index = {"metadata": {"total_size": 8 * 10**9}, "weight_map": {}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    rotary = 131072 * 128 * 2
    assert weights(snapshot)["bytes"] == pytest.approx(8 * 10**9 + rotary, rel=1e-6)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"metadata": {"total_size": -1}}'])
def test_bad_index(snapshot, text):
    (snapshot / "model.safetensors.index.json").write_text(text)
    result = run("plan", snapshot, "--gpu", "H100")
    assert result.exit_code == BAD_INPUT
    assert "--weights" in result.stderr


def test_an_index_that_lies(snapshot):
    write_tensors(snapshot / "a.safetensors", [("lm_head.weight", "BF16", [64, 8], 1024)])
    names = {"lm_head.weight": "a.safetensors", "model.norm.weight": "b.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    result = run("plan", snapshot, "--gpu", "H100")
    assert result.exit_code == BAD_INPUT
    assert "b.safetensors, which is not there" in result.stderr


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": 5}}, "is no index of safetensors files"),
        ({"weight_map": {"a": "../other/b.safetensors"}}, "which is not beside it"),
        ({"metadata": {"total_size": 10}}, "states 10 bytes, but what the config describes is"),
        ({"metadata": {"total_size": 10**15}}, "is of another model"),
    ],
)
def test_an_index_of_something_else(snapshot, index, words):
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    result = run("plan", snapshot, "--gpu", "H100")
    assert result.exit_code == BAD_INPUT
    assert words in result.stderr
    assert result.stderr.count("--weights") == 1


def test_damaged_files(snapshot):
    file = snapshot / "model.safetensors"
    file.write_bytes(b"\x7fELF" + bytes(100))
    assert "not a safetensors file" in run("plan", snapshot, "--gpu", "H100").stderr
    write_tensors(file, [("lm_head.weight", "BF16", [64, 8], 1024)])
    file.write_bytes(file.read_bytes()[:-1])
    assert "cut short" in run("plan", snapshot, "--gpu", "H100").stderr


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--gpu", "H100", "--memory", "1GiB"), "not both"),
        (("--gpu", "H100", "--gpu-memory", "1GiB"), "not both"),
        (("--gpu", "H100", "--weights", "1GB", "--weights-per-gpu", "1GB"), "not both"),
        (("--memory", "1GiB", "--weights-per-gpu", "1GB"), "--gpu"),
        (("--gpu", "H10"), "Did you mean H100"),
        (("--gpu", "H100", "--vllm-version", "new"), "0.33"),
    ],
)
def test_refused(options, word):
    result = run(*LLAMA, *options)
    assert result.exit_code == BAD_INPUT
    assert word in result.stderr
