"""What stands for options that are not given: a preset, or a ``vllm serve`` line after ``--``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan.offline.cli.failures import BadInput, did_you_mean
from kvplan.offline.cli.sizes import format_exact_size

if TYPE_CHECKING:
    from kvplan.offline.serve_line import Deployment, ServeLine

#: Parameters that a preset does not hold.
_NOT_IN_PRESETS = ("preset", "print_config")


def use_preset(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Take the defaults of all options from a file. Callback of ``--preset``."""
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **_read(ctx.command, path)}
    return path


def _read(command: click.Command, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}") from None
    parameters = _parameters(command)
    by_key = {_key(parameter): parameter for parameter in parameters}
    aliases = {o.lstrip("-"): p for p in parameters for o in p.opts if o.startswith("--")}
    defaults = {}
    for key, value in values.items():
        parameter = by_key.get(key) or aliases.get(key)
        if parameter is None:
            raise BadInput(
                f"{path}: there is no option {key!r}.{did_you_mean(key, by_key)} "
                f"Known: {', '.join(by_key)}"
            )
        if parameter.nargs == -1:
            value = value if isinstance(value, list) else [value]
        elif isinstance(value, list):
            value = ",".join(map(str, value))
        defaults[parameter.name or ""] = value
    return defaults


def print_preset_if_asked(print_config: bool) -> None:
    """What ``--print-config`` does: print the options given as a preset, and end the command."""
    if print_config:
        ctx = click.get_current_context()
        click.echo(_preset_text(ctx))
        ctx.exit(0)


def _preset_text(ctx: click.Context) -> str:
    lines = []
    for parameter in _parameters(ctx.command):
        source = ctx.get_parameter_source(parameter.name or "")
        value = ctx.params.get(parameter.name or "")
        if value in (None, ()) or source is click.core.ParameterSource.DEFAULT:
            continue
        lines.append(f"{_key(parameter)} = {_toml(parameter, value)}")
    return "\n".join(lines)


def _parameters(command: click.Command) -> list[click.Parameter]:
    return [p for p in command.params if p.name not in _NOT_IN_PRESETS]


def _key(parameter: click.Parameter) -> str:
    """The option's first long name without dashes, e.g. ``kv-cache-dtype``; ``model``."""
    long = (name for name in parameter.opts if name.startswith("--"))
    return next(long, parameter.opts[0]).lstrip("-")


def _toml(parameter: click.Parameter, value: Any) -> str:
    if parameter.nargs == -1:
        return json.dumps([str(v) for v in value])
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(k)} = {_toml(parameter, v)}" for k, v in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, (bool, int, float)) and parameter.name not in ("weights", "overhead"):
        return json.dumps(value)
    if parameter.name in ("memory", "weights", "overhead") and not isinstance(value, str):
        sizes = value if isinstance(value, (tuple, list)) else (value,)
        return json.dumps(",".join(map(format_exact_size, sizes)))
    if isinstance(value, (tuple, list)):
        return json.dumps(",".join(map(str, value)))
    return json.dumps(str(value))


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
