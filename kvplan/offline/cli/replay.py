"""``kvplan replay``: what a plan does to a load."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import deployment_options, option_given, read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, INTERRUPTED, BadInput, say_on_stderr
from kvplan.offline.cli.param_types import FILE, POSITIVE, IntegerIn, NumberIn, Parsed
from kvplan.offline.cli.pictures import CHART_HELP, check_chart, write_chart
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question
from kvplan.offline.cli.row_writers import RowWriter
from kvplan.offline.cli.sweep_run import Interrupts
from kvplan.offline.cli.terminal import ProgressBar, make_console, print_json
from kvplan.offline.replay.step_time import parse_step_time

if TYPE_CHECKING:
    from kvplan.offline.cli.workload import Workload
    from kvplan.offline.replay.run import Policy, Report
    from kvplan.offline.replay.trace import Trace

EPILOG = """\b
Examples:
  kvplan replay conversation.jsonl.xz llama-3.1-70b --tp 4 --gpu H100
  kvplan replay chat:requests=500,rate=3 gemma-3-27b --memory 30GiB
  kvplan replay azure.csv qwen3-8b --gpu L40S -o requests.parquet --plot load.svg
  kvplan replay agents gemma-3-27b --memory 30GiB --step-time base=8ms,token=20us --json

\b
TRACE is a file (Mooncake's JSON lines, Azure's CSV, vLLM's benchmark JSON lines, or a list of
requests; .xz, .gz and .bz2, too) or a load made from a seed: chat, agents, documents, mixed, with
:requests=N,rate=X,seed=N. docs/replay.md has the formats.
Exit codes: 0 the trace ran, 1 the plan does not fit, 2 the input is wrong, 130 interrupted.
"""

#: Columns of ``--output``.
COLUMNS: dict[str, type] = {
    "arrival": float,
    "prompt_tokens": int,
    "output_tokens": int,
    "end": str,
    "hit_tokens": int,
    "preemptions": int,
    "admitted": float,
    "first_token": float,
    "finished": float,
}

TRACE_OPTIONS = (
    click.option("--limit", type=POSITIVE, help="Requests of the trace to read at most."),
    click.option(
        "--rate",
        type=NumberIn(0, 1e9, min_open=True),
        help="Requests a second, evenly apart, instead of the trace's arrivals.",
    ),
    click.option(
        "--speed",
        type=NumberIn(0, 1e9, min_open=True),
        help="Arrivals so many times faster.",
    ),
)
STEP_TIME = click.option(
    "--step-time",
    type=Parsed("time", parse_step_time),
    help="Of a replay, how long a step takes: base=8ms,token=20us,sequence=5us,context=10ns,"
    "group=2us,row=1us, or some of these; or a log of vllm serve, to whose throughput they are "
    "fitted. A model of time, no measurement.  [default: by the data sheet of --gpu]",
)
ACCEPTANCE = click.option(
    "--acceptance",
    type=NumberIn(0, 1),
    help="Chance that a draft of --speculative-config is accepted whose forerunners are.  "
    "[default: no drafts are made, and the drafter only holds its blocks]",
)
POLICY_OPTIONS = (
    click.option(
        "--scheduling-policy",
        type=click.Choice(["fcfs", "priority"]),
        default="fcfs",
        show_default=True,
        help="As for vLLM.",
    ),
    click.option(
        "--long-prefill-token-threshold",
        type=IntegerIn(min=0),
        default=0,
        show_default=True,
        help="Tokens of a step that one prompt takes at most; 0: no limit.",
    ),
    click.option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        default=True,
        show_default=True,
        help="Whether prompts are computed in pieces.",
    ),
    click.option(
        "--watermark",
        type=NumberIn(0, 1),
        default=0.0,
        show_default=True,
        help="Share of the blocks that an admission leaves free.",
    ),
    STEP_TIME,
    ACCEPTANCE,
)


def workload_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command ``--workload`` and the options of its replay; `what` it does with the load."""

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        load = click.option("--workload", metavar="TRACE", help=f"{what} (as for 'kvplan replay').")
        for option in reversed((load, *TRACE_OPTIONS, STEP_TIME, ACCEPTANCE)):
            function = option(function)
        return function

    return give


