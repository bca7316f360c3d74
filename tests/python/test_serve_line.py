"""``vllm serve`` lines: read by vLLM's names, never run, and written so that they work."""

import json
import shlex

import pytest
from cli_runner import answer_to, run

from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.cli.plan import command as plan_command
from kvplan.offline.serve_line import (
    ServeLineError,
    deployment_values,
    option_table,
    read_line,
    written,
)
from kvplan.offline.serve_line.deployment import _COMBINED, _PARAMETERS


def values(*words):
    return dict(deployment_values(read_line(words)).values)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve m", {}),
        ("vllm serve m -tp 2 -pp=4", {"tensor_parallel_size": "2", "pipeline_parallel_size": "4"}),
        ("vllm serve m --max_model_len 32k", {"max_model_len": "32k"}),
        ("vllm serve m --max-model-len -1", {"max_model_len": "-1"}),
        ("vllm serve m --tensor-parallel 2", {"tensor_parallel_size": "2"}),
        ("vllm serve m --kv-cache-memory=9000000", {"memory": "9000000"}),
        ("vllm serve m --block-size 16 --block-size 32", {"block_size": "32"}),
        ("vllm serve m --no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("vllm serve m --disable-prefix-caching", {"enable_prefix_caching": False}),
        ("vllm serve m --enable-prefix-caching", {"enable_prefix_caching": True}),
        ("vllm serve m --kv-cache-dtype-skip-layers 0 1", {"kv_cache_dtype_skip_layers": "0,1"}),
        ("vllm serve m -ac.backend FLASHINFER", {"attention_backend": "FLASHINFER"}),
        ("vllm serve m --attention-config '{\"backend\": \"X\"}'", {"attention_backend": "X"}),
        ("vllm serve --model m --port 80 --api-key $KEY", {}),
        ("python -m vllm.entrypoints.openai.api_server --model m -dcp 2",
         {"decode_context_parallel_size": "2"}),
        ("VLLM_PP_LAYER_PARTITION=8,24 VLLM_KV_CACHE_LAYOUT=HND vllm serve m",
         {"pipeline_layer_partition": "8,24", "layout": "HND"}),
        ("sudo env VLLM_PP_LAYER_PARTITION=8,24 uv run vllm serve m",
         {"pipeline_layer_partition": "8,24"}),
        ("bash -lc 'vllm serve m --block-size 64'", {"block_size": "64"}),
        ("vllm serve m \\\n  --block-size 64  # of the kernel", {"block_size": "64"}),
        ("docker run --gpus all -itd --rm -v /a:/b -e VLLM_KV_CACHE_LAYOUT=NHD --name vllm -p80:80 "
         "vllm/vllm-openai:v0.33.0 m --block-size 64", {"block_size": "64", "layout": "NHD"}),
        ("podman run --entrypoint 'vllm serve' own/image m --block-size 64", {"block_size": "64"}),
        ("docker run own/image vllm serve m --block-size 64", {"block_size": "64"}),
    ],
)  # fmt: skip
def test_what_a_line_says(line, expected):
    assert values(line) == {"model": "m", **expected}
    words = shlex.split(line.replace("\\\n", ""), comments=True)  # as a shell gives them
    assert values(*words) == {"model": "m", **expected}


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve m -sc.method mtp -sc.num_speculative_tokens 2",
        'vllm serve m --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
        "vllm serve m --spec-method mtp --spec-tokens 2",
    ],
)
def test_json_in_parts_is_one_option(line):
    config = json.loads(values(line)["speculative_config"])
    assert config == {"method": "mtp", "num_speculative_tokens": 2}


