"""``kvplan fit``: what to set for a wanted context and concurrency."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import kvplan
from kvplan.offline.budget.gpus import Gpu
from kvplan.offline.cli import fit_search
from kvplan.offline.cli.deployment_options import (
    deployment_options,
    option_given,
    parse_gpu,
    read_question,
)
from kvplan.offline.cli.failures import (
    DOES_NOT_FIT,
    FITS,
    BadInput,
    counted,
    say_on_stderr,
    wrap_for_terminal,
)
from kvplan.offline.cli.knobs import PLENTY
from kvplan.offline.cli.param_types import FILE, LENGTH, IntegerIn, NumberIn, Parsed, parse_names
from kvplan.offline.cli.plan_facts import encoder_note
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question
from kvplan.offline.cli.replay import Goals, read_workload, replayable, workload_options
from kvplan.offline.cli.row_writers import RowWriter
from kvplan.offline.cli.sizes import format_enough
from kvplan.offline.cli.terminal import make_console, print_json

if TYPE_CHECKING:
    from kvplan.offline.cli.workload import Workload
    from kvplan.offline.replay.run import Policy, Report

EPILOG = """\b
Examples:
  kvplan fit gemma-3-27b --memory 30GiB
  kvplan fit gemma-3-27b --memory 30GiB --concurrency 4 --steady
  kvplan fit llama-3.1-70b --find memory --tp 4 --max-model-len 128K --concurrency 8
  kvplan fit llama-3.1-70b --find gpus --memory 30GiB --concurrency 4
  kvplan fit gemma-3-27b --find batch --memory 20GiB
  kvplan fit llama-3.1-70b --find gpus --gpu H100 --workload chat:rate=20 --max-first-token 2
  kvplan fit llama-3.1-70b --weights 141GB --gpu H100,H200,B200 --users 50 --context 32K

Exit codes: 0 found, 1 nothing is enough, 2 the input is wrong.
"""


def _parse_gpus(text: str) -> tuple[tuple[str, Gpu], ...]:
    """GPUs by name with commas between. Raises ValueError."""
    return tuple((name, parse_gpu(name)) for name in parse_names(text))


TARGETS = ("context", "memory", "gpus", "batch")


@click.command("fit", epilog=EPILOG)
@deployment_options
@click.option(
    "--find",
    type=click.Choice(TARGETS),
    default="context",
    show_default=True,
    help="context: the longest; memory: the least of each GPU; gpus: the fewest, with --tp, --dcp, "
    "--pp (powers of two to 128) and --dp, those given left as they are; batch: the largest "
    "--max-num-batched-tokens.",
)
@click.option(
    "--concurrency",
    type=IntegerIn(min=1, max=10**9),
    default=1,
    show_default=True,
    help="Requests of the full length that are to run at once.",
)
@click.option(
    "--steady",
    is_flag=True,
    help="Count the tokens in flight once per engine, as a running server holds them, and not once "
    "per request, as vLLM's figure does.",
)
@click.option(
    "--users",
    type=IntegerIn(min=1, max=10**6),
    help="Compare the GPUs of --gpu for so many users at once: how many GPUs, how the model is "
    "split over them, and the line of each.",
)
@click.option("--context", type=LENGTH, help="Tokens of each user's request: --max-model-len.")
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Write the comparison of --users to a .csv, a .json or a .html that needs nothing else.",
)
@workload_options("Replay this load under what is found")
@click.option(
    "--max-first-token",
    type=NumberIn(0, 1e9, min_open=True),
    help="With --find gpus and --workload: seconds to the first token at the 99th percentile, at "
    "most.",
)
@click.option(
    "--min-goodput",
    type=NumberIn(0, 1e12, min_open=True),
    help="With --find gpus and --workload: tokens of finished requests in a second in which steps "
    "run, all engines together, at least.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    find: str,
    concurrency: int,
    steady: bool,
    users: int | None,
    context: int | str | None,
    output: Path | None,
    max_first_token: float | None,
    min_goodput: float | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Find what fits: the longest context, or the least memory, GPUs or batch for a context.

    The context asked for is --max-model-len, or the model's own.
    """
    if context is not None:
        values["max_model_len"] = context
    gpus = values["gpu"] or ()
    workload = read_workload(values)
    goals = Goals(max_first_token, min_goodput)
    if goals and (workload is None or users is not None or find != "gpus"):
        raise BadInput(
            "--max-first-token and --min-goodput are goals of --find gpus with --workload; give "
            "these, too, or leave the goals out"
        )
    if users is None:
        if len(gpus) > 1 or output is not None:
            raise BadInput("several GPUs and --output are for a comparison; give --users, too")
        values["gpu"] = gpus[0][1] if gpus else None
    else:
        return _compare(values, gpus, users, steady, output, as_json, workload)
    if values["max_model_len"] == "auto":
        raise BadInput("--max-model-len auto is what --find context finds; give a number or none")
    _refuse_what_is_found(find)
    if find == "gpus":
        # The least that can be divided among the ranks of --dcp.
        values["tensor_parallel_size"] = values["decode_context_parallel_size"]
    question = read_question(values, needs_memory=find != "memory")
    if find == "memory":
        question = question.with_memory((PLENTY,))
    given = _first_split(question, find).with_memory((PLENTY,)).planner_input()
    # Only several requests differ in how tokens in flight are counted.
    figures = (False, True) if concurrency > 1 else (steady,)
    by_figure = {
        figure: _answer(question, find, concurrency, figure, workload, goals) for figure in figures
    }
    answer = {
        "find": find,
        "model": given.label,
        "concurrency": concurrency,
        "steady": steady,
        "max_model_len": given.config.max_model_len,
        **by_figure[steady],
        "found_by_vllm": by_figure.get(False, by_figure[steady])["found"],
        "found_steady": by_figure.get(True, by_figure[steady])["found"],
    }
    found = answer["found"] is not None
    if workload is not None:
        answer["workload"] = {"trace": workload.load.name} | dataclasses.asdict(goals)
    if as_json:
        print_json(answer)
    elif found:
        click.echo(wrap_for_terminal(_words(answer)))
        if workload is not None:
            click.echo(wrap_for_terminal(_replay_words(answer)))
    # The largest batch has a formula of its own.
    note = encoder_note(given.config) if find != "batch" else ""
    other = not steady
    notes = [note] if note and (not found or not as_json) else []
    if other in by_figure and by_figure[other]["found"] != answer["found"] and not as_json:
        notes.insert(0, _by_the_other(answer | by_figure[other], other))
    if not found:
        more = "give more --memory" if values["gpu"] is None else "take a larger --gpu"
        notes.insert(0, f"kvplan: {_nothing(answer, more)}")
    for text in notes:
        say_on_stderr(text)
    return FITS if found else DOES_NOT_FIT


