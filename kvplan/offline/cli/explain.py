"""``kvplan explain``: one request's bill, group by group, in plain words."""

from __future__ import annotations

import json
from typing import Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS, BadInput, does_not_fit
from kvplan.offline.cli.knobs import PLENTY, plan_with_plenty, try_plan
from kvplan.offline.cli.question import Question

EPILOG = """\b
Examples:
  kvplan explain gemma-3-27b
  kvplan explain gemma-3-27b --memory 30GiB --max-model-len 64K
  kvplan explain --request recorded.json

Exit codes: 0 it fits (or no --memory was given), 1 it does not fit, 2 the input is wrong.
"""

LENGTHS = (1 << 10, 1 << 13, 1 << 15, 1 << 17, 1 << 20)


@click.command("explain", epilog=EPILOG)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print the bill as JSON.")
def command(as_json: bool, **values: Any) -> int:
    """Explain what one request of MODEL holds, and why. Without --memory: only that."""
    question = read_question(values, needs_memory=False)
    knows_memory = question.has_memory
    if not knows_memory:
        if values["max_model_len"] == "auto":
            raise BadInput("--max-model-len auto fits the context to --memory; give that, too")
        question = question.with_memory((PLENTY,))
    given = question.planner_input()
    # A length that is fitted is part of the plan with the real memory only.
    plan = given.plan_or_refuse() if given.config.auto_fit else plan_with_plenty(question)
    if plan is None:
        given.plan_or_refuse()  # raises the reason
        raise BadInput(f"{given.label} cannot be planned")
    actual = try_plan(question) if knows_memory else None
    fits = actual is not None or not knows_memory
    by_length = _by_length(question, plan.max_model_len, actual is not None)
    if as_json:
        from kvplan.offline.cli.explain_words import bill_dict

        answer = bill_dict(given, plan, actual) | {"fits": fits, "by_length": by_length}
        click.echo(json.dumps(answer, indent=2))
    else:
        from kvplan.offline.cli.explain_words import explain_lines
        from kvplan.offline.cli.terminal import make_console

        console = make_console()
        for line in explain_lines(given, plan, actual, by_length):
            console.print(line, markup=False)
        if not fits:
            hint = "'kvplan plan' says what would help."
            console.print(does_not_fit(given.label, hint), markup=False)
    return FITS if fits else DOES_NOT_FIT


def _by_length(question: Question, longest: int, fits: bool) -> list[dict[str, Any]]:
    """What a request of some lengths holds, and how many run at once."""
    rows = []
    for length in [n for n in LENGTHS if n < longest] + [longest]:
        shorter = question.with_length(length)
        plan: kvplan.Plan | None = plan_with_plenty(shorter)
        if plan is None:
            continue
        real = try_plan(shorter) if fits else None
        rows.append(
            {
                "length": length,
                "request_bytes": plan.request_bytes,
                "max_concurrency": real.max_concurrency if real else None,
                "usable_concurrency": real.usable_concurrency if real else None,
                "steady_concurrency": real.steady_concurrency if real else None,
            }
        )
    return rows
