"""Lists of values on the command line: ``16,32`` and ranges ``10GiB:80GiB:10GiB``."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.offline.cli.sizes import parse_size
from kvplan.offline.cli.token_counts import parse_positive, parse_token_count

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