def _compare(
    values: dict[str, Any],
    gpus: Sequence[tuple[str, Gpu]],
    users: int,
    steady: bool,
    output: Path | None,
    as_json: bool,
    workload: Workload | None,
) -> int:
    """What ``--users`` does: offers of several GPUs."""
    from kvplan.offline.cli.buyers import COLUMNS, REPLAYED, offers

    if not gpus:
        raise BadInput("--users compares GPUs; give them, e.g. --gpu H100,H200,B200")
    for name in ("find", "concurrency", "tensor_parallel_size", "pipeline_parallel_size"):
        option = option_given(name)
        if option is not None:
            raise BadInput(f"--users finds the split itself; leave {option} out")
    if output is not None and output.suffix.lower() not in (".csv", ".json", ".html"):
        raise BadInput(f"{output}: the file's name must end in .csv, .json or .html")
    replay = None if workload is None else lambda question: _replay(workload, question)[0]
    found = offers(values, gpus, users, steady, replay)
    columns = {n: kind for n, kind in COLUMNS.items() if workload is not None or n not in REPLAYED}
    described = [{name: getattr(offer, name) for name in columns} for offer in found]
    length = f" of {found[0].max_model_len:,} tokens" if found else ""
    title = f"{values['model']}: {counted(users, 'user')}{length}"
    if output is not None and output.suffix.lower() == ".html":
        from kvplan.offline.cli.buyers import offers_page

        output.write_text(offers_page(found, title), encoding="utf-8")
    elif output is not None:
        with RowWriter(output, columns) as writer:
            writer.write([tuple(offer.values()) for offer in described])
    if as_json:
        print_json(described)
    elif found and output is None:
        from kvplan.offline.cli.buyers import render_offers

        render_offers(make_console(), found)
    if not found:
        say_on_stderr(f"kvplan: no split of these GPUs holds {title}")
    return FITS if found else DOES_NOT_FIT


