"""The grid of a sweep: every combination of values, in chunks that share one model's specs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import kvplan
from kvplan.offline.cli.deployment_options import layout_for
from kvplan.offline.cli.question import ModelQuestion, PlannerInput

#: Plans that one worker process makes before it hands its rows over.
CHUNK = 512

KEYS = (
    "model",
    "tp",
    "pp",
    "dcp",
    "kv_cache_dtype",
    "block_size",
    "max_num_batched_tokens",
    "grouping",
    "memory_bytes",
    "asked_max_model_len",
)
ANSWERS = (
    "fits",
    "num_groups",
    "max_model_len",
    "num_blocks",
    "bytes_per_block",
    "request_bytes",
    "fixed_bytes_per_request",
    "bytes_per_token",
    "max_concurrency",
    "capacity_tokens",
    "usable_capacity_tokens",
    "steady_concurrency",
    "steady_capacity_tokens",
    "estimated_max_len",
    "error",
)
COLUMNS = (*KEYS, *ANSWERS)
_TEXT = ("model", "kv_cache_dtype", "grouping", "asked_max_model_len", "error")
_FLOATS = ("bytes_per_token", "max_concurrency", "steady_concurrency")
#: The type of each column's values; "auto" makes the asked length text.
COLUMN_TYPES: dict[str, type] = {
    name: str if name in _TEXT else float if name in _FLOATS else bool if name == "fits" else int
    for name in COLUMNS
}
_PLAN_FIELDS = tuple(
    name for name in ANSWERS if name not in ("fits", "num_groups", "estimated_max_len", "error")
)


@dataclass(frozen=True)
class Grid:
    """The values of each axis.

    Attributes:
        models: Models as `kvplan plan` takes them.
        options: Values of each model option, by its name in `ModelOptions`.
        groupings: Values of ``--grouping``.
        memory: Bytes for the KV cache of each GPU.
        lengths: Tokens of the longest request, "auto", or None for the model's.
        shared: Options that are the same for all.
        config: `PlanningConfig` fields that are the same for all.
    """

    models: list[str]
    options: dict[str, list[Any]]
    groupings: list[str]
    memory: list[int]
    lengths: list[int | str | None]
    shared: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Plans of the grid."""
        number = len(self.models) * len(self.groupings) * len(self.memory) * len(self.lengths)
        for values in self.options.values():
            number *= len(values)
        return number

    def chunks(self) -> Iterator[Chunk]:
        """The grid, cut so that all plans of a chunk share the specs of one deployment."""
        for model in self.models:
            for values in itertools.product(*self.options.values()):
                options = dict(zip(self.options, values, strict=True))
                points = itertools.product(self.groupings, self.lengths, self.memory)
                while rows := list(itertools.islice(points, CHUNK)):
                    yield Chunk(model, options, self.shared, self.config, rows)


@dataclass(frozen=True)
class Chunk:
    """Plans of one deployment: (grouping, length, memory) each."""

    model: str
    options: dict[str, Any]
    shared: dict[str, Any]
    config: dict[str, Any]
    points: list[tuple[str, int | str | None, int]]

    def plan(self) -> list[tuple[Any, ...]]:
        """A row of `COLUMNS` for each point; what cannot be planned says why."""
        from kvplan.offline import models

        key = (
            self.model,
            self.options["tensor_parallel_size"],
            self.options["pipeline_parallel_size"],
            self.options["decode_context_parallel_size"],
            self.options["kv_cache_dtype"],
            self.options["block_size"],
            self.options["max_num_batched_tokens"],
        )
        inputs: dict[Any, PlannerInput | str] = {}
        rows = []
        known: dict[str | None, Any] = {}  # by layout
        for grouping, length, memory in self.points:
            # Some specs depend on the length, and sliced grouping needs its own layout.
            layout = layout_for(grouping, None)
            if (length, layout) not in inputs:
                try:
                    options = models.ModelOptions(
                        **self.options,
                        **self.shared,
                        max_model_len=length,
                        kv_cache_layout=layout,
                    )
                    question = ModelQuestion(
                        _load(self.model), options, (1,), self.config, known=known.get(layout)
                    )
                    known[layout] = question.model_input()
                    question = dataclasses.replace(question, known=known[layout])
                    inputs[length, layout] = question.planner_input()
                except (ValueError, NotImplementedError, AssertionError) as error:
                    inputs[length, layout] = str(error)
            given = inputs[length, layout]
            answer = _failed(given) if isinstance(given, str) else _plan(given, grouping, memory)
            rows.append((*key, grouping, memory, length, *answer))
        return rows


_loaded: dict[str, Any] = {}


def _load(model: str) -> Any:
    """The model's config, read once per process."""
    from kvplan.offline import models

    if model not in _loaded:
        _loaded[model] = models.load(model)
    return _loaded[model]


def _failed(reason: str, estimate: int | None = None) -> tuple[Any, ...]:
    return (False, None, *(None for _ in _PLAN_FIELDS), estimate, " ".join(reason.split()))


def _plan(given: PlannerInput, grouping: str, memory: int) -> tuple[Any, ...]:
    try:
        config = given.config
        if grouping != config.grouping:
            config = config.replace(grouping=grouping)
        plan = kvplan.plan(config, given.kv_cache_specs, [memory] * len(given.kv_cache_specs))
        if not plan.groups:
            return _failed("this model has no layer with a KV cache")
        numbers = (getattr(plan, name) for name in _PLAN_FIELDS)
        return (True, len(plan.groups), *numbers, None, None)
    except kvplan.NotEnoughMemory as error:
        return _failed(str(error), error.estimated_max_len)
    except (ValueError, NotImplementedError, AssertionError) as error:
        return _failed(str(error))
