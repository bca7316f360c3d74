"""Words of a line to options and values, by the rules of vLLM's argument parser.

Mirrors vllm/utils/argparse_utils.py::FlexibleArgumentParser (0.33): underscores for dashes, dotted
JSON (``--speculative-config.method mtp``, ``--x.list+ a,b``), ``-O3``, abbreviations, the last one
of several wins.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.offline.serve_line.errors import ServeLineError
from kvplan.offline.serve_line.option_table import VLLM_VERSION, Option, option_table

_NEGATIVE_NUMBER = re.compile(r"-\d+(?:\.\d*)?|-\.\d+")


@dataclass(frozen=True)
class Argument:
    """One option of a line.

    Attributes:
        option: Which.
        value: True or False of a flag, else text, a list of texts, or a dict of dotted parts.
        words: As it stood in the line.
    """

    option: Option
    value: Any
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The option as it is spelled."""
        return self.words[0].partition("=")[0]


def parse_arguments(words: Sequence[str]) -> tuple[str | None, list[Argument]]:
    """The model of a line, if it stands alone, and its options in order.

    Raises:
        ServeLineError: A word is no option of vLLM, or lacks its value.
    """
    model: str | None = None
    found: list[Argument] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _is_option(word):
            if model is not None:
                raise ServeLineError(
                    f"{word!r} is neither an option nor the value of one, and the model is "
                    f"{model!r} already; quote a value that holds spaces"
                )
            model = word
            continue
        found.append(_argument(word, rest))
    return model, found


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and _NEGATIVE_NUMBER.fullmatch(word) is None


def _argument(word: str, rest: list[str]) -> Argument:
    """The option of a word; takes its values off `rest`."""
    spelled, equals, attached = word.partition("=")
    if spelled.startswith("-O") and not spelled.startswith("-O."):
        level = spelled[2:] or attached or _value(word, rest)
        return Argument(find_option("--optimization-level"), level, (f"-O{level}",))
    name, dot, path = spelled.partition(".")
    option = find_option(name)
    if option.kind == "flag":
        if equals or dot:
            raise ServeLineError(f"{word!r}: {name} is a switch and takes no value")
        return Argument(option, _normal(name) not in option.negative_names, (word,))
    values = [attached] if equals else _values(option, word, rest)
    words = (word,) if equals else (word, *values)
    if dot:
        return Argument(option, _dotted(path, values[0]), words)
    if option.kind == "values":
        return Argument(option, values, words)
    return Argument(option, values[0] if values else None, words)


def _values(option: Option, word: str, rest: list[str]) -> list[str]:
    if option.kind == "optional" and not (rest and not _is_option(rest[0])):
        return []
    values = [_value(word, rest)]
    while option.kind == "values" and rest and not _is_option(rest[0]):
        values.append(rest.pop(0))
    return values


def _value(word: str, rest: list[str]) -> str:
    if not rest or _is_option(rest[0]):
        raise ServeLineError(f"{word} needs a value, and the line has none after it")
    return rest.pop(0)


def _normal(name: str) -> str:
    return f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name


def find_option(name: str) -> Option:
    """The option of this name, alias or unambiguous beginning. Raises ServeLineError."""
    known = option_table().by_name
    normal = _normal(name)
    if normal in known:
        return known[normal]
    if normal.startswith("--"):
        begun = {n: o for n, o in known.items() if n.startswith(normal)}
        if len({option.dest for option in begun.values()}) == 1:
            return next(iter(begun.values()))
        if begun:
            raise ServeLineError(f"{name} can be any of {', '.join(sorted(begun))}")
    near = difflib.get_close_matches(normal, known, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ServeLineError(f"vLLM {VLLM_VERSION} has no option {name}.{hint}")


def _dotted(path: str, text: str) -> dict[str, Any]:
    """``a.b`` and ``1`` as ``{"a": {"b": 1}}``."""
    value: Any = text
    if path.endswith("+"):
        path, value = path[:-1], text.split(",")
    else:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
    keys = path.split(".")
    if not all(keys):
        raise ServeLineError(f"{path!r} is no path into a JSON option; write e.g. --x.key value")
    for key in reversed(keys):
        value = {key: value}
    result: dict[str, Any] = value
    return result


def merged(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two JSON objects as one; the other's values win, lists are joined."""
    result = dict(into)
    for key, value in other.items():
        old = result.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = merged(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            result[key] = old + value
        else:
            result[key] = value
    return result
