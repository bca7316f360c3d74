"""Values of options: sizes, token counts, JSON, names with spelling suggestions, lists."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kvplan.offline.cli.failures import did_you_mean
from kvplan.offline.cli.sizes import parse_positive, parse_size, parse_token_count


class Parsed(click.ParamType):
    """A value that a function parses; its ValueError is the message."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a string; anything else is parsed already, or comes from a preset."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return value
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class IntegerIn(click.IntRange):
    """As click's, which calls a value that is no number "not a valid integer range"."""

    name = "integer"


class NumberIn(click.FloatRange):
    """As click's, which calls a value that is no number "not a valid float range".

    It lets nan through, which is within no range.
    """

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, which is one."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class Name(click.ParamType):
    """One of several names in any case, with the nearest one in the error."""

    def __init__(self, name: str, names: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self.name = name
        self._names = names

    @property
    def names(self) -> Sequence[str]:
        """The names; made when first needed."""
        return self._names() if callable(self._names) else self._names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is spelled in the list."""
        for name in self.names:
            if str(value).lower() == name.lower():
                return name
        hint = did_you_mean(str(value), self.names)
        self.fail(f"{value!r} is unknown.{hint} Known: {', '.join(self.names)}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Names that begin like what was typed."""
        from click.shell_completion import CompletionItem

        found = [n for n in self.names if n.lower().startswith(incomplete.lower())]
        return [CompletionItem(name) for name in found]


class ModelName(click.ParamType):
    """A built-in name or a path; read later, so that the error can say more."""

    name = "model"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Built-in names, then files."""
        from click.shell_completion import CompletionItem

        from kvplan.offline.models import builtin_models

        names = [name for name in builtin_models() if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


def parse_weights(text: str) -> int | str:
    """``auto`` or a size in bytes. Raises ValueError."""
    return "auto" if text.strip().lower() == "auto" else parse_size(text, least=0)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_size(part) for part in text.split(","))


def _length(text: str) -> int | str:
    return "auto" if text.strip().lower() in ("auto", "-1") else parse_token_count(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(
            f'{text!r} is not JSON; write e.g. \'{{"method": "mtp", "num_speculative_tokens": 1}}\''
        ) from None
    if not isinstance(value, dict):
        from kvplan.offline.models.config_view import json_type

        raise ValueError(f"{text!r} is {json_type(value)}, not an object")
    return value


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ValueError(f"{text!r} is not a list of whole numbers such as 16,32")
    return tuple(map(int, parts))


def _layers(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(part.isdecimal() or part == "sliding_window" for part in parts):
        raise ValueError(f"{text!r} is not a list of layer indices and sliding_window, e.g. 0,1")
    return parts


#: Values of one list; more is surely a mistake.
MAX_VALUES = 100_000


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes. Raises ValueError."""
    return _numbers(text, parse_size)


def parse_lengths(text: str) -> list[int | str]:
    """Token counts, or ``auto``. Raises ValueError."""
    return _each(text, lambda part: ["auto"] if part == "auto" else _range(part, parse_token_count))


def parse_counts(text: str) -> list[int]:
    """Token counts. Raises ValueError."""
    return _numbers(text, parse_token_count)


def parse_ranks(text: str) -> list[int]:
    """Numbers of ranks, stages or workers. Raises ValueError."""
    return _numbers(text, parse_positive)


def parse_names(text: str) -> list[str]:
    """Names. Raises ValueError."""
    return _each(text, lambda part: [part])


def _numbers(text: str, parse: Callable[[str], int]) -> list[int]:
    return _each(text, lambda part: _range(part, parse))


def _each(text: str, read: Callable[[str], list]) -> list:
    values: list = []
    for part in text.split(","):
        if not part.strip():
            raise ValueError(f"{text!r} has an empty entry")
        values += read(part.strip())
    if len(values) > MAX_VALUES:
        raise ValueError(f"{text!r} has {len(values):,} values; at most {MAX_VALUES:,} are planned")
    return list(dict.fromkeys(values))


def _range(part: str, parse: Callable[[str], int]) -> list[int]:
    """One number, or START:STOP:STEP with both ends included."""
    ends = part.split(":")
    if len(ends) == 1:
        return [parse(part)]
    if len(ends) != 3:
        raise ValueError(f"{part!r} is no range; write START:STOP:STEP, e.g. 10GiB:80GiB:10GiB")
    start, stop, step = map(parse, ends)
    if stop < start:
        raise ValueError(f"{part!r} runs backwards: {ends[1]} is less than {ends[0]}")
    if (stop - start) // step >= MAX_VALUES:
        raise ValueError(f"{part!r} has more than {MAX_VALUES:,} values")
    return list(range(start, stop + 1, step))


SIZE = Parsed("size", parse_size)
SIZE_OR_ZERO = Parsed("size", lambda text: parse_size(text, least=0))
SIZES = Parsed("size[,size...]", _sizes)
TOKENS = Parsed("tokens", parse_token_count)
LENGTH = Parsed("tokens|auto", _length)
JSON_OBJECT = Parsed("json", _json_object)
COUNTS = Parsed("n[,n...]", _counts)
LAYERS = Parsed("layer[,layer...]", _layers)
POSITIVE = Parsed("n", parse_positive)
FILE = click.Path(path_type=Path, dir_okay=False)
SIZE_LIST = Parsed("sizes", parse_sizes)
LENGTH_LIST = Parsed("lengths", parse_lengths)
TOKEN_LIST = Parsed("counts", parse_counts)
RANK_LIST = Parsed("counts", parse_ranks)
NAME_LIST = Parsed("names", parse_names)
