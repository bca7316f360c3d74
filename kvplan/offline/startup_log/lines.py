"""A log's lines without what containers, terminals and loggers put around them; streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

#: What is longer is no line of vLLM's; the rest of it is skipped.
MAX_LINE_BYTES = 1 << 18

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\].*?(?:\x07|\x1b\\)")
_PROCESS = r"\((?P<process>[A-Za-z][\w.-]*)(?: (?P<tags>[a-z]+=[^()]*))?\)"
_HEADER = re.compile(
    rf"(?:{_PROCESS}\s+)?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,]\d+)? "
    r"\[?(?P<file>[\w./-]+):(?P<line>\d+)\] ?(?P<message>.*)",
    re.S,
)
_PREFIX = re.compile(rf"{_PROCESS} ?(?P<message>.*)", re.S)
#: Days before each month of a year without a 29th of February, which is a day of its own here.
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)


@dataclass(frozen=True)
class LogLine:
    """One line.

    Attributes:
        number: Its place in the file, from 1.
        process: vLLM's name of the process that wrote it, with the rank where the name has none:
            ``EngineCore_DP0``, ``Worker_TP1``, ``VllmWorker rank=1``; empty where it has none.
        seconds: When, in seconds since the year began; None of a line without a time.
        level: ``INFO`` and so on; empty of a line that no logger wrote.
        message: The text.
    """

    number: int
    process: str
    seconds: int | None
    level: str
    message: str


def log_lines(stream: BinaryIO, is_idle: Callable[[bytes], bool]) -> Iterator[LogLine]:
    """The lines of a stream; at most one of them is in memory.

    Args:
        stream: Where they come from.
        is_idle: Whether a line says nothing, as its bytes show; such a line is passed over.
    """
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES):
        number += 1
        more = raw
        while len(more) == MAX_LINE_BYTES and not more.endswith(b"\n"):
            more = stream.readline(MAX_LINE_BYTES)
        if is_idle(raw):
            continue
        # A progress bar writes its line anew with a carriage return.
        for part in raw.decode("utf-8", "replace").rstrip("\r\n").split("\r"):
            if part:
                yield _line(number, part)


def _line(number: int, text: str) -> LogLine:
    if text.startswith("{"):
        text = _json_text(text)
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    match = _HEADER.search(text)
    if match is None:
        prefix = _PREFIX.search(text)
        if prefix is None or "pid=" not in (prefix["tags"] or ""):
            return LogLine(number, "", None, "", text)
        return LogLine(number, _process(prefix), None, "", prefix["message"].rstrip())
    return LogLine(
        number, _process(match), _seconds(match), match["level"], match["message"].rstrip()
    )


def _json_text(text: str) -> str:
    """The line inside a container runtime's JSON, or the text itself."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for key in ("log", "message", "msg"):
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            return str(entry[key]).rstrip("\r\n")
    return text


def _process(match: re.Match[str]) -> str:
    name, tags = match["process"] or "", match["tags"] or ""
    if re.search(r"\d", name):
        return name
    tag = re.search(r"rank=(\d+)", tags)
    if tag is None and name.startswith(("Ray", "VllmWorkerProcess")):
        tag = re.search(r"pid=(\d+)", tags)
    return f"{name} {tag[0]}" if tag else name


def _seconds(match: re.Match[str]) -> int | None:
    month, day = int(match["month"]), int(match["day"])
    if not 1 <= month <= 12:
        return None
    days = _DAYS_BEFORE[month - 1] + day - 1
    return ((days * 24 + int(match["hour"])) * 60 + int(match["minute"])) * 60 + int(
        match["second"]
    )