def replay_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a trace and of the scheduler."""
    for option in reversed((*TRACE_OPTIONS, *POLICY_OPTIONS)):
        function = option(function)
    return function


@click.command("replay", epilog=EPILOG)
@click.argument("trace")
@deployment_options
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Write a row a request into a .csv, .json, .jsonl or (pip install pyarrow) .parquet file.",
)
@click.option(
    "--plot",
    type=FILE,
    help=f"Draw blocks in use, requests and the hit rate over time: {CHART_HELP}.",
)
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    trace: str,
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    quiet: bool,
    **values: Any,
) -> int:
    """Run TRACE through the plan and cache manager of MODEL, as vLLM's scheduler would.

    Which prompts hit, what waits, what is preempted, what the cache holds: all of it follows from
    the plan and the trace. How long steps take is a stated model.
    """
    if plot is not None:
        check_chart(plot)
    question = read_question(values)
    load = read_load(trace, values).of_one_engine(question.replicas)
    given = question.planner_input()
    plan = given.plan_or_refuse()
    policy = policy_of(question, given, plan, values)
    with replayable(given.label):
        report, interrupted = run_with_progress(plan, load, policy, quiet=quiet or as_json)
    if output is not None:
        write_requests(output, report)
    if plot is not None:
        from kvplan.offline.cli.render_replay import load_figure

        write_chart(plot, f"{given.label}: {load.name}", load_figure(given.label, report))
        click.echo(f"wrote {plot}", err=True)
    if as_json:
        answer = {"model": given.label, "step_time": policy.step_time.words} | report.to_dict()
        print_json(answer)
    else:
        from kvplan.offline.cli.render_replay import render_replay

        render_replay(make_console(), given.label, report, policy)
    if interrupted:
        return INTERRUPTED
    return DOES_NOT_FIT if not report.finished.any() else FITS


@dataclass(frozen=True)
class Goals:
    """What a replay must keep.

    Attributes:
        max_first_token: Seconds to the first token at the 99th percentile.
        min_goodput: Tokens of finished requests a busy second, of all engines.
    """

    max_first_token: float | None = None
    min_goodput: float | None = None

    def __bool__(self) -> bool:
        return self.max_first_token is not None or self.min_goodput is not None

    def in_reach(self, load: Trace, policy: Policy, plan: kvplan.Plan, engines: int) -> bool:
        """Whether an engine may keep them: a step takes its base, and a request its steps."""
        base = policy.step_time.base
        if self.max_first_token is not None and base > self.max_first_token:
            return False
        served = load.prompt_tokens < plan.max_model_len
        if self.min_goodput is None or not served.any():
            return True
        room = (plan.max_model_len - load.prompt_tokens)[served]
        steps = int(load.output_tokens[served].clip(max=room).max()) / (1 + policy.num_drafts)
        tokens = int((load.prompt_tokens + load.output_tokens).sum())
        return tokens * engines >= self.min_goodput * base * steps

    def kept(self, report: Report, engines: int) -> bool:
        """Whether one of the engines keeps them and serves all that max_model_len lets in."""
        from kvplan.offline.replay.run import quantiles

        if not report.finished.any() or report.count("no room") or report.count("unfinished"):
            return False
        slowest = quantiles(report.first_token_seconds)["p99"]
        return (self.max_first_token is None or slowest <= self.max_first_token) and (
            self.min_goodput is None or report.goodput * engines >= self.min_goodput
        )

    @property
    def words(self) -> str:
        """The options."""
        options = {"--max-first-token": self.max_first_token, "--min-goodput": self.min_goodput}
        return " and ".join(f"{name} {n:g}" for name, n in options.items() if n is not None)


@contextlib.contextmanager
def replayable(label: str) -> Iterator[None]:
    """Refuse a plan that the cache manager has no policy for."""
    try:
        yield
    except kvplan.Unsupported as error:
        raise BadInput(f"{label} cannot be replayed: {error}") from None


def read_workload(values: dict[str, Any]) -> Workload | None:
    """The load of ``--workload``; None without one. Raises `BadInput`."""
    if values["workload"] is None:
        goals = ("max_first_token", "max_token_time")
        for name in ("limit", "rate", "speed", "step_time", "acceptance", *goals):
            option = option_given(name) if name in values else None
            if option is not None:
                raise BadInput(f"{option} is of a replay; give --workload, too, or leave it out")
        return None
    from kvplan.offline.cli.workload import Workload
    from kvplan.offline.replay.limits import Limits

    given = {
        name: seconds
        for name in ("first_token", "token_time")
        if (seconds := values.get(f"max_{name}")) is not None
    }
    limits = Limits(**dict.fromkeys(("first_token", "token_time"), math.inf) | given)
    return Workload(read_load(values["workload"], values), values, limits if given else None)


def read_load(text: str, values: dict[str, Any]) -> Trace:
    """The trace of a file, or a load by its name; what is odd is said. Raises `BadInput`."""
    trace = load_of(text, values)
    for remark in trace.remarks:
        say_on_stderr(f"kvplan: {text}: {remark}")
    return trace


def load_of(text: str, values: dict[str, Any], rate: float | None = None) -> Trace:
    """The same without a word; with so many requests a second where a rate is given."""
    from kvplan.offline.replay.generate import LOADS, generate, parse_spec
    from kvplan.offline.replay.read import TraceError, read_trace

    try:
        spec = parse_spec(text)
    except ValueError as error:
        raise BadInput(str(error)) from None
    limit = values.get("limit")
    if spec is not None:
        trace = generate(**spec | ({} if rate is None else {"rate": rate, "steady": True}))
        trace = trace.first(limit) if limit else trace
    elif not Path(text).is_file():
        raise BadInput(f"{text} is no file, and no load: {', '.join(LOADS)}")
    else:
        try:
            trace = read_trace(Path(text), limit)
        except TraceError as error:
            raise BadInput(str(error)) from None
    if values.get("rate"):
        trace = trace.with_rate(values["rate"])
    if values.get("speed"):
        trace = trace.faster(values["speed"])
    if rate is not None and (spec is None or values.get("rate")):
        trace = trace.faster(rate / trace.rate) if trace.rate else trace.with_rate(rate)
    return trace


def policy_of(
    question: Question, given: PlannerInput, plan: kvplan.Plan, values: dict[str, Any]
) -> Policy:
    """The scheduler's settings that the options and the deployment say."""
    from kvplan.offline.replay.run import Policy
    from kvplan.offline.replay.step_time import StepTime, default_step_time, with_parts

    step_time = StepTime()
    if isinstance(question, ModelQuestion):
        gpu = question.estimate.deployment.gpu if question.estimate is not None else None
        step_time = default_step_time(gpu, question.model, question.options, plan.bytes_per_token)
    given_policy = {
        name: values[option]
        for name, option in (
            ("policy", "scheduling_policy"),
            ("long_prefill_token_threshold", "long_prefill_token_threshold"),
            ("enable_chunked_prefill", "enable_chunked_prefill"),
            ("watermark", "watermark"),
        )
        if option in values
    }
    acceptance = values.get("acceptance")
    if acceptance is not None:
        given_policy |= _drafting(question, acceptance)
    return Policy(
        **given_policy,
        max_num_seqs=given.max_num_seqs or values["max_num_seqs"] or Policy.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        async_scheduling=values["async_scheduling"],
        max_concurrent_batches=plan.config.max_concurrent_batches,
        step_time=with_parts(step_time, values["step_time"]),
    )


