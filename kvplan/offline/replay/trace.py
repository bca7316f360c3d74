"""A load: requests with their arrivals, lengths and what they share."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

#: The arrays of a trace with an element a request.
_OF_A_REQUEST = (
    *("arrivals", "priorities", "prompt_tokens", "output_tokens", "num_parts", "output_texts"),
)


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival.

    A request's prompt is parts of numbered texts, each from the text's beginning on; texts of one
    number are the same tokens. Its outputs are tokens of a text, too, so that a later prompt can
    hold them. Or all requests have token ids.

    Attributes:
        name: Where it comes from.
        arrivals: Seconds.
        priorities: Smaller is more urgent.
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each output, at least 1.
        num_parts: Parts of each prompt.
        part_texts: The texts of all parts, request after request.
        part_lengths: Their tokens.
        output_texts: The text of each output.
        token_ids: Prompt and outputs of each request, one after another; None where there are
            texts.
        remarks: What was wrong with the file, a sentence each.
    """

    name: str
    arrivals: Any
    priorities: Any
    prompt_tokens: Any
    output_tokens: Any
    num_parts: Any
    part_texts: Any
    part_lengths: Any
    output_texts: Any
    token_ids: Any = None
    remarks: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.arrivals)

    @cached_property
    def repeated_share(self) -> float | None:
        """Share of the prompts' parts that came before: what a cache without end would hit.

        None where prompts are token ids.
        """
        if self.token_ids is not None or not len(self.part_texts):
            return None
        pairs = np.stack([self.part_texts, self.part_lengths])
        return 1 - np.unique(pairs, axis=1).shape[1] / len(self.part_texts)

    @property
    def rate(self) -> float:
        """Requests a second, in the mean; 0 where all come at once."""
        span = float(self.arrivals[-1] - self.arrivals[0]) if len(self) else 0.0
        return (len(self) - 1) / span if span else 0.0

    @property
    def typical_tokens(self) -> int:
        """Tokens of a request with its output, in the mean."""
        return int((self.prompt_tokens + self.output_tokens).mean()) if len(self) else 1

    def first(self, count: int) -> Trace:
        """Its first requests."""
        return self._of(np.arange(min(count, len(self))))

    def of_one_engine(self, engines: int) -> Trace:
        """What the first of so many engines gets that take the requests in turn."""
        if engines == 1:
            return self
        share = self._of(np.arange(0, len(self), engines))
        return replace(share, name=f"{self.name}, one of {engines} engines")

    def _of(self, chosen: Any) -> Trace:
        """The requests of these indices, in their order."""
        parts, ids = self.num_parts, self.token_ids
        return replace(
            self,
            **{name: getattr(self, name)[chosen] for name in _OF_A_REQUEST},
            part_texts=_reorder(self.part_texts, parts, chosen),
            part_lengths=_reorder(self.part_lengths, parts, chosen),
            token_ids=None
            if ids is None
            else _reorder(ids, self.prompt_tokens + self.output_tokens, chosen),
        )

    def with_rate(self, requests_per_second: float) -> Trace:
        """The same requests, evenly apart."""
        return replace(self, arrivals=np.arange(len(self)) / requests_per_second)

    def faster(self, factor: float) -> Trace:
        """The same requests in less time."""
        return replace(self, arrivals=self.arrivals / factor)


@dataclass
class TraceBuilder:
    """Collects requests in any order; numbers take 8 bytes each, token ids 4."""

    name: str
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    priorities: array[int] = field(default_factory=lambda: array("q"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    num_parts: array[int] = field(default_factory=lambda: array("q"))
    part_texts: array[int] = field(default_factory=lambda: array("q"))
    part_lengths: array[int] = field(default_factory=lambda: array("q"))
    output_texts: array[int] = field(default_factory=lambda: array("q"))
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    has_ids: bool | None = None
    remarks: list[str] = field(default_factory=list)
    _own_text: int = -1

    def __len__(self) -> int:
        return len(self.arrivals)

    def own_text(self) -> int:
        """The number of a text that no other request has: negative, as no file's."""
        self._own_text -= 1
        return self._own_text

    def add(
        self,
        arrival: float,
        parts: Iterable[tuple[int, int]],
        output_tokens: int,
        *,
        priority: int = 0,
        output_text: int | None = None,
    ) -> None:
        """A request whose prompt is parts of texts: number and tokens of each."""
        self.has_ids = False
        before, length = len(self.part_texts), 0
        for text, tokens in parts:
            self.part_texts.append(text)
            self.part_lengths.append(tokens)
            length += tokens
        self.num_parts.append(len(self.part_texts) - before)
        self.output_texts.append(self.own_text() if output_text is None else output_text)
        self._add_numbers(arrival, length, output_tokens, priority)

    def add_ids(
        self, arrival: float, prompt: Sequence[int], output: Sequence[int], *, priority: int = 0
    ) -> None:
        """A request of token ids."""
        self.has_ids = True
        self.token_ids.extend(prompt)
        self.token_ids.extend(output)
        self.num_parts.append(0)
        self.output_texts.append(0)
        self._add_numbers(arrival, len(prompt), len(output), priority)

    def _add_numbers(self, arrival: float, prompt: int, output: int, priority: int) -> None:
        self.arrivals.append(arrival)
        self.priorities.append(priority)
        self.prompt_tokens.append(prompt)
        self.output_tokens.append(output)

    def build(self) -> Trace:
        """The trace, in the order of arrival, the first at 0 s."""
        arrays = {
            name: np.array(getattr(self, name), dtype)
            for name, dtype in (
                ("arrivals", np.float64),
                ("priorities", np.int64),
                ("prompt_tokens", np.int64),
                ("output_tokens", np.int64),
                ("num_parts", np.int64),
                ("part_texts", np.int64),
                ("part_lengths", np.int64),
                ("output_texts", np.int64),
            )
        }
        ids = np.array(self.token_ids, np.int32) if self.has_ids else None
        arrivals = arrays["arrivals"]
        if len(arrivals):
            arrays["arrivals"] = arrivals = arrivals - arrivals.min()
        trace = Trace(self.name, **arrays, token_ids=ids, remarks=tuple(self.remarks))
        if np.any(np.diff(arrivals) < 0):
            return trace._of(np.argsort(arrivals, kind="stable"))
        return trace


def _reorder(values: Any, sizes: Any, order: Any) -> Any:
    """Runs of values, as many as `sizes` says: those of `order`, in that order."""
    starts = (np.cumsum(sizes) - sizes)[order]
    sizes = sizes[order]
    ends = np.cumsum(sizes)
    index = np.arange(sizes.sum()) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)
    return values[index]
