"""Traces from files: Mooncake's, Azure's, vLLM's benchmarks', and lists of requests.

A line that cannot be used is left out and said; what was read before it is kept.
"""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from kvplan.offline.replay.trace import Trace, TraceBuilder

__all__ = ["MOST_TOKENS", "TraceError", "read_trace"]

#: Tokens of one of Mooncake's blocks.
MOONCAKE_BLOCK = 512
#: Tokens and parts that are read of one trace: some 20 GB of memory. More is said, and left out.
MOST_TOKENS = 1 << 31
#: No model has a longer prompt.
LONGEST = 1 << 30
#: Bytes of a text that are taken for a token, since a trace comes without a tokenizer.
BYTES_PER_TOKEN = 4
#: Remarks that are kept; more are counted.
_MOST_REMARKS = 10
#: Characters of a value that a remark repeats.
_MOST_SHOWN = 60

_OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}

FORMATS = """Formats, told by their first line:
  Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids (of 512 tokens);
  Azure's CSV: TIMESTAMP, ContextTokens, GeneratedTokens;
  vLLM's benchmark JSON lines: prompt (a text), output_tokens;
  a list, JSON lines or CSV: arrival (s), prompt (token ids) or prompt_tokens, output (ids) or
  output_tokens, and where wanted prefix_id, prefix_tokens and priority"""


class TraceError(ValueError):
    """Nothing of a trace can be read."""


