"""Write the generated parts of docs/cli.md and docs/json.md anew.

Between ``<!-- options of kvplan NAME -->`` and ``<!-- end -->`` of the one stand a command's
synopsis and options; between ``<!-- answers -->`` and ``<!-- end -->`` of the other the tables of
docs/answers.schema.json. A test compares the two.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from kvplan.offline.cli.app import app
from kvplan.offline.cli.param_types import Name

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
JSON_PAGE = PAGE.with_name("json.md")
SCHEMA = PAGE.with_name("answers.schema.json")
ANSWERS = re.compile(r"(<!-- answers -->\n).*?(<!-- end -->)", re.S)
SECTION = re.compile(r"(<!-- options of kvplan ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
#: Stands for the options that several commands have in common.
DEPLOYMENT = "MODEL"
_WITH_DEPLOYMENT = ("plan", "fit", "serve-line", "explain", "frontier", "replay", "map")


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
    """What stands between the marks of a command, or of the common options."""
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


def updated(text: str) -> str:
    """The page with every marked part written anew."""
    return SECTION.sub(lambda match: f"{match[1]}\n{section(match[2])}\n{match[3]}", text)


def documented(text: str) -> list[str]:
    """Names of the marked parts."""
    return [match[2] for match in SECTION.finditer(text)]


def answers(text: str) -> str:
    """The page of JSON answers with its tables written anew."""
    definitions = json.loads(SCHEMA.read_text())["$defs"]

    def link(reference: dict[str, Any]) -> str:
        title = definitions[reference["$ref"].rpartition("/")[2]]["title"]
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"

    def field(name: str, schema: dict[str, Any], required: list[str]) -> str:
        options = [schema, schema.get("items", {}), *schema.get("anyOf", [])]
        links = [f": {link(option)}" for option in options if "$ref" in option]
        absent = "" if name in required else " (may be absent)"
        meaning = f"{schema['description']}{''.join(links)}{absent}"
        return f"| `{name}` | {schema.get('unit', '')} | {meaning} |"

    parts = []
    for definition in definitions.values():
        parts.append(f"## {definition['title']}\n")
        if definition["type"] == "array":
            parts.append(f"A list of {link(definition['items'])}.\n")
            continue
        fields = definition["properties"].items()
        rows = [field(name, schema, definition["required"]) for name, schema in fields]
        parts.append("\n".join(["| field | unit | meaning |", "|---|---|---|", *rows, ""]))
    return ANSWERS.sub(lambda match: match[1] + "\n" + "\n".join(parts) + "\n" + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
    JSON_PAGE.write_text(answers(JSON_PAGE.read_text()))
