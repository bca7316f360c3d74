"""``kvplan fit``: what to set for a wanted context and concurrency."""

from __future__ import annotations

import json
from typing import Any

import click

from kvplan.offline.cli import fit_search
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.encoder_words import encoder_note
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, say_on_stderr
from kvplan.offline.cli.heeded import option_given
from kvplan.offline.cli.knobs import PLENTY
from kvplan.offline.cli.param_types import IntegerIn
from kvplan.offline.cli.question import ModelQuestion, Question
from kvplan.offline.cli.sizes import format_enough

EPILOG = """\b
Examples:
  kvplan fit gemma-3-27b --memory 30GiB
  kvplan fit gemma-3-27b --memory 30GiB --concurrency 4
  kvplan fit llama-3.1-70b --find memory --tp 4 --max-model-len 128K --concurrency 8
  kvplan fit llama-3.1-70b --find gpus --memory 30GiB --concurrency 4
  kvplan fit gemma-3-27b --find batch --memory 20GiB

Exit codes: 0 found, 1 nothing is enough, 2 the input is wrong.
"""

TARGETS = ("context", "memory", "gpus", "batch")


@click.command("fit", epilog=EPILOG)
@deployment_options
@click.option(
    "--find",
    type=click.Choice(TARGETS),
    default="context",
    show_default=True,
    help="context: the longest; memory: the least of each GPU; gpus: the smallest --tp "
    "of 1, 2, 4 and so on to 128; batch: the largest --max-num-batched-tokens.",
)
@click.option(
    "--concurrency",
    type=IntegerIn(min=1, max=10**9),
    default=1,
    show_default=True,
    help="Requests of the full length that are to run at once, each with all tokens in flight.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(find: str, concurrency: int, as_json: bool, **values: Any) -> int:
    """Find what fits: the longest context, or the least memory, GPUs or batch for a context.

    The context asked for is --max-model-len, or the model's own.
    """
    if values["max_model_len"] == "auto":
        raise BadInput("--max-model-len auto is what --find context finds; give a number or none")
    _refuse_what_is_found(find)
    if find == "gpus":
        # The least that can be divided among the ranks of --dcp.
        values["tensor_parallel_size"] = values["decode_context_parallel_size"]
    question = read_question(values, needs_memory=find != "memory")
    if find == "memory":
        question = question.with_memory((PLENTY,))
    if find == "gpus" and not isinstance(question, ModelQuestion):
        raise BadInput("--find gpus splits a model's caches; those of a recorded request are fixed")
    allowed = fit_search.possible_gpus(question) if find == "gpus" else {}
    first = next(iter(allowed.values()), question)
    given = first.with_memory((PLENTY,)).planner_input()
    length = given.config.max_model_len
    answer = {
        "find": find,
        "model": given.label,
        "concurrency": concurrency,
        "max_model_len": length,
        **_answer(question, find, concurrency, allowed),
    }
    found = answer["found"] is not None
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif found:
        click.echo(_words(answer))
    # The largest batch has a formula of its own.
    note = encoder_note(given.config) if find != "batch" else ""
    if found and note and not as_json:
        say_on_stderr(note)
    if not found:
        more = "give more --memory" if values["gpu"] is None else "take a larger --gpu"
        say_on_stderr(f"kvplan: {_nothing(answer, more)}")
        if note:
            say_on_stderr(note)
    return FITS if found else DOES_NOT_FIT


#: The option that each target finds, by its parameter's name.
_FOUND = {"memory": ("memory", "gpu"), "gpus": ("tensor_parallel_size",)}
_FOUND["batch"] = ("max_num_batched_tokens",)


def _refuse_what_is_found(find: str) -> None:
    """What is to be found cannot be given as well."""
    for name in _FOUND.get(find, ()):
        option = option_given(name)
        if option is not None:
            raise BadInput(f"--find {find} finds {option}; give one of the two, not both")


def _answer(
    question: Question, find: str, concurrency: int, allowed: dict[int, Question]
) -> dict[str, Any]:
    match find:
        case "context":
            return {"found": fit_search.longest_context(question, concurrency)}
        case "gpus":
            found = fit_search.fewest_gpus(allowed, concurrency)
            stages = _stages(question)
            total = None if found is None else found * stages
            return {"found": found, "total_gpus": total, "tried": list(allowed)}
        case "batch":
            batch = fit_search.largest_batch(question, concurrency)
            return {"found": batch, "any_fits": batch == fit_search.MAX_BATCH}
    memory = fit_search.least_memory(question, concurrency)
    stages = _stages(question)
    each = None if memory is None else memory[:: max(len(memory) // stages, 1)]
    return {"found": None if memory is None else max(memory), "memory_by_stage": each}


def _stages(question: Question) -> int:
    if isinstance(question, ModelQuestion):
        return question.options.pipeline_parallel_size
    return question.planner_input().config.pipeline_parallel_size


def _words(answer: dict[str, Any]) -> str:
    found, length, times = answer["found"], answer["max_model_len"], answer["concurrency"]
    requests = f"{times:,} requests" if times > 1 else "a request"
    wanted = f"{requests} of {length:,} tokens"
    match answer["find"]:
        case "context":
            whole = ", all that was asked for" if found == length else f", of {length:,} asked for"
            at_once = f" for {times:,} requests at once" if times > 1 else ""
            return f"--max-model-len {found}: the longest context that fits{at_once}{whole}"
        case "gpus":
            total = answer["total_gpus"]
            in_all = f" ({total} GPUs in all, with --pp {total // found})" if total > found else ""
            return f"--tp {found}: the fewest GPUs that hold {wanted}{in_all}"
        case "batch":
            fits = "fit" if times > 1 else "fits"
            if answer["any_fits"]:
                return (
                    f"--max-num-batched-tokens: any fits; with {found:,}, the most that is tried, "
                    f"{wanted} {fits}"
                )
            return f"--max-num-batched-tokens {found}: the largest step with which {wanted} {fits}"
    stages = answer["memory_by_stage"]
    sizes = ",".join(format_enough(size) for size in stages)
    if len(set(stages)) == 1:
        sizes = format_enough(stages[0])
    exact = f"{found:,} bytes on the largest stage" if len(set(stages)) > 1 else f"{found:,} bytes"
    return f"--memory {sizes}: the least memory of each GPU that holds {wanted} ({exact})"


def _nothing(answer: dict[str, Any], more: str) -> str:
    length, times = answer["max_model_len"], answer["concurrency"]
    wanted = (
        f"{times:,} requests of {length:,} tokens"
        if times > 1
        else (f"a request of {length:,} tokens")
    )
    match answer["find"]:
        case "context":
            many = f" {times:,} times" if times > 1 else ""
            return f"{answer['model']}: not even one token fits{many}; {more}"
        case "gpus":
            return (
                f"{answer['model']}: no --tp of {', '.join(map(str, answer['tried']))} (the "
                f"powers of two that the model and --dcp allow) holds {wanted}; {more} or "
                "a shorter --max-model-len"
            )
        case "batch":
            return (
                f"{answer['model']}: {wanted} {'do' if times > 1 else 'does'} not fit even with "
                f"one token in each step; {more} or a shorter --max-model-len"
            )
    return f"{answer['model']}: cannot be planned at {length:,} tokens with any memory"
