"""The rows of a sweep as lines: an answer against one option, a line for each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.pictures import MAX_LINES, Axis, Line, lines_figure
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.sweep_grid import KEYS, Grid

#: Columns that can be drawn, and what they count.
PLOTTED = {
    "capacity_tokens": "tokens in the KV cache (vLLM's figure)",
    "usable_capacity_tokens": "tokens in the KV cache, without the null block",
    "steady_capacity_tokens": "tokens in the KV cache of a running server",
    "max_concurrency": "requests of the full length at once",
    "usable_concurrency": "requests of the full length at once, without the null block",
    "steady_concurrency": "requests at once in a running server",
    "max_model_len": "tokens of the longest request",
    "request_bytes": "bytes of one request",
    "bytes_per_token": "bytes for each token",
    "num_blocks": "blocks",
    "num_groups": "groups",
    "hit_rate": "hit rate of the load's prompts, by tokens",
    "first_token_p99": "seconds to the first token, 99th percentile",
    "goodput": "tokens of finished requests a busy second",
}
#: Options that can be the axis, in order of preference, and what they count.
_AXES = {
    "asked_max_model_len": "tokens of the longest request",
    "memory_bytes": "memory for the KV cache of each GPU",
    "tp": "tensor parallel ranks",
    "max_num_batched_tokens": "tokens of one step",
    "block_size": "tokens of a block",
    "pp": "pipeline stages",
    "dcp": "decode context parallel ranks",
}
_SIZES = ("memory_bytes", "request_bytes", "bytes_per_token")


class SweepPlot:
    """Collects a sweep's rows and draws them.

    Args:
        grid: The grid that is planned.
        column: The answer to draw, one of `PLOTTED`.

    Raises:
        BadInput: If no option has several numbers, or there are more lines than can be told apart.
    """

    def __init__(self, grid: Grid, column: str) -> None:
        self.column = column
        self._columns = list(grid.columns)
        values = axis_values(grid)
        varying = [key for key in KEYS if len(values[key]) > 1]
        numeric = [key for key in _AXES if len([v for v in values[key] if _is_number(v)]) > 1]
        if not numeric:
            raise BadInput(
                "--plot draws against an option with several numbers, e.g. --max-model-len "
                "8K:128K:8K or --memory 10GiB:80GiB:10GiB"
            )
        self.axis = numeric[0]
        self.series = [key for key in varying if key != self.axis]
        lines = 1
        for key in self.series:
            lines *= len(values[key])
        if lines > MAX_LINES:
            raise BadInput(
                f"--plot would draw {lines} lines, one for each combination of "
                f"{', '.join(self.series)}; at most {MAX_LINES} can be told apart, so give fewer "
                "values"
            )
        self.fixed = {key: values[key][0] for key in KEYS if len(values[key]) == 1}
        self._lines: dict[tuple[Any, ...], list[tuple[float, float | None]]] = {}

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Take rows of the grid's columns in its order."""
        for values in rows:
            row = dict(zip(self._columns, values, strict=True))
            if _is_number(row[self.axis]):
                name = tuple(row[key] for key in self.series)
                point = (float(row[self.axis]), row[self.column])
                self._lines.setdefault(name, []).append(point)

    def figure(self) -> Any:
        """The picture of the rows so far."""
        # Options that change nothing would hide each other's lines.
        names: dict[tuple[tuple[float, float | None], ...], list[str]] = {}
        for values, points in self._lines.items():
            name = ", ".join(map(_words, self.series, values)) or PLOTTED[self.column]
            names.setdefault(tuple(sorted(points)), []).append(name)
        lines = [Line(" = ".join(same), points) for points, same in names.items()]
        same = [_words(key, value) for key, value in self.fixed.items() if _is_telling(key, value)]
        return lines_figure(
            self.title, ", ".join(same), self._axis(self.axis), self._axis(self.column), lines
        )

    @property
    def title(self) -> str:
        """What is drawn."""
        what = PLOTTED[self.column].partition(" (")[0]
        return f"{what[0].upper()}{what[1:]} against {_AXES[self.axis]}"

    @staticmethod
    def _axis(column: str) -> Axis:
        name = _AXES.get(column) or PLOTTED[column]
        if column in _SIZES:
            return Axis(name, format_size, True)
        is_length = column in ("asked_max_model_len", "max_num_batched_tokens", "max_model_len")
        return Axis(name, is_binary=is_length)


def axis_values(grid: Grid) -> dict[str, list[Any]]:
    """The values of each of `KEYS` in a grid."""
    options = grid.options
    return {
        "model": grid.models,
        "tp": options["tensor_parallel_size"],
        "pp": options["pipeline_parallel_size"],
        "dcp": options["decode_context_parallel_size"],
        "kv_cache_dtype": options["kv_cache_dtype"],
        "block_size": options["block_size"],
        "max_num_batched_tokens": options["max_num_batched_tokens"],
        "grouping": grid.groupings,
        "gpu": [gpu.name for gpu in next(iter(grid.gpus.values()), [])] or [None],
        "memory_bytes": grid.memory or [None],
        "asked_max_model_len": grid.lengths,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_telling(key: str, value: Any) -> bool:
    """Whether a value that is the same everywhere says something, e.g. not ``PP 1``."""
    return value not in (None, "auto") and not (key in ("pp", "dcp") and value == 1)


def _words(key: str, value: Any) -> str:
    match key:
        case "model":
            return str(value)
        case "memory_bytes":
            return format_size(value)
        case "tp" | "pp" | "dcp":
            return f"{key.upper()} {value}"
        case "kv_cache_dtype":
            return f"{value} cache"
        case "grouping":
            return f"{value} grouping"
        case "gpu":
            return str(value)
        case "asked_max_model_len":
            return "the model's length" if value is None else f"length {value}"
        case "block_size":
            return "default blocks" if value is None else f"blocks of {value}"
    return f"{value:,} tokens a step"
