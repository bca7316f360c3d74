"""Values of options: sizes, token counts, JSON, names with spelling suggestions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import click

from kvplan.offline.cli.sizes import parse_size
from kvplan.offline.cli.suggestions import did_you_mean
from kvplan.offline.cli.token_counts import parse_positive, parse_token_count


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
        from kvplan.offline.models.json_words import json_type

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


SIZE = Parsed("size", parse_size)
SIZE_OR_ZERO = Parsed("size", lambda text: parse_size(text, least=0))
SIZES = Parsed("size[,size...]", _sizes)
TOKENS = Parsed("tokens", parse_token_count)
LENGTH = Parsed("tokens|auto", _length)
JSON_OBJECT = Parsed("json", _json_object)
COUNTS = Parsed("n[,n...]", _counts)
LAYERS = Parsed("layer[,layer...]", _layers)
POSITIVE = Parsed("n", parse_positive)
