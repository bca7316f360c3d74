"""The commands in the documentation run, in order, and print what it says."""

import importlib.util
import re
import subprocess
from pathlib import Path

import click
import pytest
from cli_runner import execute_line, run, surroundings

from kvplan.offline.cli.app import COMMANDS, app

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.S | re.M)


def commands_of(page):
    """(command, lines printed) pairs of a page."""
    pairs = []
    for block in BLOCK.findall((DOCS / page).read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                pairs.append((line[2:], []))
            else:
                pairs[-1][1].append(line)
    return pairs


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("../README.md", 1),
        ("tutorial.md", 10),
        ("cli.md", 10),
        ("sliced.md", 3),
        ("serve_line.md", 2),
        ("hit-rates.md", 11),
    ],
)
def test_commands_print_what_the_page_says(page, commands, tmp_path):
    pairs = commands_of(page)
    assert len(pairs) >= commands
    for command, lines in pairs:
        assert command.startswith("kvplan ")
        result = subprocess.run(
            execute_line() + command.removeprefix("kvplan"),
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            **surroundings(cwd=tmp_path),
        )
        assert result.returncode in (0, 1), (command, result.stderr)
        printed = [line.rstrip() for line in (result.stdout + result.stderr).splitlines()]
        assert matches([line for line in printed if line], [line for line in lines if line]), (
            command,
            printed,
        )


def load_script(name="make_cli_docs"):
    path = DOCS.parent / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_of_every_command_is_on_the_site():
    script = load_script()
    page = (DOCS / "cli.md").read_text()
    text = script.with_options(page)
    assert set(script.SECTION.findall(page)) == {script.DEPLOYMENT, *COMMANDS}
    context = click.Context(app)
    for name in COMMANDS:
        part = text.partition(f"\n## kvplan {name}\n")[2].partition("\n## ")[0]
        if "#options-of-a-deployment" in part:
            part += script.section(script.DEPLOYMENT)
        for option in app.get_command(context, name).params:
            if isinstance(option, click.Option):
                assert option.help, (name, option.name)
                spellings = (*option.opts, *option.secondary_opts)
                assert any(re.search(f"^\\| .*{o}[ `,]", part, re.M) for o in spellings), (
                    name,
                    spellings,
                )


@pytest.mark.parametrize(("page", "name", "command"), load_script("make_docs_images").PICTURES)
def test_pictures_are_what_the_page_says(tmp_path, page, name, command):
    """To mend it: python scripts/make_docs_images.py."""
    text = (DOCS / page).read_text()
    assert re.split(" --quiet| -o| --plot {}", command)[0] in text
    assert f"](images/{name})" in text
    result = run(*command.format(tmp_path / name).split())
    assert result.exit_code == 0, result.stderr
    drawn, committed = ((folder / name).read_text() for folder in (tmp_path, DOCS / "images"))
    if name.startswith("map"):
        assert drawn == committed
    else:  # where a line lies to the last digit is matplotlib's
        words = [re.findall("<text[^>]*>([^<]+)<", text) for text in (drawn, committed)]
        assert len(words[0]) > 10
        assert words[0] == words[1]


def matches(printed, documented):
    """Line by line; a line ``...`` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in documented
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def test_matching_can_fail():
    assert matches(["a", "b"], ["a", "b"])
    assert matches(["a", "b", "c"], ["a", "..."])
    assert not matches(["a", "b"], ["a"])
    assert not matches(["a"], ["b"])
