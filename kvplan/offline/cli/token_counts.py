"""Counts; those of tokens as vLLM's command line takes them: 131072, 128K, 128k, 1M, auto."""

from __future__ import annotations

import re
from decimal import Decimal

MAX_TOKENS = 2**53

_COUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kKmMgG]?)")
_FACTORS = {
    "": 1,
    "k": 10**3,
    "K": 2**10,
    "m": 10**6,
    "M": 2**20,
    "g": 10**9,
    "G": 2**30,
}


def parse_token_count(text: str) -> int:
    """Tokens; ``k`` is 1000 and ``K`` 1024, as for vLLM's ``--max-model-len``.

    Raises:
        ValueError: It is not a whole number of at least 1.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of tokens; write e.g. 131072, 128K or 1M")
    number, unit = match.groups()
    value = Decimal(number.replace("_", "").replace(",", "")) * _FACTORS[unit]
    if value != int(value):
        raise ValueError(f"{text!r} is {value} tokens, which is not a whole number")
    if not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{text!r} is out of range: 1 to 2**53 tokens")
    return int(value)


def format_token_count(tokens: int) -> str:
    """The shortest way to write a count exactly: 1M, 128K, or all its digits."""
    for unit in ("M", "K"):
        if tokens and tokens % _FACTORS[unit] == 0:
            return f"{tokens // _FACTORS[unit]:,}{unit}"
    return f"{tokens:,}"


def parse_positive(text: str) -> int:
    """A count of something else, such as ranks. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()) or not 1 <= int(text) < 2**31:
        raise ValueError(f"{text!r} is not a whole number of at least 1 (and below 2**31)")
    return int(text)
