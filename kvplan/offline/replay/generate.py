"""Loads made from a seed: chats, agents with long shared prefixes, documents, and all of them."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvplan.offline.replay.trace import Trace, TraceBuilder

__all__ = ["LOADS", "generate", "parse_spec"]


class _Request(NamedTuple):
    arrival: float
    parts: list[tuple[int, int]]
    output_tokens: int
    output_text: int


class _Texts:
    """Numbers of texts; those of a load are its own."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> int:
        self._last += 1
        return self._last


def _length(rng: random.Random, mean: float, least: int = 1) -> int:
    """Most are shorter than the mean, some much longer."""
    sigma = 0.8
    return max(least, int(rng.lognormvariate(0, sigma) * mean / 2.718281828 ** (sigma**2 / 2)))


def _chat(rng: random.Random, texts: _Texts, start: float) -> Iterator[_Request]:
    """A conversation: each turn's prompt is all before it, its own output included."""
    history = [(_SYSTEM_PROMPTS[rng.randrange(len(_SYSTEM_PROMPTS))], 400)]
    time = start
    for _ in range(1 + int(rng.expovariate(1 / 4))):
        history.append((texts.new(), _length(rng, 120, 4)))
        output, text = _length(rng, 250, 4), texts.new()
        yield _Request(time, list(history), output, text)
        history.append((text, output))
        time += 15 + rng.expovariate(1 / 30)


def _agent(rng: random.Random, texts: _Texts, start: float) -> Iterator[_Request]:
    """A task of many short steps, behind one of a few long prompts with tools."""
    history = [(_AGENT_PROMPTS[rng.randrange(len(_AGENT_PROMPTS))], 6_000)]
    time = start
    for _ in range(3 + int(rng.expovariate(1 / 9))):
        history.append((texts.new(), _length(rng, 700, 8)))  # what a tool answered
        output, text = _length(rng, 90, 4), texts.new()
        yield _Request(time, list(history), output, text)
        history.append((text, output))
        time += 4 + rng.expovariate(1 / 4)


def _document(rng: random.Random, texts: _Texts, start: float) -> Iterator[_Request]:
    """Some questions about one long document."""
    document = (texts.new(), _length(rng, 14_000, 500))
    time = start
    for _ in range(1 + int(rng.expovariate(1 / 1.5))):
        parts = [(_SYSTEM_PROMPTS[0], 400), document, (texts.new(), _length(rng, 60, 4))]
        yield _Request(time, parts, _length(rng, 300, 4), texts.new())
        time += 10 + rng.expovariate(1 / 20)


def _mixed(rng: random.Random, texts: _Texts, start: float) -> Iterator[_Request]:
    return rng.choices((_chat, _agent, _document), (6, 2, 2))[0](rng, texts, start)


_SYSTEM_PROMPTS = tuple(range(1 << 60, (1 << 60) + 4))
_AGENT_PROMPTS = tuple(range((1 << 60) + 16, (1 << 60) + 19))

#: The loads by name: what one session of each asks.
LOADS: dict[str, Callable[[random.Random, _Texts, float], Iterator[_Request]]] = {
    "chat": _chat,
    "agents": _agent,
    "documents": _document,
    "mixed": _mixed,
}


#: Seconds after which as many sessions end as begin, nearly.
_WARM_UP = 300.0
#: Most requests before it, in multiples of the load's: rates without end are tried, too.
_MOST_WARM_UP = 100


def generate(
    name: str, *, requests: int = 2_000, rate: float = 2.0, seed: int = 0, steady: bool = False
) -> Trace:
    """A load of one kind; the same arguments make the same load everywhere.

    Args:
        name: One of `LOADS`.
        requests: How many.
        rate: Requests a second, in the mean.
        seed: Any number.
        steady: Whether it begins amid sessions, and so comes at its rate from the first to the last
            request; else the first sessions begin, and the last ones end, in a server at rest.
    """
    rng = random.Random(f"{name} {seed}")
    session = LOADS[name]
    texts = _Texts()
    found: list[_Request] = []
    time = 0.0
    sessions: list[list[_Request]] = []
    count = 0
    warm_up = min(_WARM_UP, _MOST_WARM_UP * requests / rate)
    before = int(rate * warm_up) if steady else 0
    while count < requests + before:
        sessions.append(list(session(rng, texts, 0.0)))
        count += len(sessions[-1])
    # Sessions begin so that requests come at the rate.
    gap = count / rate / len(sessions)
    for asked in sessions:
        time += rng.expovariate(1 / gap)
        found += [one._replace(arrival=one.arrival + time) for one in asked]
    found.sort(key=lambda one: one.arrival)
    if steady:
        del found[: bisect_left(found, warm_up, key=lambda one: one.arrival)]
        del found[bisect_left(found, warm_up + requests / rate, key=lambda one: one.arrival) :]
    builder = TraceBuilder(f"{name} ({requests:,} requests, {rate:g} a second, seed {seed})")
    for one in found[:requests]:
        builder.add(one.arrival, one.parts, one.output_tokens, output_text=one.output_text)
    return builder.build()


def parse_spec(text: str) -> dict[str, Any] | None:
    """A load's name and settings, ``chat:requests=500,rate=3,seed=1``; None for another text.

    Raises:
        ValueError: It names a load, with settings that it does not have.
    """
    name, _, settings = text.partition(":")
    if name not in LOADS:
        return None
    spec: dict[str, Any] = {"name": name}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        kinds: dict[str, type] = {"requests": int, "rate": float, "seed": int}
        if key not in kinds:
            raise ValueError(f"{text!r}: a load has {', '.join(kinds)}, not {key!r}")
        try:
            spec[key] = kinds[key](value)
        except ValueError:
            kind = "number" if kinds[key] is float else "whole number such as 500"
            raise ValueError(f"{text!r}: {key} is a {kind}, not {value!r}") from None
        if key != "seed" and not 0 < spec[key] <= 1e9:
            raise ValueError(f"{text!r}: {key} is more than 0 and at most 1e9, not {value}")
    return spec
