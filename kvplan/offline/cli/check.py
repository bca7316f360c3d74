"""``kvplan check``: is a placement correct, whoever made it?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvplan.offline.cli.failures import FITS, counted, say_on_stderr
from kvplan.offline.cli.files import refuse_other_kind

BROKEN = 1

EPILOG = """\b
Examples:
  kvplan plan gemma-3-27b --memory 30GiB --json > plan.json
  kvplan check plan.json

Exit codes: 0 correct, 1 a rule is broken, 2 the input is wrong.
"""


@click.command("check", epilog=EPILOG)
@click.argument("plan_file", metavar="PLAN.json", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the broken rules as JSON.")
def command(plan_file: Path, as_json: bool) -> int:
    """Check the placement in PLAN.json, as 'kvplan plan --json' writes it.

    The checker shares no code with the planner: every layer of a worker in one group and one
    tensor, no byte that two pages need at the same time, every page inside the buffer, strides
    aligned, nothing left unused but alignment, all workers agreed.
    """
    from kvplan.offline.cli.placement_file import MAX_FILE_BYTES, read_placement

    refuse_other_kind(plan_file, "plan")
    with plan_file.open("rb") as file:
        placement = read_placement(file.read(MAX_FILE_BYTES + 1), str(plan_file))
    violations = placement.violations()
    if as_json:
        click.echo(json.dumps([violation._asdict() for violation in violations], indent=2))
    elif not violations:
        workers = counted(len(placement.configs), "worker")
        blocks = counted(placement.configs[0].num_blocks, "block")
        click.echo(f"{plan_file}: correct: {workers}, {blocks}, layout {placement.layout}")
    for violation in violations:
        say_on_stderr(f"kvplan: worker {violation.worker}: {violation.rule}: {violation.message}")
    return BROKEN if violations else FITS
