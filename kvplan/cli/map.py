"""``kvplan map``: a picture of what a block holds."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import click

import kvplan
from kvplan.cli.deployment_options import deployment_options, read_question
from kvplan.cli.failures import FITS, BadInput
from kvplan.cli.knobs import PLENTY
from kvplan.cli.sizes import format_size

SUFFIXES = (".svg", ".html", ".png")

EPILOG = """\b
Examples:
  kvplan map gemma-3-27b -o gemma.svg
  kvplan map deepseek-v4-flash --tp 4 --grouping compact -o flash.html
"""


@click.command("map", epilog=EPILOG)
@deployment_options
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .svg file, a .html file that needs no network, or (with cairosvg installed) a .png.",
)
def command(output: Path, **values: Any) -> int:
    """Draw what a block of MODEL's cache holds, group by group, with padding hatched."""
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput(f"{output}: the file's name must end in {', '.join(SUFFIXES)}")
    question = read_question(values, needs_memory=False)
    if not values["memory"] and values["gpu"] is None and values["request_file"] is None:
        question = question.with_memory((PLENTY,))
    given = question.planner_input()
    plan = given.plan()
    if not plan.groups:
        raise BadInput(f"{given.label} has no layer with a KV cache, so there is nothing to draw")
    picture = _svg(given.label, plan)
    if suffix == ".svg":
        output.write_text(picture, encoding="utf-8")
    elif suffix == ".html":
        output.write_text(_html(given.label, picture), encoding="utf-8")
    else:
        _write_png(picture, output)
    click.echo(f"wrote {output}", err=True)
    return FITS


def _svg(label: str, plan: kvplan.Plan) -> str:
    from kvplan.cli.block_map import block_map
    from kvplan.cli.map_svg import draw_svg

    block = block_map(plan)
    padding = sum(group.padding_bytes * group.pages_per_request for group in plan.groups)
    part = padding / plan.request_bytes if plan.request_bytes else 0
    subtitle = (
        f"A block of {format_size(block.bytes_per_block)} belongs to one group at a time. Layout "
        f"{block.layout}. Of a request of {plan.max_model_len:,} tokens, {part:.1%} is padding."
    )
    return draw_svg(f"{label}: what a block holds", subtitle, block)


def _html(label: str, picture: str) -> str:
    """One file that needs nothing else; a page's name shows when the pointer is on it."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(label)}: what a block holds</title>"
        "<style>body{margin:16px}svg{max-width:100%;height:auto}</style></head>\n"
        f"<body>\n{picture}</body></html>\n"
    )


def _write_png(picture: str, output: Path) -> None:
    try:
        import cairosvg  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except (ImportError, OSError):
        raise BadInput(
            f"{output}: a .png needs the package cairosvg (pip install cairosvg); a .svg or .html "
            "needs nothing"
        ) from None
    cairosvg.svg2png(bytestring=picture.encode(), write_to=str(output), scale=2)