class _Unusable(ValueError):
    """Why a line is left out."""


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """Read a trace, also a compressed one (.xz, .gz, .bz2).

    Args:
        path: The file.
        limit: Requests to read at most.

    Raises:
        TraceError: Not one request can be read; says why.
        OSError: The file cannot be opened.
    """
    builder = TraceBuilder(str(path))
    notes = _Notes(builder.remarks)
    last = -math.inf
    unsorted_at = 0
    opener = _OPENERS.get(path.suffix.lower(), open)
    with opener(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
        rows = _rows(file, notes)
        while limit is None or len(builder) < limit:
            try:
                number, row, add = next(rows)
            except StopIteration:
                break
            except TraceError as error:
                raise TraceError(f"{path}: {error}") from None
            except (EOFError, lzma.LZMAError, zlib.error, csv.Error, OSError) as error:
                notes.add(f"the file breaks off after request {len(builder):,} ({error})")
                break
            try:
                arrival = add(builder, row)
            except _Unusable as error:
                notes.add(f"line {number:,} is left out: {error}")
                continue
            if arrival < last and not unsorted_at:
                unsorted_at = number
            last = max(last, arrival)
            if len(builder.part_texts) + len(builder.token_ids) > MOST_TOKENS:
                notes.add(
                    f"the trace is longer than {MOST_TOKENS:,} tokens and parts: the first "
                    f"{len(builder):,} requests are kept"
                )
                break
    if unsorted_at:
        notes.add(f"line {unsorted_at:,} arrives before one ahead of it: the requests were sorted")
    notes.finish()
    if not len(builder):
        why = f": {builder.remarks[0]}" if builder.remarks else ": it is empty"
        raise TraceError(f"{path} has no request that can be read{why}\n{FORMATS}")
    return builder.build()


class _Notes:
    """Remarks, the first ones whole and the rest counted."""

    def __init__(self, remarks: list[str]) -> None:
        self._remarks = remarks
        self._more = 0

    def add(self, text: str) -> None:
        if len(self._remarks) < _MOST_REMARKS:
            self._remarks.append(text)
        else:
            self._more += 1

    def finish(self) -> None:
        if self._more:
            self._remarks.append(f"and {self._more:,} more of the kind")


_Add = Callable[[TraceBuilder, dict[str, Any]], float]


def _rows(file: TextIO, notes: _Notes) -> Iterator[tuple[int, dict[str, Any], _Add]]:
    """Number, values and reader of each line."""
    first = file.readline()
    while first and not first.strip():
        first = file.readline()
    if not first:
        return
    if not first.lstrip("\ufeff").startswith("{"):
        yield from _csv_rows(first.lstrip("\ufeff"), file)
        return
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    add: _Add | None = None
    number, line = 1, first.lstrip("\ufeff")
    while line:
        if line.strip():
            try:
                row = decode(line)
            except msgspec.DecodeError as error:
                cut = not line.endswith("\n")
                what = "it is cut off" if cut else f"it is no JSON object ({error})"
                notes.add(f"line {number:,} is left out: {what}")
            else:
                add = add or _adder(row)
                yield number, row, add
        number, line = number + 1, file.readline()


class _Texts(dict[str, Any]):
    """A row of a file in which numbers are texts, too."""


def _csv_rows(header: str, file: TextIO) -> Iterator[tuple[int, dict[str, Any], _Add]]:
    try:
        names = [name.strip() for name in next(csv.reader([header]), [])]
    except csv.Error as error:
        raise TraceError(f"its first line is no CSV ({error})\n{FORMATS}") from None
    add = _adder(dict.fromkeys(names))
    reader = csv.reader(file)
    for values in reader:
        if not values:
            continue
        row = _Texts(
            (name, text) for name, text in zip(names, values, strict=False) if text.strip()
        )
        yield reader.line_num + 1, row, add


def _adder(row: dict[str, Any]) -> _Add:
    """What reads lines like the first one. Raises `TraceError`."""
    if "hash_ids" in row:
        return _add_mooncake
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(row):
        return _add_azure
    if {"prompt", "prompt_tokens"} & set(row):
        return _add_listed
    names = ", ".join(_shown(name).strip("'\"") for name in list(row)[:8])
    raise TraceError(f"no trace has lines of {names or 'no columns'}\n{FORMATS}")


def _add_mooncake(builder: TraceBuilder, row: dict[str, Any]) -> float:
    arrival = _seconds(row, "timestamp") / 1000
    prompt = _count(row, "input_length", least=1)
    ids = row.get("hash_ids")
    needed = -(-prompt // MOONCAKE_BLOCK)
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 62 for i in ids):
        raise _Unusable("hash_ids is no list of numbers")
    if len(ids) != needed:
        raise _Unusable(
            f"input_length {prompt:,} has {needed} blocks of {MOONCAKE_BLOCK} tokens, hash_ids "
            f"{len(ids)}"
        )
    tail = prompt - (needed - 1) * MOONCAKE_BLOCK
    lengths = [MOONCAKE_BLOCK] * (needed - 1) + [tail]
    outputs = max(1, _count(row, "output_length"))
    builder.add(arrival, zip(ids, lengths, strict=True), outputs)
    return arrival


def _add_azure(builder: TraceBuilder, row: dict[str, Any]) -> float:
    text = str(row.get("TIMESTAMP", ""))
    try:
        # Some have more digits than a datetime keeps, and the one of 2024 a zone.
        whole, _, fraction = text.strip().partition(".")
        zone = ""
        for mark in ("+", "Z"):
            fraction, found, rest = fraction.partition(mark)
            zone = zone or (found + rest).replace("Z", "+00:00")
        time = datetime.datetime.fromisoformat(whole + zone)
        if time.tzinfo is None:
            time = time.replace(tzinfo=datetime.timezone.utc)
        arrival = time.timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        raise _Unusable(f"TIMESTAMP {text!r} is no time such as 2023-11-16 18:17:03.98") from None
    prompt = _count(row, "ContextTokens", least=1)
    outputs = max(1, _count(row, "GeneratedTokens"))
    builder.add(arrival, [(builder.own_text(), prompt)], outputs)
    return arrival


def _add_listed(builder: TraceBuilder, row: dict[str, Any]) -> float:
    arrival = _seconds(row, "arrival") if "arrival" in row else 0.0
    priority = _count(row, "priority", least=-LONGEST) if "priority" in row else 0
    prompt, output = row.get("prompt"), row.get("output")
    outputs = len(output) if isinstance(output, list) else 1
    if "output_tokens" in row:
        outputs = _count(row, "output_tokens")
    outputs = max(1, outputs)
    if isinstance(prompt, str):
        prompt = _text_ids(prompt)
    if isinstance(prompt, list):
        _same_form(builder, has_ids=True)
        if not prompt or not all(_is_id(i) for i in prompt):
            raise _Unusable("prompt is no list of token ids of 0 to 2147483647")
        if isinstance(output, list):
            if not output or not all(_is_id(i) for i in output):
                raise _Unusable("output is no list of token ids of 0 to 2147483647")
        else:
            # Nobody else's tokens.
            own = builder.own_text() & 0x7FFFFFFF
            output = [-1 - (own * 2654435761 + i) % 0x7FFFFFFF for i in range(outputs)]
        builder.add_ids(arrival, prompt, output, priority=priority)
        return arrival
    _same_form(builder, has_ids=False)
    length = _count(row, "prompt_tokens", least=1)
    parts = []
    if "prefix_id" in row:
        shared = min(length, _count(row, "prefix_tokens"))
        parts.append((_count(row, "prefix_id"), shared))
        length -= shared
    if length:
        parts.append((builder.own_text(), length))
    builder.add(arrival, parts, outputs, priority=priority)
    return arrival


def _same_form(builder: TraceBuilder, *, has_ids: bool) -> None:
    if builder.has_ids not in (None, has_ids):
        raise _Unusable(
            f"it has {'token ids' if has_ids else 'lengths'}, unlike the lines ahead of it"
        )


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _text_ids(text: str) -> list[int]:
    """Pieces of a text as token ids: texts that begin alike have ids that do."""
    raw = text.encode()
    return [
        int.from_bytes(raw[i : i + BYTES_PER_TOKEN], "little") & 0x7FFFFFFF
        for i in range(0, len(raw), BYTES_PER_TOKEN)
    ]


def _seconds(row: dict[str, Any], name: str) -> float:
    value = _number(row, name)
    if not 0 <= value < 1e15:
        raise _Unusable(f"{name} is a time from 0 on, not {_shown(row[name])}")
    return value


def _count(row: dict[str, Any], name: str, least: int = 0) -> int:
    value = _number(row, name)
    if value != int(value) or not least <= value <= LONGEST:
        raise _Unusable(
            f"{name} is a whole number of {least:,} to {LONGEST:,}, not {_shown(row[name])}"
        )
    return int(value)


def _number(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    if value is None:
        raise _Unusable(f"it has no {name}")
    is_odd = isinstance(value, bool) or (isinstance(value, str) and not isinstance(row, _Texts))
    try:
        number = math.nan if is_odd else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _Unusable(f"{name} is a number, not {_shown(value)}")
    return number


def _shown(value: Any) -> str:
    """A value of a file for a message: without control characters, and not at any length."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
