"""The vLLM command inside a line: after assignments and wrappers, in ``docker run``, in a file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvplan.offline.serve_line.arguments import Argument, merged, parse_arguments
from kvplan.offline.serve_line.errors import ServeLineError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_YAML = (".yaml", ".yml")
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_CONTAINER_TOOLS = ("docker", "podman", "nerdctl")
#: Options of ``docker run`` without a value; all others have one.
_DOCKER_SWITCHES = (
    "--detach",
    "--interactive",
    "--tty",
    "--rm",
    "--privileged",
    "--init",
    "--read-only",
    "--publish-all",
    "--quiet",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--sig-proxy",
    "--disable-content-trust",
    "--replace",
)
_DOCKER_SHORT_SWITCHES = frozenset("ditqP")
_FULL_LINE = "e.g. vllm serve ORG/MODEL --tensor-parallel-size 2"


@dataclass(frozen=True)
class ServeLine:
    """A line that starts a server.

    Attributes:
        model: The model, as it stands alone or after ``--model``; None where the line has none.
        arguments: The options in order, those of a ``--config`` file before the line's own.
        environment: Variables that the line sets.
    """

    model: str | None
    arguments: tuple[Argument, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Each option's value by vLLM's name of the field: the last one given, JSON merged."""
        plain: dict[str, Any] = {}
        dotted: dict[str, dict[str, Any]] = {}
        for argument in self.arguments:
            dest = argument.option.dest
            if isinstance(argument.value, dict):
                dotted[dest] = merged(dotted.get(dest, {}), argument.value)
            else:
                plain[dest] = argument.value
        return plain | dotted


def looks_like_line(words: Sequence[str]) -> bool:
    """Whether words are meant as a line (or a file that holds one) rather than as arguments."""
    if len(words) == 1:
        return words[0].endswith(_YAML) or len(words[0].split()) > 1
    return len(words) > 1


def starts_server(words: Sequence[str]) -> bool:
    """Whether words hold a command that starts a server, rather than arguments of kvplan."""
    words = list(words)
    if any(_server_arguments(words, i) is not None for i in range(len(words))):
        return True
    return any(Path(word).name in _CONTAINER_TOOLS for word in words[:2])


def read_line(words: Sequence[str]) -> ServeLine:
    """The server that a line would start.

    Args:
        words: The words of the line, or one text with the whole line, or the name of a YAML file,
            after a ``#`` the container of it that is meant.

    Raises:
        ServeLineError: It starts no vLLM server, or not as one could tell.
    """
    if len(words) == 1:
        name, _, container = words[0].partition("#")
        if name.endswith(_YAML) and len(name.split()) == 1:
            from kvplan.offline.serve_line.manifest import words_in_file

            environment, command = words_in_file(Path(name), container or None)
            return _serve_line(command, environment)
        words = split_text(words[0])
    found = _command(list(words))
    if found is None:
        shown = " ".join(words[:4]) + (" ..." if len(words) > 4 else "")
        raise ServeLineError(f"{shown!r} starts no vLLM server; give the whole line, {_FULL_LINE}")
    environment, command = found
    return _serve_line(command, environment)


def split_text(text: str) -> list[str]:
    """The words of a line as a shell would see them.

    Raises:
        ServeLineError: A shell would do more with it than split it, or cannot.
    """
    joined = _joined(text)
    for place, shown in _shell_places(joined):
        if joined[place:].strip():
            raise ServeLineError(
                f"the line holds {shown}, which is for a shell; nothing of a line is run here, so "
                f"give the vLLM command alone, {_FULL_LINE}"
            )
    try:
        return shlex.split(joined, comments=True)
    except ValueError as error:
        raise ServeLineError(f"the line cannot be split into words: {error}") from None


def _joined(text: str) -> str:
    """A text whose lines that end in a backslash go on."""
    return re.sub(r"\\\r?\n", " ", text)


def _shell_places(text: str) -> Iterator[tuple[int, str]]:
    """Where a shell would run, join or redirect something, and what stands there."""
    quote, is_escaped = "", False
    for i, char in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote and char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif quote != "'" and (char == "`" or text.startswith("$(", i)):
            yield i, char if char == "`" else "$("
        elif not quote and char in ";|&<>\n":
            yield i, "a line break" if char == "\n" else char