def test_a_revision_belongs_to_the_model():
    assert values("vllm serve org/m --revision v1")["model"] == "org/m@v1"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vllm serve m --tensor-paralel-size 2", "no option --tensor-paralel-size. Did you mean"),
        ("vllm serve m --swap-space 4", "vLLM 0.33.0 has no option --swap-space"),
        ("vllm serve m --max 4", "--max can be any of"),
        ("vllm serve m --block-size", "--block-size needs a value"),
        ("vllm serve m --block-size --port 1", "--block-size needs a value"),
        ("vllm serve m --enforce-eager=1", "is a switch"),
        ("vllm serve m n", "'n' is neither"),
        ("vllm serve --port 80", "names no model"),
        ("vllm serve $MODEL", "'$MODEL', which a shell"),
        ("vllm serve m -tp $TP", "--tensor-parallel-size is '$TP'"),
        ("vllm serve m --spec-tokens two --spec-method mtp", "--spec-tokens is no number"),
        ("vllm serve m --speculative-config {", "--speculative-config is not JSON"),
        ("vllm serve m --speculative-config [1]", "is no JSON object"),
        ("kubectl get pods", "starts no vLLM server"),
        ("docker run ubuntu:24.04 sleep 1", "'ubuntu:24.04' starts no vLLM server"),
        ("docker run --rm", "names no image"),
        ("vllm serve 'm", "cannot be split"),
    ],
)
def test_what_cannot_be_read_is_named(line, words):
    with pytest.raises(ServeLineError) as error:
        values(line)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "more", ["; {}", "| {}", "&& {}", "& {}", "`{}`", "$({})", '"$({})"', '"`{}`"', "> {}", "\n{}"]
)
def test_nothing_of_a_line_is_run(more, tmp_path):
    made = tmp_path / "made"
    result = run("plan", "--memory", "30GiB", "--", f"vllm serve m {more.format(f'touch {made}')}")
    assert result.exit_code == BAD_INPUT
    assert "nothing of a line is run" in result.stderr
    assert not made.exists()


def test_quoted_metacharacters_are_a_value():
    line = read_line(['vllm serve m --hf-overrides \'{"a": ";|`$(x)"}\''])
    assert json.loads(deployment_values(line).values["hf_overrides"]) == {"a": ";|`$(x)"}


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
        - {name: fetch, image: busybox, command: [sh, -c, "true"]}
      containers:
        - name: server
          image: vllm/vllm-openai:v0.33.0
          command: [vllm, serve]
          args: ["m", "--max-model-len", "$(LENGTH)", "--enable-prefix-caching"]
          env:
            - {name: LENGTH, value: "32768"}
            - {name: VLLM_KV_CACHE_LAYOUT, value: HND}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}
"""
COMPOSE = """
services:
  vllm:
    image: vllm/vllm-openai:latest
    environment: {VLLM_KV_CACHE_LAYOUT: HND}
    command: >
      m --max-model-len 32768
      --enable-prefix-caching
