"""``kvplan log``: what a vLLM start-up log says, and several side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvplan.offline.budget.gpus import find_gpu
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, say_on_stderr
from kvplan.offline.cli.files import refuse_other_kind
from kvplan.offline.cli.param_types import FILE, IntegerIn, ModelName, Parsed
from kvplan.offline.cli.pictures import CHART_HELP, check_chart, starts_figure, write_chart
from kvplan.offline.cli.terminal import make_console, print_json

EPILOG = """\b
Examples:
  kvplan log server.log
  docker logs vllm 2>&1 | kvplan log -
  kvplan log server.log --model ./Qwen3-8B --write-request request.json
  kvplan log before.log after.log --plot starts.svg

\b
A log is what 'vllm serve' (0.10 and later) prints while it starts, whatever a terminal or a
container puts around its lines. Of a log with several starts the last one counts.

Exit codes: 0 the engine started, 1 it did not, 2 the input is wrong.
"""


@click.command("log", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--start", type=IntegerIn(min=1), help="The start that counts, from 1, of each log.")
@click.option(
    "--model",
    type=ModelName(),
    help="The model's config, where the one that the log names is not here.",
)
@click.option(
    "--gpu",
    type=Parsed("gpu", find_gpu),
    help="The GPU, where the log does not say its memory.",
)
@click.option(
    "--write-request",
    type=FILE,
    help="Write the planner's input, as the log has it, to this file, for --request.",
)
@click.option("--plot", type=FILE, help=f"Draw where the time of each start went: {CHART_HELP}.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    files: tuple[str, ...],
    plot: Path | None,
    write_request: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Explain the start-up log in FILE (or - for stdin), or set several side by side."""
    if len(files) > 1 and write_request is not None:
        raise BadInput("--write-request writes the request of one log; give one FILE")
    if files.count("-") > 1:
        raise BadInput("- is stdin, which can be read once")
    if plot is not None:
        check_chart(plot)
    from kvplan.offline.cli.log_report import LogReport

    reports = [LogReport(_name(file), *_start(file, options["start"]), options) for file in files]
    if write_request is not None:
        from kvplan.offline.cli.plan import write_request_file

        write_request_file(reports[0].planner_input(), write_request)
    if plot is not None:
        write_chart(plot, "Starts", starts_figure(reports))
    if as_json:
        answers = [report.as_dict() for report in reports]
        print_json(answers[0] if len(answers) == 1 else answers)
    else:
        from kvplan.offline.cli.render_log import render_comparison, render_log

        console = make_console()
        if len(reports) == 1:
            render_log(console, reports[0])
        else:
            render_comparison(console, reports)
    return FITS if all(report.start.refusal is None for report in reports) else DOES_NOT_FIT


def _name(file: str) -> str:
    return "stdin" if file == "-" else file


def _start(file: str, number: int | None) -> tuple[Any, int]:
    """The start that counts in a log, and how many it holds."""
    from kvplan.offline.startup_log import read_starts

    if file == "-":
        starts = read_starts(sys.stdin.buffer, _name(file))
    else:
        path = Path(file)
        if path.is_dir():
            raise BadInput(f"{file} is a directory; give a log file, or - for stdin")
        refuse_other_kind(path, "log")
        with path.open("rb") as stream:
            if stream.read(2) == b"\x1f\x8b":
                raise BadInput(f"{file} is compressed; give it as: zcat {file} | kvplan log -")
            stream.seek(0)
            starts = read_starts(stream, file)
    if number is not None and number > len(starts):
        raise BadInput(f"--start {number}: {_name(file)} holds {len(starts)} starts")
    if number is None and len(starts) > 1:
        say_on_stderr(
            f"kvplan: {_name(file)} holds {len(starts)} starts; this is the last one (--start N "
            "shows another)"
        )
    return starts[(number or len(starts)) - 1], len(starts)
