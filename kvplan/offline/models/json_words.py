"""What JSON itself calls a value that is of the wrong type."""

from __future__ import annotations

from typing import Any


def json_type(value: Any) -> str:
    """The type of a parsed value in JSON's words, e.g. "null" or "a list"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "a list"
