"""``kvplan models``: what can be planned by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvplan.offline.cli.failures import FITS
from kvplan.offline.cli.knobs import PLENTY, plan_given_plenty
from kvplan.offline.cli.plan_facts import fixed_from_tokens
from kvplan.offline.cli.question import ModelQuestion
from kvplan.offline.cli.sizes import format_size, format_token_count
from kvplan.offline.cli.terminal import Column, FittingTable, make_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

EPILOG = """\b
Examples:
  kvplan models
  kvplan models --architectures
  kvplan models --json
"""


@click.command("models", epilog=EPILOG)
@click.option("--architectures", is_flag=True, help="List the architectures of a config.json.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(architectures: bool, as_json: bool) -> int:
    """List the built-in models, or every architecture that can be planned from a config.json."""
    from kvplan.offline import models

    if architectures:
        names = models.known_architectures()
        print_json(names) if as_json else click.echo("\n".join(names))
        return FITS
    rows = [_row(name) for name in models.builtin_models()]
    if as_json:
        print_json(rows)
        return FITS
    _print_table(rows)
    return FITS


def _row(name: str) -> dict[str, Any]:
    """What one GPU would hold of a request of the model's full length."""
    from kvplan.offline.models import ModelOptions, load

    question = ModelQuestion(load(name), ModelOptions(), memory=(PLENTY,))
    given = question.planner_input()
    plan = plan_given_plenty(given)
    return {
        "name": name,
        "architecture": given.facts["architecture"],
        "family": question.model_input().family,
        "layers": sum(group.num_layers for group in plan.groups) if plan else None,
        "groups": len(plan.groups) if plan else None,
        "max_model_len": given.config.max_model_len,
        "bytes_per_token": plan.bytes_per_token if plan else None,
        "fixed_bytes_per_request": plan.fixed_bytes_per_request if plan else None,
        "fixed_from_tokens": fixed_from_tokens(plan) if plan and plan.groups else None,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    console = make_console()
    numbers = ("caches", "groups", "context", "per token", "fixed")
    names = (Column("model", words=True), Column("architecture", words=True))
    table = FittingTable([*names, *map(Column, numbers)])
    for row in rows:
        table.add_row(row["name"], row["architecture"], *_numbers(row))
    if table.fits(console.width):
        table.print(console)
    else:
        _print_under_names(console, rows, numbers)
    console.print(
        "Bytes of one request on one GPU, with vLLM's defaults; fixed: what windows and states of "
        "a request of the full context hold. A config.json of any known "
        "architecture can be planned, too: 'kvplan models --architectures'."
    )


def _numbers(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        *(f"{row[key]:,}" for key in ("layers", "groups")),
        format_token_count(row["max_model_len"]),
        format_size(row["bytes_per_token"]),
        format_size(row["fixed_bytes_per_request"]),
    )


def _print_under_names(
    console: Console, rows: list[dict[str, Any]], headers: tuple[str, ...]
) -> None:
    """Two lines a model, for terminals that are too narrow for one."""
    cells = [_numbers(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]

    def line(texts: tuple[str, ...]) -> str:
        aligned = (f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))
        return "  " + "  ".join(aligned)

    lines = ["model, architecture", line(headers), ""]
    for row, texts in zip(rows, cells, strict=True):
        lines += [f"{row['name']}, {row['architecture']}", line(texts)]
    for text in [*lines, ""]:
        console.print(text, markup=False, soft_wrap=True)