def _first_split(question: Question, find: str) -> Question:
    """The question, or with GPUs to find, on as few as its heads and ``--dcp`` allow."""
    if find != "gpus":
        return question
    if not isinstance(question, ModelQuestion):
        raise BadInput("--find gpus splits a model's caches; those of a recorded request are fixed")
    reason: kvplan.PlanningError | None = None
    for _, changed in fit_search.splits(question, _given_splits()):
        try:
            changed.with_memory((PLENTY,)).planner_input()
        except kvplan.PlanningError as error:
            reason = reason or error
            continue
        return changed
    raise reason or BadInput("no number of GPUs that is tried divides into --dcp ranks")


def _given_splits() -> list[str]:
    """What of the split the command line fixes."""
    names = ("pipeline_parallel_size", "decode_context_parallel_size", "replicas")
    return [name for name in names if option_given(name) is not None]


next(p for p in command.params if p.name == "gpu").type = Parsed("gpu[,gpu...]", _parse_gpus)

#: The option that each target finds, by its parameter's name.
_FOUND = {"memory": ("memory", "gpu"), "gpus": ("tensor_parallel_size",)}
_FOUND["batch"] = ("max_num_batched_tokens",)


def _refuse_what_is_found(find: str) -> None:
    """What is to be found cannot be given as well."""
    for name in _FOUND.get(find, ()):
        option = option_given(name)
        if option is not None:
            raise BadInput(f"--find {find} finds {option}; give one of the two, not both")


@dataclasses.dataclass(frozen=True)
class _Found:
    """What a search finds.

    Attributes:
        answer: For the reader; ``found`` is None where nothing is enough.
        question: The question with what was found.
    """

    answer: dict[str, Any]
    question: Question


def _answer(
    question: Question,
    find: str,
    concurrency: int,
    steady: bool,
    workload: Workload | None,
    goals: Goals,
) -> dict[str, Any]:
    """What is found, and with a workload its replay there."""
    keeps = _keeper(workload, goals) if workload is not None and goals else None
    found = _search(question, find, concurrency, steady, keeps)
    if workload is not None:
        replay = None
        if found.answer["found"] is not None:
            from kvplan.offline.cli.workload import figures

            report, policy = _replay(workload, found.question)
            replay = figures(report) | {
                "engines": found.question.replicas,
                "step_time": policy.step_time.words,
            }
        found.answer["replay"] = replay
    return found.answer


def _replay(workload: Workload, question: Question) -> tuple[Report, Policy]:
    """A replay under the plan of a question. Raises `BadInput`."""
    given, plan, policy = _planned(workload, question)
    with replayable(given.label):
        return workload.replay(plan, policy, question.replicas), policy


def _planned(workload: Workload, question: Question) -> tuple[PlannerInput, kvplan.Plan, Policy]:
    given = question.planner_input()
    plan = given.plan_or_refuse()
    return given, plan, workload.policy(question, given, plan)