def _drafting(question: Question, acceptance: float) -> dict[str, Any]:
    """The drafts of a deployment with a drafter. Raises `BadInput` where it has none."""
    from kvplan.offline.models.drafters import num_lookahead_tokens

    options = question.options if isinstance(question, ModelQuestion) else None
    drafted = 0 if options is None else options.num_speculative_tokens
    if options is None or not drafted:
        raise BadInput("--acceptance is of a drafter; give --speculative-config, too")
    return {
        "num_drafts": drafted,
        "num_lookahead_tokens": num_lookahead_tokens(options.speculative_config, drafted),
        "acceptance": acceptance,
    }


def run_with_progress(
    plan: kvplan.Plan, trace: Trace, policy: Policy, *, quiet: bool
) -> tuple[Report, bool]:
    """Run a trace under a progress bar; whether Ctrl-C ended it, with what was done kept."""
    from kvplan.offline.replay.run import run

    with (
        Interrupts() as interrupts,
        ProgressBar(len(trace), hidden=quiet, of="requests") as advance,
    ):
        done = 0

        def go_on(number: int) -> bool:
            nonlocal done
            advance(number - done)
            done = number
            return not interrupts.came

        return run(plan, trace, policy, go_on=go_on), interrupts.came


def write_requests(path: Path, report: Report) -> None:
    """A row a request."""
    from kvplan.offline.replay.run import ENDS

    trace, outcome = report.trace, report.requests
    columns = [
        trace.arrivals.tolist(),
        trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(),
        [ENDS[end] for end in outcome["end"].tolist()],
        *(outcome[name].tolist() for name in list(COLUMNS)[4:]),
    ]
    with RowWriter(path, COLUMNS) as writer:
        rows = list(zip(*columns, strict=True))
        for start in range(0, len(rows), 1 << 16):
            writer.write(rows[start : start + (1 << 16)])
