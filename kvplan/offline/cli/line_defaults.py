"""A ``vllm serve`` line after ``--``: its options become the defaults of the command's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvplan.offline.serve_line import Deployment, ServeLine

_LINE = "kvplan.serve_line"


def take_line(ctx: click.Context, command: click.Command, args: list[str]) -> list[str]:
    """The arguments without the line, whose values are put into the context's defaults.

    Raises:
        ServeLineError: The line cannot be read, or the command takes none.
    """
    if "--" not in args:
        return args
    if not _plans(command):
        from kvplan.offline.serve_line import ServeLineError, starts_server

        if starts_server(args[args.index("--") + 1 :]):
            raise ServeLineError(
                f"kvplan {command.name} takes no vllm serve line; 'kvplan plan --print-config -- "
                "vllm serve ...' prints the options that it stands for"
            )
        return args
    own, line, defaults = without_line(args)
    if line is not None:
        if any(parameter.name == "models" for parameter in command.params):
            defaults["models"] = (defaults.pop("model"),)
        ctx.default_map = {**(ctx.default_map or {}), command.name or "": defaults}
        ctx.meta[_LINE] = line
    return own


def without_line(args: list[str]) -> tuple[list[str], ServeLine | None, dict[str, Any]]:
    """Arguments without the line after ``--``, the line, and defaults of the command's parameters.

    What stands in front of the line overrides the defaults, as it does those of a preset. Arguments
    after ``--`` that are no line stay what they are.

    Raises:
        ServeLineError: The line cannot be read.
    """
    from kvplan.offline.serve_line import deployment_values, looks_like_line, read_line

    at = args.index("--") if "--" in args else len(args)
    words = args[at + 1 :]
    if not looks_like_line(words):
        return args, None, {}
    line = read_line(words)
    deployment = deployment_values(line)
    _say_what_is_not_planned(deployment)
    return args[:at], line, dict(deployment.values)


def line_given() -> ServeLine | None:
    """The line after ``--``, if there is one."""
    line: ServeLine | None = click.get_current_context().meta.get(_LINE)
    return line


def _plans(command: click.Command) -> bool:
    """Whether a command takes a deployment."""
    names = {parameter.name for parameter in command.params}
    return "tensor_parallel_size" in names and not names.isdisjoint(("model", "models"))


def _say_what_is_not_planned(deployment: Deployment) -> None:
    """One line of options with an effect that is not planned, and the notes."""
    from kvplan.offline.cli.failures import say_on_stderr

    if deployment.not_planned:
        found = [f"{name} ({effect})" for name, effect in deployment.not_planned.items()]
        say_on_stderr(f"kvplan: not planned: {', '.join(found)}")
    for note in deployment.notes:
        say_on_stderr(f"kvplan: {note}")
