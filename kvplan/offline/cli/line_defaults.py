"""A ``vllm serve`` line after ``--``: its options become the defaults of the command's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvplan.offline.serve_line import Deployment, ServeLine

_LINE = "kvplan.serve_line"


def take_line(ctx: click.Context, command: click.Command, args: list[str]) -> list[str]:
    """The arguments without the line, whose values are put into the context's defaults.

    What the command line says in front of the line overrides it, as it does a preset. Arguments
    after ``--`` that are no line stay what they are.

    Raises:
        ServeLineError: The line cannot be read.
    """
    if "--" not in args or not _plans(command):
        return args
    at = args.index("--")
    own, words = args[:at], args[at + 1 :]
    from kvplan.offline.serve_line import deployment_values, looks_like_line, read_line

    if not looks_like_line(words):
        return args
    line = read_line(words)
    deployment = deployment_values(line)
    _say_what_is_not_planned(deployment)
    defaults = dict(deployment.values)
    model = next(p for p in command.params if p.name == "model")
    if model.nargs == -1:
        defaults["model"] = [defaults["model"]]
    ctx.default_map = {**(ctx.default_map or {}), command.name or "": defaults}
    ctx.meta[_LINE] = line
    return own


def line_given() -> ServeLine | None:
    """The line after ``--``, if there is one."""
    line: ServeLine | None = click.get_current_context().meta.get(_LINE)
    return line


def _plans(command: click.Command) -> bool:
    """Whether a command takes a deployment."""
    return {"model", "tensor_parallel_size"} <= {parameter.name for parameter in command.params}


def _say_what_is_not_planned(deployment: Deployment) -> None:
    """One line of options with an effect that is not planned, and the notes."""
    from kvplan.offline.cli.failures import say_on_stderr

    if deployment.not_planned:
        found = [f"{name} ({effect})" for name, effect in deployment.not_planned.items()]
        say_on_stderr(f"kvplan: not planned: {', '.join(found)}")
    for note in deployment.notes:
        say_on_stderr(f"kvplan: {note}")
