"""``kvplan serve-line``: the ``vllm serve`` line that works."""

from __future__ import annotations

import json
from typing import Any

import click

import kvplan
from kvplan.offline.budget.gpus import defaults_for
from kvplan.offline.cli import fit_search
from kvplan.offline.cli.defaults import line_given
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, say_on_stderr
from kvplan.offline.cli.knobs import plan_with_plenty
from kvplan.offline.cli.param_types import IntegerIn
from kvplan.offline.cli.question import ModelQuestion, PlannerInput
from kvplan.offline.cli.terminal import print_json
from kvplan.offline.serve_line import Argument, ServeLine, find_option, written

EPILOG = """\b
Examples:
  kvplan serve-line llama-3.1-8b --memory 10GiB
  kvplan serve-line --memory 30GiB -- vllm serve gemma-3-27b --kv-cache-dtype fp8
  kvplan serve-line --memory 30GiB --concurrency 4 -- deployment.yaml

\b
The line keeps the options that were given and sets the length, the batch and the memory. Nothing
of a line is run.

Exit codes: 0 printed, 1 no length fits, 2 the input is wrong.
"""

#: vLLM's sequences of a step where neither the line nor the GPU says how many.
_SEQUENCES = 256
#: Options of a model that are written where no line was given.
_WRITTEN = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "block_size",
    "kv_cache_dtype",
    "kv_cache_dtype_skip_layers",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "mamba_block_size",
    "dtype",
    "attention_backend",
    "speculative_config",
    "hf_overrides",
    "disable_hybrid_kv_cache_manager",
    "enable_prefix_caching",
    "async_scheduling",
    "num_gpu_blocks_override",
)


@click.command("serve-line", epilog=EPILOG)
@deployment_options
@click.option(
    "--concurrency",
    type=IntegerIn(min=1, max=10**9),
    default=1,
    show_default=True,
    help="Requests of the full length that are to run at once, each with all tokens in flight.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the line and its options as JSON.")
def command(concurrency: int, as_json: bool, **values: Any) -> int:
    """Print the `vllm serve` line that works: length, batch and memory set to what fits.

    The length is --max-model-len (or the model's) where it fits, else the longest that does.
    """
    question = read_question(values)
    if not isinstance(question, ModelQuestion):
        raise BadInput("a recorded request names no model to serve; give the model and its options")
    if (values["grouping"] or "vllm") != "vllm":
        raise BadInput("a vllm serve line has no --grouping; 'kvplan plan' plans other groupings")
    question = question.with_options(max_model_len=_asked(question))
    length = fit_search.longest_context(question, concurrency)
    if length is None:
        return _nothing_fits(question, concurrency)
    shorter = question.with_length(length)
    given = shorter.planner_input()
    plan = given.plan()
    line = line_given() or line_of(values)
    changes = fitting_options(values, given, plan, line)
    text = written(line, changes)
    if as_json:
        print_json(_answer(text, changes, plan, question))
    else:
        click.echo(text)
        say_on_stderr(_words(plan, question, concurrency))
    return FITS


def _asked(question: ModelQuestion) -> int | None:
    """The length asked for; the model's own where it is to be fitted."""
    length = question.options.max_model_len
    return None if isinstance(length, str) or length == -1 else length


def _nothing_fits(question: ModelQuestion, concurrency: int) -> int:
    times = f" {concurrency:,} times" if concurrency > 1 else ""
    found = fit_search.fewest_gpus(question.with_options(max_model_len=1), concurrency)
    hint = "give more memory"
    if found is not None:
        hint = f"{found[0].options} holds a request of one token{times}, or give more memory"
    say_on_stderr(f"kvplan: {question.model.source}: not even one token fits{times}; {hint}")
    return DOES_NOT_FIT