"""
CONFIG = """
model: m
max-model-len: 32768
enable_prefix_caching: true
speculative-config: {method: mtp, num_speculative_tokens: 2}
"""


def file(tmp_path, text, name="file.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_files(tmp_path):
    expected = {"model": "m", "max_model_len": "32768", "enable_prefix_caching": True}
    assert values(file(tmp_path, MANIFEST)) == {**expected, "layout": "HND"}
    assert values(file(tmp_path, COMPOSE)) == {**expected, "layout": "HND"}
    found = values(file(tmp_path, CONFIG))
    assert json.loads(found.pop("speculative_config"))["method"] == "mtp"
    assert found == expected


def test_the_line_overrides_its_config_file(tmp_path):
    config = file(tmp_path, CONFIG)
    assert values(f"vllm serve --config {config} --max-model-len 1024")["max_model_len"] == "1024"
    assert values(f"vllm serve other --config {config}")["model"] == "other"


@pytest.mark.parametrize(
    "script",
    [
        "bash start-ray.sh leader --size=2; vllm serve m --max-model-len $(LENGTH)",
        "pip install x && exec vllm serve m --max-model-len $(LENGTH) 2>&1 | tee log",
        "|\n            set -e\n            vllm serve \\\n            m --max-model-len $(LENGTH)",
    ],
)
def test_the_server_in_a_container_s_script(script, tmp_path):
    text = MANIFEST.replace("command: [vllm, serve]", "command: [/bin/sh, -c]")
    before, _, after = text.partition("          args:")
    script = script if script.startswith("|") else json.dumps(script)
    args = f"          args:\n          - {script}\n"
    found = values(file(tmp_path, before + args + after.partition("\n")[2]))
    assert found == {"model": "m", "max_model_len": "32768", "layout": "HND"}


def test_a_script_that_runs_something_for_a_value(tmp_path):
    script = json.dumps("true; vllm serve `cat name`")
    text = f"services:\n  a: {{image: vllm, entrypoint: [sh, -c], command: [{script}]}}\n"
    with pytest.raises(ServeLineError, match="the line holds `"):
        values(file(tmp_path, text))


def test_files_that_say_too_little(tmp_path):
    two = COMPOSE + COMPOSE.replace("services:\n", "").replace("  vllm:", "  second:")
    path = file(tmp_path, two)
    with pytest.raises(ServeLineError, match="2 vLLM containers"):
        values(path)
    assert values(f"{path}#second")["model"] == "m"
    with pytest.raises(ServeLineError, match="no vLLM container 'third'; it has: vllm, second"):
        values(f"{path}#third")
    for text, words in [
        ("a: 1", "neither a container"),
        ("{{ .Values }}: [", "has to be rendered"),
        ("a: &a [*a]\nimage: x", "starts no vLLM server"),
    ]:
        with pytest.raises(ServeLineError, match=words):
            values(file(tmp_path, text))
    with pytest.raises(ServeLineError, match="cannot read"):
        values(str(tmp_path / "none.yaml"))


def test_aliases_that_multiply_are_walked_once(tmp_path):
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30)]
    text = "\n".join(["l0: &l0 [x]", *levels, COMPOSE])
    assert values(file(tmp_path, text))["model"] == "m"


def test_every_planned_option_is_one_of_plan():
    """The table's `=` holds: each such field reaches a parameter of the commands."""
    parameters = {parameter.name for parameter in plan_command.params}
    table = option_table()
    for option in [*table.by_name.values(), *table.environment.values()]:
        if option.is_planned and option.dest not in {*_COMBINED, "config"}:
            assert _PARAMETERS.get(option.dest, option.dest) in parameters, option


def plan(*args):
    result = run("plan", *args)
    assert result.exit_code == FITS, result.stderr
    return result


def test_a_line_plans_as_the_options_do():
    line = "vllm serve gemma-3-27b -tp 2 --kv-cache-dtype fp8 --max-model-len 32k --port 8000"
    own = ("gemma-3-27b", "--tp", "2", "--kv-cache-dtype", "fp8", "--max-model-len", "32k")
    expected = plan(*own, "--memory", "30GiB", "--json").stdout
    assert plan("--memory", "30GiB", "--json", "--", line).stdout == expected
    assert plan("--memory", "30GiB", "--json", "--", *shlex.split(line)).stdout == expected
    memory = ("--kv-cache-memory-bytes", str(30 << 30))
    assert plan("--json", "--", *shlex.split(line), *memory).stdout == expected


def test_what_stands_before_the_line_overrides_it():
    result = plan("--memory", "30GiB", "--tp", "4", "--json", "--", "vllm serve llama-3.1-8b -tp 2")
    assert json.loads(result.stdout)["config"]["tensor_parallel_size"] == 4


def test_a_command_that_takes_no_line_says_so():
    result = run("models", "--", "vllm", "serve", "llama-3.1-8b")
    assert result.exit_code == BAD_INPUT
    assert "kvplan models takes no vllm serve line" in result.stderr


def test_lines_side_by_side():
    line = "vllm serve gemma-3-27b -tp 2 --port 80"
    memory = ("--memory", "20GiB", "--json")
    own = ("gemma-3-27b --tp 2", "gemma-3-27b --tp 2 --kv-cache-dtype fp8")
    expected = json.loads(run("diff", *own, *memory).stdout)
    for second in (f"{line} --kv-cache-dtype fp8", "--kv-cache-dtype fp8"):
        found = json.loads(run("diff", line, second, *memory).stdout)
        for side in "ab":
            assert {**found[side], "name": ""} == {**expected[side], "name": ""}
        assert found["b"]["name"].endswith("--kv-cache-dtype fp8")


def test_a_line_as_a_preset():
    text = run("plan", "--print-config", "--", "vllm serve llama-3.1-8b -tp 2 --port 1").stdout
    assert text.splitlines() == ['model = "llama-3.1-8b"', "tp = 2"]


