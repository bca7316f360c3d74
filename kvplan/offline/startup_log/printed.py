"""Python values as a log prints them: dicts, keywords and their nested values, without running."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

_OPEN, _CLOSE = "([{<", ")]}>"
_OBJECT = re.compile(r"<[\w.]+: (.*)>", re.S)


def printed_dict(text: str) -> dict[str, Any]:
    """``{'a': 1, 'b': <Kind.X: 2>}``: what is no literal stays text."""
    inside = text.strip().removeprefix("{")
    found = {}
    for part in _parts(inside.removesuffix("}")):
        key, colon, value = part.partition(":")
        if colon:
            found[str(_value(key))] = _value(value)
    return found


def printed_keywords(text: str) -> dict[str, Any]:
    """``model='x', dtype=torch.bfloat16, seed=0``."""
    found = {}
    for part in _parts(text):
        key, equals, value = part.partition("=")
        if equals and key.strip().isidentifier():
            found[key.strip()] = _value(value)
    return found


def _value(text: str) -> Any:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    if text.startswith("{"):
        return printed_dict(text)
    match = _OBJECT.fullmatch(text)
    if match is not None:
        return _value(match[1]) if not match[1].startswith("<") else text
    return text.removeprefix("torch.")


def _parts(text: str) -> Iterator[str]:
    """The text between commas that no bracket or quote holds."""
    depth, start, quote, escaped = 0, 0, "", False
    for i, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    if text[start:].strip():
        yield text[start:]