def _keeper(workload: Workload, goals: Goals) -> fit_search.Keeps:
    """Whether a deployment keeps the goals; each is replayed once."""
    known: dict[fit_search.Split, bool] = {}
    planned: dict[fit_search.Split, tuple[PlannerInput, kvplan.Plan, Policy]] = {}

    def keeps(split: fit_search.Split, question: ModelQuestion) -> bool:
        if split not in known:
            engines = split.replicas
            one = dataclasses.replace(split, gpus=split.gpus // engines, replicas=1)
            if one not in planned:
                planned[one] = _planned(workload, question)
            given, plan, policy = planned[one]
            load = workload.load.of_one_engine(engines)
            with replayable(given.label):
                known[split] = goals.in_reach(load, policy, plan, engines) and goals.kept(
                    workload.replay(plan, policy, engines), engines
                )
        return known[split]

    return keeps


def _search(
    question: Question,
    find: str,
    concurrency: int,
    steady: bool,
    keeps: fit_search.Keeps | None,
) -> _Found:
    match find:
        case "context":
            length = fit_search.longest_context(question, concurrency, steady)
            return _Found({"found": length}, question.with_length(length or 1))
        case "gpus":
            assert isinstance(question, ModelQuestion)
            fixed = _given_splits()
            found = fit_search.fewest_gpus(question, concurrency, steady, fixed, keeps)
            if found is None:
                nothing = dict.fromkeys(("found", "options", "split", "cache_copies"))
                return _Found(nothing, question)
            split, plan, deployment = found
            answer = {
                "found": split.gpus,
                "options": split.options,
                "split": {
                    "tensor_parallel_size": split.tp,
                    "decode_context_parallel_size": split.dcp,
                    "pipeline_parallel_size": split.pp,
                    "data_parallel_size": split.replicas,
                },
                # Ranks of --dcp share what would otherwise be copies.
                "cache_copies": kvplan.kv_cache_groups_tp_replicas(plan.kv_cache_groups, split.tp)
                // split.dcp
                or 1,
            }
            return _Found(answer, deployment)
        case "batch":
            batch = fit_search.largest_batch(question, concurrency, steady)
            any_fits = batch == fit_search.MAX_BATCH
            return _Found({"found": batch, "any_fits": any_fits}, question.with_batch(batch or 1))
    memory = fit_search.least_memory(question, concurrency, steady)
    if memory is None:
        return _Found({"found": None, "memory_by_stage": None}, question)
    each = memory[:: max(len(memory) // _stages(question), 1)]
    answer = {"found": max(memory), "memory_by_stage": each}
    return _Found(answer, question.with_memory(memory))


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
            return (
                f"{answer['options']}: {counted(found, 'GPU')}, the fewest that hold {wanted}"
                f"{_and_keep(answer)}; "
                f"{_copies(answer)}"
            )
        case "batch":
            fits = "fit" if times > 1 else "fits"
            if answer["any_fits"]:
                return (
                    f"--max-num-batched-tokens: any fits; with {found:,}, the most that is tried, "
                    f"{wanted} {fits}"
                )
            option = f"--max-num-batched-tokens {found}"
            return f"{option}: the most tokens in a step with which {wanted} {fits}"
    stages = answer["memory_by_stage"]
    sizes = ",".join(format_enough(size) for size in stages)
    if len(set(stages)) == 1:
        sizes = format_enough(stages[0])
    exact = f"{found:,} bytes on the largest stage" if len(set(stages)) > 1 else f"{found:,} bytes"
    return f"--memory {sizes}: the least memory of each GPU that holds {wanted} ({exact})"


def _and_keep(answer: dict[str, Any]) -> str:
    """The goals, after what is held."""
    goals = Goals(*list(answer.get("workload", {}).values())[1:])
    return f" and keep {goals.words}" if goals else ""


def _replay_words(answer: dict[str, Any]) -> str:
    found = answer["replay"]
    engines = found["engines"]
    share = f", on each of {engines} engines" if engines > 1 else ""
    return (
        f"Replayed, {answer['workload']['trace']}{share}: {found['hit_rate']:.1%} hits, first "
        f"token after {found['first_token_seconds']['p99']:,.3f} s at the 99th percentile, "
        f"{found['goodput']:,.0f} tokens a busy second, {found['finished']:,} of "
        f"{found['requests']:,} requests finished. Step time: {found['step_time']}."
    )


def _copies(answer: dict[str, Any]) -> str:
    """What of the deployment is there more than once."""
    split, copies = answer["split"], answer["cache_copies"]
    parts = []
    if copies > 1:
        parts.append(f"each token's cache is replicated on {copies} GPUs")
    if split["data_parallel_size"] > 1:
        each = -(-answer["concurrency"] // split["data_parallel_size"])
        engines = f"{split['data_parallel_size']} engines, each for {counted(each, 'request')}"
        parts.append(f"the weights are replicated in {engines}")
    return ", and ".join(parts) or "nothing of the cache is replicated"


def _by_the_other(answer: dict[str, Any], steady: bool) -> str:
    """What is found when the tokens in flight are counted the other way."""
    how = (
        "With the tokens in flight counted once per engine, as a server holds them (--steady)"
        if steady
        else "By vLLM's figure, which charges each request all tokens in flight"
    )
    if answer["found"] is None:
        return f"{how}: nothing is enough"
    return f"{how}, {_words(answer)}"


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
                f"{answer['model']}: no --tp, --dcp, --pp and --dp that the model allows, up to "
                f"128 GPUs, hold {wanted}{_and_keep(answer)}; {more} or a shorter "
                "--max-model-len"
            )
        case "batch":
            return (
                f"{answer['model']}: {wanted} {'do' if times > 1 else 'does'} not fit even with "
                f"one token in each step; {more} or a shorter --max-model-len"
            )
    return f"{answer['model']}: cannot be planned at {length:,} tokens with any memory"
