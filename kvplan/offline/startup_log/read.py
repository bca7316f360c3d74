"""Read a log into the starts that it holds, in one pass and bounded memory."""

from __future__ import annotations

import re
from collections import deque
from typing import BinaryIO

from kvplan.offline.startup_log.facts import Start
from kvplan.offline.startup_log.lines import LogLine, log_lines
from kvplan.offline.startup_log.phrases import PHRASES
from kvplan.offline.startup_log.refusals import refusal_in

#: Of a log with more starts, such as a container that restarts for days, the last ones count.
MAX_STARTS = 64
#: Times of a rank that phases are made from, by a part of the sentence.
_MARKS = {
    "LLM engine (v": "engine",
    "Starting to load model": "load",
    "Loading model from scratch": "load",
    "odel loading took": "loaded",
    "Profiling CUDA graph memory": "graph profile",
    "Estimated CUDA graph memory": "graphs estimated",
    "Available KV cache memory": "profiled",
    "Initial free memory": "profiled",
    "for KV cache on node": "profiled",
    "KV cache size:": "planned",
    "raph capturing finished": "captured",
    "init engine (profile": "initialized",
    "Application startup complete": "ready",
}
#: Sentences that a start begins with, in their order.
_BEGINNINGS = ("vLLM API server version", "non-default args:", "LLM engine (v")
_BEGINNINGS_RAW = tuple(part.encode() for part in _BEGINNINGS)
_RANK = re.compile(r"(?:PP\d+|PCP\d+|DP\d+|TP\d+|DCP\d+|EP\d+|rank=\d+|pid=\d+)(?:_|$)")


class NoStart(ValueError):
    """A log without any sentence of a start-up; the message says what was read instead."""


def read_starts(stream: BinaryIO, name: str) -> list[Start]:
    """The starts of a log, in order; of very many the last `MAX_STARTS`.

    Args:
        stream: The log, read once from its beginning.
        name: What errors call it.

    Raises:
        NoStart: There is none: the log is empty, binary, cut off before it says anything, or
            something else.
    """
    starts: deque[Start] = deque(maxlen=MAX_STARTS)
    count, binary = 0, 0

    def is_idle(raw: bytes) -> bool:
        """Of a server that runs only the next start counts; its log may be gigabytes."""
        runs = bool(starts) and starts[-1].is_ready
        return runs and not any(part in raw for part in _BEGINNINGS_RAW)

    for line in log_lines(stream, is_idle):
        count = line.number
        binary += "\x00" in line.message
        _read_line(starts, line)
    if not starts:
        raise NoStart(_nothing_found(name, count, binary))
    return list(starts)


def _nothing_found(name: str, lines: int, binary: int) -> str:
    if lines == 0:
        return f"{name} is empty; give what 'vllm serve' prints while it starts"
    if binary:
        return f"{name} is a binary file, not the text that 'vllm serve' prints while it starts"
    return (
        f"{name}: none of its {lines:,} lines is one that vLLM (0.10 and later) prints while it "
        "starts; give the log from its beginning, with VLLM_LOGGING_LEVEL not above INFO"
    )


def _read_line(starts: deque[Start], line: LogLine) -> None:
    message = line.message
    for phrase in PHRASES:
        if phrase.part not in message:
            continue
        match = phrase.pattern.search(message)
        if match is None:
            continue
        start = _start_for(starts, phrase.part, line)
        rank = start.rank(_rank_name(line.process))
        phrase.write(start, rank, match)
        start.last_step = phrase.step or start.last_step
        start.last_line = line.number
        if line.seconds is not None:
            mark = _MARKS.get(phrase.part)
            start.times.setdefault("begun", line.seconds)
            if mark is not None:
                rank.times[mark] = line.seconds
                start.times[mark] = line.seconds
    if starts and ("rror" in message or "max_num_seqs" in message or "Free memory" in message):
        _read_refusal(starts[-1], line)


def _start_for(starts: deque[Start], part: str, line: LogLine) -> Start:
    """The present start, or a new one."""
    begins = part in _BEGINNINGS and starts and _has_begun(starts[-1], part)
    if not starts or begins:
        starts.append(Start(first_line=line.number))
    return starts[-1]


def _has_begun(start: Start, part: str) -> bool:
    """Whether a sentence that begins a start cannot belong to this one any more."""
    if part == "LLM engine (v":  # each data parallel engine says it
        return start.is_ready or start.refusal is not None
    return "engine" in start.times or (part == "non-default args:" and bool(start.arguments))


def _read_refusal(start: Start, line: LogLine) -> None:
    """The first known reason counts, else the last exception; a server that runs has none."""
    if start.is_ready or line.level not in ("", "ERROR", "CRITICAL"):
        return
    found = refusal_in(line.message, line.number)
    if found is None:
        return
    known = start.refusal is not None and start.refusal.kind != "other"
    if not known:
        start.refusal = found
        start.last_line = line.number


def _rank_name(process: str) -> str:
    """``TP1`` of ``Worker_TP1``; the first engine's own process is the rank without a name."""
    found = "_".join(match.rstrip("_") for match in _RANK.findall(process))
    return "" if process.startswith("EngineCore") and found == "DP0" else found
