"""Sizes in bytes (60GiB, 80GB, 64e9) and counts of tokens (131072, 128K), written and read."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation, Overflow

MAX_BYTES = 2**63 - 1

#: Fewer bytes than this need a unit: whoever writes ``--memory 40`` means 40 GiB.
_LEAST_WITHOUT_UNIT = 2**20

_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_SIZE = re.compile(r"\s*([0-9._+-]+(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf(?:inity)?))\s*(.*?)\s*", re.I)
_EXAMPLES = "write e.g. 60GiB, 80GB or 64e9 (bytes)"


def parse_size(text: str, least: int = 1) -> int:
    """Bytes of a size; a part of a byte is dropped.

    ``GiB`` is 2**30 bytes and ``GB`` 10**9 in either case; ``G`` is 2**30 and ``g`` 10**9, as in
    vLLM's ``--kv-cache-memory-bytes``.

    Raises:
        ValueError: It is not a size of at least ``least`` bytes (0 or 1) and below 2**63, or a
            positive number below 2**20 without a unit.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; {_EXAMPLES}")
    number, unit = match.groups()
    factor = _unit(unit)
    if factor is None:
        raise ValueError(f"{text!r} is not a size: there is no unit {unit!r}; {_EXAMPLES}")
    try:
        value = Decimal(number) * factor
    except Overflow:
        raise ValueError(f"{text!r} is more than 2**63 - 1 bytes; {_EXAMPLES}") from None
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a size: {number!r} is no number; {_EXAMPLES}") from None
    if not value.is_finite():
        raise ValueError(f"{text!r} is not a size; {_EXAMPLES}")
    if least == 0 and value < 0:
        raise ValueError(f"{text!r} is less than 0 bytes; {_EXAMPLES}")
    if value < 1 and not (least == 0 and value == 0):
        raise ValueError(f"{text!r} is less than one byte; {_EXAMPLES}")
    if value > MAX_BYTES:
        raise ValueError(f"{text!r} is more than 2**63 - 1 bytes; {_EXAMPLES}")
    if not unit and 0 < value < _LEAST_WITHOUT_UNIT:
        raise ValueError(
            f"{text!r} without a unit is so many bytes; write e.g. {number}GiB, or {number}B if "
            "bytes are meant"
        )
    return int(value)


def _unit(unit: str) -> int | None:
    if unit.lower() in ("", "b", "byte", "bytes"):
        return 1
    prefix, rest = unit[0], unit[1:].lower()
    if prefix.lower() not in _BINARY:
        return None
    if rest == "ib" or (rest in ("", "i") and prefix.isupper()):
        return _BINARY[prefix.lower()]
    if rest == "b" or (rest == "" and prefix.islower()):
        return _DECIMAL[prefix.lower()]
    return None


def floor_hundredths(value: float) -> str:
    """A number of requests with two digits, rounded down: what it says does fit."""
    return f"{math.floor(value * 100) / 100:,.2f}" if math.isfinite(value) else "any number of"


def format_size(num_bytes: float) -> str:
    """A size in the largest unit of which there is at least one, to three or more digits."""
    for name, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(num_bytes) >= factor:
            return f"{_digits(num_bytes / factor)} {name}"
    return f"{_digits(num_bytes)} B"


def format_exact_size(num_bytes: int) -> str:
    """A size that `parse_size` reads back as the same bytes: 60GiB, or plain bytes."""
    for name, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor and num_bytes % factor == 0:
            return f"{num_bytes // factor}{name}"
    return f"{num_bytes}B"


def format_enough(num_bytes: int) -> str:
    """The least size of few digits that is no smaller: 17.98GiB."""
    for name, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            hundredths = -(-num_bytes * 100 // factor)
            return f"{hundredths / 100:.10g}{name}"
    return f"{num_bytes}B"


def _digits(value: float) -> str:
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.1f}"


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
