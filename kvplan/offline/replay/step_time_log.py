"""How long a step took on a server, from the lines of throughput in its log."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["fitted_parts"]

#: Mirrors vllm/v1/metrics/loggers.py::LoggingStatLogger.log (0.33).
_THROUGHPUT = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs.*?KV cache usage: ([\d.]+)%"
)
_CAPACITY = re.compile(r"KV cache size: ([\d,]+) tokens")
#: Lines below which three numbers cannot be told apart.
_LEAST_LINES = 4


def fitted_parts(path: Path, sequence: float) -> tuple[dict[str, float], str]:
    """Base, seconds a token and seconds a token of context of a log's steps, and words for them.

    In an interval each running request gets a token a step, so a step took as long as requests
    ran for each token of a second. Least squares, no part below 0.

    Args:
        path: A log of ``vllm serve``, without drafts.
        sequence: Seconds a sequence, which are known: with one token each they look like tokens.

    Raises:
        ValueError: It has too few lines.
        OSError: It cannot be read.
    """
    capacity = 0
    rows = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if size := _CAPACITY.search(line):
                capacity = int(size[1].replace(",", ""))
            if (found := _THROUGHPUT.search(line)) is None:
                continue
            numbers = [float(number) for number in found.groups()]
            prompt, generated, running, usage = numbers
            if generated > 0 and running > 0 and all(map(math.isfinite, numbers)):
                seconds = running / generated
                tokens = running + prompt * seconds
                rows.append((tokens, usage / 100 * capacity, seconds - sequence * running))
    if len(rows) < _LEAST_LINES:
        raise ValueError(
            f"{path} has {len(rows)} lines of throughput with running requests; "
            f"{_LEAST_LINES} or more are needed"
        )
    tokens, context, seconds = np.array(rows).T
    columns = np.stack([np.ones(len(rows)), tokens, context], axis=1)
    values = _least_squares(columns, seconds)
    error = float(np.mean(np.abs(columns @ values - seconds) / seconds))
    parts = dict(zip(("base", "token", "context"), values.tolist(), strict=True))
    return parts, f"fitted to {len(rows)} lines of {path.name}, {error:.0%} off in the mean"


def _least_squares(columns: Any, target: Any) -> Any:
    """The best values of which none is negative: the best of each choice of columns."""
    count = columns.shape[1]
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    best = np.zeros(count)
    least = float(np.sum(target**2))
    for size in range(1, count + 1):
        for chosen in map(list, itertools.combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(columns[:, chosen] / scale[chosen], target, rcond=None)
            values = np.zeros(count)
            values[chosen] = found / scale[chosen]
            left = float(np.sum((columns @ values - target) ** 2))
            if (values >= 0).all() and left < least:
                best, least = values, left
    return best