def line_of(values: dict[str, Any]) -> ServeLine:
    """A line of the options that the command line gives."""
    ctx = click.get_current_context()
    arguments = []
    for name in _WRITTEN:
        source = ctx.get_parameter_source(name)
        if values[name] is None or source is click.core.ParameterSource.DEFAULT:
            continue
        option = find_option(f"--{name.replace('_', '-')}")
        words = _option_words(option.names[0], option.negative_names, values[name])
        arguments.append(Argument(option, values[name], words))
    model, _, revision = str(values["model"]).partition("@")
    if revision:
        words = ("--revision", revision)
        arguments.append(Argument(find_option("--revision"), revision, words))
    environment = {}
    if values["pipeline_layer_partition"]:
        environment["VLLM_PP_LAYER_PARTITION"] = ",".join(
            map(str, values["pipeline_layer_partition"])
        )
    if values["layout"]:
        environment["VLLM_KV_CACHE_LAYOUT"] = values["layout"]
    return ServeLine(model, tuple(arguments), environment)


def _option_words(name: str, negative: tuple[str, ...], value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (name,) if value else negative[-1:]
    if isinstance(value, (tuple, list)):
        return (name, *map(str, value))
    return (name, json.dumps(value) if isinstance(value, dict) else str(value))


def fitting_options(
    values: dict[str, Any], given: PlannerInput, plan: kvplan.Plan, line: ServeLine
) -> dict[str, tuple[str, ...]]:
    """The options that are set, by vLLM's field, with their words."""
    changes: dict[str, tuple[str, ...]] = {
        "max_model_len": ("--max-model-len", str(plan.max_model_len)),
        "max_num_batched_tokens": ("--max-num-batched-tokens", str(given.max_num_batched_tokens)),
    }
    wanted = int(line.values().get("max_num_seqs") or _default_sequences(values))
    changes["max_num_seqs"] = ("--max-num-seqs", str(min(wanted, _most_sequences(given, plan))))
    if values["memory"]:
        size = min(given.available_memory)
        changes["kv_cache_memory_bytes"] = ("--kv-cache-memory-bytes", str(size))
        changes["gpu_memory_utilization"] = ()
    else:
        utilization = f"{values['gpu_memory_utilization']:g}"
        changes["gpu_memory_utilization"] = ("--gpu-memory-utilization", utilization)
    return changes


def _default_sequences(values: dict[str, Any]) -> int:
    gpu = values.get("gpu")
    return values.get("max_num_seqs") or (gpu and defaults_for(gpu).max_num_seqs) or _SEQUENCES


def _most_sequences(given: PlannerInput, plan: kvplan.Plan) -> int:
    """Sequences beyond which even the shortest ones find no blocks."""
    shortest = kvplan.plan(
        given.config.replace(max_model_len=1, auto_fit=False),
        given.kv_cache_specs,
        given.available_memory,
    )
    return max(1, plan.usable_blocks // max(1, shortest.request_blocks)) if plan.groups else 2**31


def _answer(
    text: str, changes: dict[str, tuple[str, ...]], plan: kvplan.Plan, question: ModelQuestion
) -> dict[str, Any]:
    return {
        "line": text,
        "options": {name: words[1] for name, words in changes.items() if words},
        "requested_max_model_len": _requested(question, plan),
        "max_model_len": plan.max_model_len,
        "max_concurrency": plan.max_concurrency if plan.groups else None,
        "usable_concurrency": plan.usable_concurrency if plan.groups else None,
        "steady_concurrency": plan.steady_concurrency if plan.groups else None,
    }


def _requested(question: ModelQuestion, plan: kvplan.Plan) -> int:
    full = plan_with_plenty(question)
    return full.max_model_len if full is not None else plan.max_model_len


def _words(plan: kvplan.Plan, question: ModelQuestion, concurrency: int) -> str:
    asked = _requested(question, plan)
    whole = "all that was asked for"
    if plan.max_model_len < asked:
        times = f" {concurrency:,} times" if concurrency > 1 else ""
        whole = f"the longest that fits{times} of {asked:,}"
    if not plan.groups:
        return f"kvplan: {plan.max_model_len:,} tokens; the model has no KV cache"
    return (
        f"kvplan: {plan.max_model_len:,} tokens, {whole}; {plan.max_concurrency:,.2f} such "
        f"requests at once by vLLM's figure, {plan.steady_concurrency:,.2f} steadily"
    )