def _script_words(text: str) -> list[str]:
    """The words of the one command of a container's script that starts a server."""
    joined = _joined(text)
    joined = re.sub(r"(?<=\s)\d(?=>)", "", joined)  # of a redirection
    cuts = [place for place, shown in _shell_places(joined) if shown not in ("`", "$(")]
    ends = [*cuts, len(joined)]
    parts = [joined[i:j].strip(" ;|&<>\n") for i, j in zip([0, *cuts], ends, strict=True)]
    servers = [part for part in parts if starts_server(part.split())]
    return split_text(servers[0] if len(servers) == 1 else text)


def _command(words: list[str]) -> tuple[dict[str, str], list[str]] | None:
    """The environment and arguments of the server that words start; None where they start none."""
    environment: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])) is not None:
        environment[match[1]] = match[2]
        words = words[1:]
    for i, word in enumerate(words):
        tool = Path(word).name
        if tool in _CONTAINER_TOOLS and "run" in words[i + 1 : i + 3]:
            inner, command = _container_command(words[words.index("run", i) + 1 :])
            return environment | inner, command
        if word in ("-c", "-lc") and i and Path(words[i - 1]).name in ("sh", "bash"):
            found = _command(_script_words(words[i + 1])) if words[i + 1 :] else None
            return None if found is None else (environment | found[0], found[1])
        arguments = _server_arguments(words, i)
        if arguments is not None:
            return environment, arguments
        if match := _ASSIGNMENT.fullmatch(word):  # after env, sudo and the like
            environment[match[1]] = match[2]
    return None


def _server_arguments(words: list[str], i: int) -> list[str] | None:
    """What follows the server's name, if it stands at this place."""
    rest = words[i + 1 :]
    if Path(words[i]).name == "vllm" and rest[:1] == ["serve"]:
        return rest[1:]
    if words[i] == "-m" and rest[:1] and rest[0] in _SERVERS:
        return rest[2:] if rest[1:2] == ["serve"] else rest[1:]
    return None


def _container_command(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The environment and arguments of the server in ``docker run WORDS``."""
    environment: dict[str, str] = {}
    entrypoint: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, value = _docker_option(rest)
        if name in ("-e", "--env") and (match := _ASSIGNMENT.fullmatch(value)):
            environment[match[1]] = match[2]
        if name == "--entrypoint":
            entrypoint = shlex.split(value)
    if not rest:
        raise ServeLineError("the container line names no image")
    return container_arguments(rest[0], entrypoint, rest[1:], environment)


def _docker_option(rest: list[str]) -> tuple[str, str]:
    """Take one option with its value off the words."""
    word = rest.pop(0)
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        if equals or name in _DOCKER_SWITCHES:
            return name, value
        return name, rest.pop(0) if rest else ""
    if set(word[1:]) <= _DOCKER_SHORT_SWITCHES:
        return word, ""
    value = word[2:].removeprefix("=")
    return word[:2], value or (rest.pop(0) if rest else "")


def container_arguments(
    image: str, entrypoint: Sequence[str], arguments: Sequence[str], environment: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The environment and arguments of the server that a container starts.

    Raises:
        ServeLineError: The image is not vLLM's, and no vLLM command is given to it.
    """
    words = [*entrypoint, *arguments]
    found = _command(words)
    if found is not None:
        return environment | found[0], found[1]
    if entrypoint or "vllm" not in image:
        raise ServeLineError(
            f"the container of {image!r} starts no vLLM server that can be recognized; give its "
            f"vLLM command alone, {_FULL_LINE}"
        )
    return environment, words


def _serve_line(words: Sequence[str], environment: Mapping[str, str]) -> ServeLine:
    model, arguments = parse_arguments(words)
    from_file: list[Argument] = []
    own: list[Argument] = []
    for argument in arguments:
        if argument.option.dest == "config":
            from kvplan.offline.serve_line.manifest import words_of_config

            file_model, more = parse_arguments(words_of_config(Path(argument.value)))
            from_file += more
            model = model or file_model
        else:
            own.append(argument)
    values = ServeLine(model, (*from_file, *own)).values()
    return ServeLine(model or values.get("model"), (*from_file, *own), dict(environment))
