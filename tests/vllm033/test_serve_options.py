"""The table of vLLM's options is vLLM's, and lines come out as from vLLM's own parser."""

import json
import random
import shlex

import pytest

pytest.importorskip("vllm")
import record_serve_options
import stand_in_cuda  # noqa: F401 - vLLM's parser asks for the platform

from kvplan.offline.serve_line import ServeLineError, option_table, read_line


def test_the_table_is_up_to_date():
    assert record_serve_options.TABLE.read_text() == record_serve_options.text()


@pytest.fixture(scope="module")
def vllm_parser():
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def parsed(parser, words):
    """What vLLM's parser makes of the words after ``vllm serve``, or None where it refuses."""
    try:
        return vars(parser.parse_args(words))
    except (SystemExit, ValueError):
        return None


WORDS = [
    ["--tensor-parallel-size", "2"],
    ["--tensor_parallel_size=4"],
    ["-tp", "8"],
    ["-tp=2"],
    ["--tensor-parallel", "2"],
    ["--max-model-len", "32K"],
    ["--max-model-len", "-1"],
    ["--max-model-len=auto"],
    ["--max-num-batched-tokens", "2k"],
    ["--kv-cache-dtype", "fp8"],
    ["--kv-cache-memory=12345678"],
    ["--kv-cache-dtype-skip-layers", "0", "1", "sliding_window"],
    ["--enable-prefix-caching"],
    ["--no-enable-prefix-caching"],
    ["--disable-prefix-caching"],
    ["--no-async-scheduling"],
    ["--async-scheduling"],
    ["--gpu-memory-utilization", ".8"],
    ["--block-size", "16"],
    ["--speculative-config.method", "mtp"],
    ["-sc.num_speculative_tokens=2"],
    ["--attention-config.backend", "FLASHINFER"],
    ["--hf-overrides.a.b+", "x,y"],
    ["--hf-overrides", '{"a": 1}'],
    ["--enforce-eager"],
    ["-O3"],
    ["-O", "2"],
    ["--port", "80"],
    ["--max-num", "3"],
    ["--block-siz", "3"],
    ["--enforce-eager=1"],
    ["--headless=x"],
    ["--nothing"],
    ["--tokenizer"],
    ["stray"],
]
COMPARED = (
    "model_tag",
    "tensor_parallel_size",
    "kv_cache_dtype",
    "kv_cache_dtype_skip_layers",
    "enable_prefix_caching",
    "async_scheduling",
    "block_size",
    "enforce_eager",
    "port",
    "hf_overrides",
    "optimization_level",
)


def same(dest, ours, theirs):
    if dest in ("hf_overrides", "speculative_config"):
        return (json.loads(ours) if isinstance(ours, str) else ours) == theirs
    if isinstance(ours, list):
        return ours == list(theirs)
    return str(ours) == str(theirs)


@pytest.mark.parametrize("seed", range(300))
def test_lines_come_out_as_from_vllm(vllm_parser, seed):
    rng = random.Random(seed)
    chosen = rng.sample(WORDS, rng.randint(1, 6))
    words = ["org/model", *(word for part in chosen for word in part)]
    theirs = parsed(vllm_parser, words)
    try:
        line = read_line(["vllm", "serve", *words])
    except ServeLineError:
        assert theirs is None, shlex.join(words)
        return
    assert theirs is not None, shlex.join(words)
    assert line.model == theirs["model_tag"]
    for dest, ours in line.values().items():
        if dest in COMPARED:
            assert same(dest, ours, theirs[dest]), (shlex.join(words), dest)


def test_every_effect_is_written():
    table = option_table()
    for option in [*table.by_name.values(), *table.environment.values()]:
        assert option.effect.strip(), option
        assert option.effect != record_serve_options.UNKNOWN_EFFECT, option
