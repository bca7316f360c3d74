"""Put the commands' options into a copy of docs/cli.md, and the tables of their JSON beside it.

    python scripts/make_cli_docs.py FOLDER

`scripts/build_docs` does it for the site. In FOLDER/cli.md a command's synopsis and options follow
each ``<!-- options of kvplan NAME -->``; FOLDER/json.md is made from FOLDER/answers.schema.json.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from kvplan.offline.cli.app import app
from kvplan.offline.cli.param_types import Name

SECTION = re.compile(r"<!-- options of kvplan ([\w-]+) -->\n")
#: Stands for the options that several commands have in common.
DEPLOYMENT = "MODEL"
_WITH_DEPLOYMENT = ("plan", "fit", "serve-line", "explain", "frontier", "replay", "map")
_JSON_HEAD = """# The JSON of the commands

What the commands print with `--json`, and the columns of `sweep`. The tables are made from
[answers.schema.json](answers.schema.json), one definition each. Sizes are in bytes, lengths in
tokens; a number that is not finite is `null`. The input of `--request` is in
[request.md](request.md).
"""


def _options(name: str) -> list[click.Option]:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _row(option: click.Option) -> str:
    opts = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        opts += " / " + ", ".join(option.secondary_opts)
    elif not option.is_flag:
        opts += f" {_metavar(option.type)}"
    words = option.help or ""
    if isinstance(option.type, Name):
        words += f" One of: {', '.join(option.type.names)}."
    is_value = isinstance(option.default, (str, int, float)) and not option.is_flag
    if is_value and "default" not in words:
        words += f"  [default: {option.default}]"
    cells = (f"`{opts}`", " ".join(words.split()))
    return "".join(f"| {cell} ".replace("|", "\\|").replace("\\|", "|", 1) for cell in cells) + "|"


def _metavar(kind: click.ParamType) -> str:
    """What stands for the value; not click's own, which changes with its version."""
    if isinstance(kind, click.Choice):
        return "|".join(kind.choices)
    return {"integer range": "N", "float range": "X"}.get(kind.name, kind.name.upper())


def section(name: str) -> str:
    """Synopsis and options of a command, or the options in common."""
    if name == DEPLOYMENT:
        options, lines = _deployment_options(), []
    else:
        command = app.get_command(click.Context(app), name)
        assert command is not None
        pieces = command.collect_usage_pieces(click.Context(command))
        lines = [f"    kvplan {name} {' '.join(pieces[1:])} [OPTIONS]".rstrip(), ""]
        common = {option.name for option in _deployment_options()}
        options = [option for option in _options(name) if option.name not in common]
        if name not in _WITH_DEPLOYMENT:
            options = _options(name)
        if not options:
            lines[0] = lines[0].removesuffix(" [OPTIONS]")
    if options:
        lines += ["| option | meaning |", "|---|---|", *map(_row, options), ""]
    if name in _WITH_DEPLOYMENT:
        lines += ["Beside these all [options of a deployment](#options-of-a-deployment).", ""]
    return "\n".join(lines)


def _deployment_options() -> list[click.Option]:
    """Options that all commands which plan one deployment have."""
    shared = set.intersection(*({o.name for o in _options(name)} for name in _WITH_DEPLOYMENT))
    return [option for option in _options("plan") if option.name in shared]


def with_options(text: str) -> str:
    """The page with the options at their marks."""
    return SECTION.sub(lambda match: f"\n{section(match[1])}\n", text)


def answers(definitions: dict[str, Any]) -> str:
    """The page of JSON answers."""

    def link(reference: dict[str, Any]) -> str:
        title = definitions[reference["$ref"].rpartition("/")[2]]["title"]
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"

    def field(name: str, schema: dict[str, Any], required: list[str]) -> str:
        options = [schema, schema.get("items", {}), *schema.get("anyOf", [])]
        links = [f": {link(option)}" for option in options if "$ref" in option]
        absent = "" if name in required else " (may be absent)"
        meaning = f"{schema['description']}{''.join(links)}{absent}"
        return f"| `{name}` | {schema.get('unit', '')} | {meaning} |"

    parts = [_JSON_HEAD]
    for definition in definitions.values():
        parts.append(f"## {definition['title']}\n")
        if definition["type"] == "array":
            parts.append(f"A list of {link(definition['items'])}.\n")
            continue
        fields = definition["properties"].items()
        rows = [field(name, schema, definition["required"]) for name, schema in fields]
        parts.append("\n".join(["| field | unit | meaning |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "cli.md").write_text(with_options((folder / "cli.md").read_text()))
    schema = json.loads((folder / "answers.schema.json").read_text())
    (folder / "json.md").write_text(answers(schema["$defs"]))
