"""vLLM's words for a start that fails, and what each of them means."""

from __future__ import annotations

import re

from kvplan.offline.startup_log.facts import Refusal

_N = r"(-?\d+(?:\.\d+)?)"
_LONGEST_MESSAGE = 600

#: Kind, pattern, and the names of its numbers. The first that matches counts.
_REFUSALS = tuple(
    (kind, re.compile(pattern, re.S), names)
    for kind, pattern, names in (
        (
            "length",
            rf"max seq len \((\d+)\), \({_N} GiB KV cache is needed, which is larger than the "
            rf"available KV cache memory \({_N} GiB\)"
            r"(?:.*?estimated maximum model length is (\d+))?",
            ("max_model_len", "needed_gib", "available_gib", "estimated_len"),
        ),
        ("no memory", r"No available memory for the cache blocks", ()),
        ("no memory", r"Cannot auto-fit max_model_len", ()),
        (
            "utilization",
            rf"Free memory on device(?: \S+)? \({_N}/{_N} GiB\) on startup is less than desired "
            rf"GPU memory utilization \({_N}, {_N} GiB\)",
            ("free_gib", "total_gib", "utilization", "requested_gib"),
        ),
        (
            "states",
            r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)",
            ("max_num_seqs", "blocks"),
        ),
        (
            "out of memory",
            rf"OutOfMemoryError: (?:CUDA|HIP|XPU) out of memory\. Tried to allocate {_N} ([KMG]iB)"
            rf"(?:.*?total capacity of {_N} GiB of which {_N} (?:[KMG]iB) is free)?",
            ("tried", "unit", "total_gib", "free"),
        ),
        (
            "out of memory",
            r"out of memory occurred when warming up sampler with (\d+)",
            ("requests",),
        ),
        (
            "context",
            r"max_model_len \((\d+)\) is greater than the derived max_model_len "
            r"\([^=]*=(\d+)",
            ("max_model_len", "derived_len"),
        ),
        ("changed memory", r"Error in memory profiling\. Initial free memory", ()),
    )
)
_ERROR = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)", re.S)
_UNITS = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}
#: Errors that only say that another one came before.
_CONSEQUENCES = ("Engine core initialization failed", "WorkerProc initialization failed")


def refusal_in(message: str, line: int) -> Refusal | None:
    """The refusal that a line states, or None. Of kind ``other`` is any other exception."""
    for kind, pattern, names in _REFUSALS:
        match = pattern.search(message)
        if match is not None:
            words = message[match.start() :] if kind == "out of memory" else message
            return Refusal(kind, _numbers(names, match), _shortened(words), line)
    match = _ERROR.match(message.strip())
    if match is None or match[2].startswith(_CONSEQUENCES):
        return None
    return Refusal("other", {}, _shortened(match[0]), line)


def _numbers(names: tuple[str, ...], match: re.Match[str]) -> dict[str, float]:
    found = {}
    values = dict(zip(names, match.groups(), strict=True))
    unit = values.pop("unit", None)
    for name, text in values.items():
        if text is not None:
            found[name] = float(text)
    if unit is not None:
        found["tried_gib"] = found.pop("tried") * _UNITS[unit]
        found.pop("free", None)
    return found


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + " ..."