def test_what_is_not_planned_is_one_line():
    line = "vllm serve llama-3.1-8b --lora-dtype half --port 80 --cpu-offload-gb 4 -dp 1 --headless"
    result = plan("--memory", "30GiB", "--", f"VLLM_MLA_DISABLE=1 VLLM_LAYER=1 {line}")
    first, second = result.stderr.splitlines()
    assert first == (
        "kvplan: not planned: --lora-dtype (adapters take memory), --cpu-offload-gb (part of the "
        "weights stays in host memory), VLLM_MLA_DISABLE (caches are those of heads, not latent "
        "ones)"
    )
    assert second.startswith("kvplan: vLLM 0.33.0 does not read the variable VLLM_LAYER")


@pytest.mark.parametrize("name", ["fit", "explain", "frontier", "map"])
def test_other_commands_take_a_line(name, tmp_path):
    more = ("-o", tmp_path / "map.svg") if name == "map" else ()
    result = run(name, "--memory", "30GiB", *more, "--", "vllm serve llama-3.1-8b -tp 2")
    assert result.exit_code == FITS, result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("llama-3.1-8b", "--memory", "3GiB"),
        ("gemma-3-27b", "--memory", "2GiB", "--tp", "2", "--kv-cache-dtype", "fp8"),
        ("qwen3-next-80b", "--memory", "1GiB", "--concurrency", "3", "--no-async-scheduling"),
        ("--memory", "5GiB", "--", "vllm", "serve", "llama-3.1-8b", "--max-model-len", "64k"),
    ],
)
def test_the_line_works_and_no_longer_one_does(args):
    result = run("serve-line", "--json", *args)
    assert result.exit_code == FITS, result.stderr
    answer = json.loads(result.stdout)
    assert answer["max_model_len"] < answer["requested_max_model_len"]
    planned = json.loads(plan("--json", "--", answer["line"]).stdout)
    assert planned["max_model_len"] == answer["max_model_len"]
    wanted = int(args[args.index("--concurrency") + 1]) if "--concurrency" in args else 1
    assert planned["usable_blocks"] // planned["request_blocks"] >= wanted
    longer = written(
        read_line([answer["line"]]),
        {"max_model_len": ("--max-model-len", str(answer["max_model_len"] + 1))},
    )
    result = run("plan", "--json", "--", longer)
    if result.exit_code == FITS:
        planned = json.loads(result.stdout)
        assert planned["usable_blocks"] // planned["request_blocks"] < wanted


def test_the_line_keeps_what_was_given():
    line = "VLLM_LOGGING_LEVEL=DEBUG vllm serve llama-3.1-8b --port 80 --api-key 'a b' -tp 2"
    result = run("serve-line", "--memory", "9GiB", "--", f"{line} --max-num-seqs 8")
    assert result.stdout.startswith(line)
    assert "--max-num-seqs 8 --kv-cache-memory-bytes 9663676416" in result.stdout


def test_sequences_are_no_more_than_the_blocks_for_their_states():
    answer = answer_to("serve-line", "qwen3-next-80b", "--memory", "1GiB")
    planned = json.loads(plan("--json", "--", answer["line"]).stdout)
    assert int(answer["options"]["max_num_seqs"]) <= planned["usable_blocks"] < 256


def test_no_line_works():
    result = run("serve-line", "llama-3.1-8b", "--memory", "2MiB")
    assert result.exit_code == DOES_NOT_FIT
    assert result.stdout == ""
    assert "not even one token fits; --tp " in result.stderr


def test_a_request_has_no_line(tmp_path):
    path = tmp_path / "request.json"
    run("plan", "llama-3.1-8b", "--memory", "30GiB", "--write-request", path)
    assert run("serve-line", "--request", path).exit_code == BAD_INPUT


def test_an_option_is_planned_or_not_but_not_both():
    """What `plan` takes under vLLM's name is never told as not planned."""
    parameters = {parameter.name for parameter in plan_command.params} - {"quantization"}
    for option in option_table().by_name.values():
        if option.dest in parameters | set(_PARAMETERS):
            assert option.is_planned, option
