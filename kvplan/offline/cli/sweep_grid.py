"""The grid of a sweep: every combination of values, in chunks that share one model's specs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.offline.cli.deployment_options import layout_for
from kvplan.offline.cli.failures import DoesNotFit
from kvplan.offline.cli.question import ModelQuestion, PlannerInput, Question, RequestQuestion

if TYPE_CHECKING:
    from kvplan.offline.cli.gpu_budget import GpuBudget
    from kvplan.offline.cli.workload import Workload

#: Plans that one worker process makes before it hands its rows over.
CHUNK = 512
#: The same where each is replayed.
REPLAYED_CHUNK = 4

KEYS = (
    "model",
    "tp",
    "pp",
    "dcp",
    "kv_cache_dtype",
    "block_size",
    "max_num_batched_tokens",
    "grouping",
    "gpu",
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
    "usable_concurrency",
    "capacity_tokens",
    "usable_capacity_tokens",
    "steady_concurrency",
    "steady_capacity_tokens",
    "estimated_max_len",
    "error",
)
COLUMNS = (*KEYS, *ANSWERS)
_TEXT = ("model", "kv_cache_dtype", "grouping", "gpu", "asked_max_model_len", "error")
_FLOATS = ("bytes_per_token", "max_concurrency", "usable_concurrency", "steady_concurrency")
#: The type of each column's values; "auto" makes the asked length text.
COLUMN_TYPES: dict[str, type] = {
    name: str if name in _TEXT else float if name in _FLOATS else bool if name == "fits" else int
    for name in COLUMNS
}
#: What ``--workload`` adds to a row; figures of one engine.
REPLAY_TYPES: dict[str, type] = {
    "requests": int,
    "finished": int,
    "hit_rate": float,
    "preemptions": int,
    "first_token_p50": float,
    "first_token_p99": float,
    "goodput": float,
}
_PLAN_FIELDS = tuple(
    name for name in ANSWERS if name not in ("fits", "num_groups", "estimated_max_len", "error")
)


@dataclass(frozen=True)
class Estimated:
    """A GPU instead of a size.

    Attributes:
        name: As it was given.
        estimate: What it has left for the cache.
        capability: CUDA compute capability, if it has one.
        max_num_batched_tokens: Tokens of a step that vLLM takes on it by default.
        max_num_seqs: Sequences that vLLM starts for on it by default.
    """

    name: str
    estimate: GpuBudget
    capability: tuple[int, ...] | None
    max_num_batched_tokens: int
    max_num_seqs: int


Memory = int | Estimated


@dataclass(frozen=True)
class Grid:
    """The values of each axis.

    Attributes:
        models: Models as `kvplan plan` takes them.
        options: Values of each model option, by its name in `ModelOptions`.
        groupings: Values of ``--grouping``.
        memory: Bytes for the KV cache of each GPU.
        gpus: Of each model, the GPUs whose memory is estimated instead.
        lengths: Tokens of the longest request, "auto", or None for the model's.
        shared: Options that are the same for all.
        config: `PlanningConfig` fields that are the same for all.
        layout: The KV cache layout asked for.
        max_num_seqs: Sequences that the engine is started for; None for the GPU's default.
        is_request: Whether the one model is a recorded request's file.
        load: With ``--workload``, the parameters of a replay: each process reads the trace.
    """

    models: list[str]
    options: dict[str, list[Any]]
    groupings: list[str]
    memory: list[int]
    lengths: list[int | str | None]
    shared: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    gpus: dict[str, list[Estimated]] = field(default_factory=dict)
    layout: str | None = None
    max_num_seqs: int | None = None
    is_request: bool = False
    load: dict[str, Any] | None = None

    @property
    def columns(self) -> dict[str, type]:
        """The type of each column."""
        return COLUMN_TYPES if self.load is None else COLUMN_TYPES | REPLAY_TYPES

    def memory_of(self, model: str) -> Sequence[Memory]:
        """The sizes, or the GPUs, for a model."""
        return self.memory or self.gpus.get(model, [])

    def __len__(self) -> int:
        """Plans of the grid."""
        number = sum(len(self.memory_of(model)) for model in self.models)
        number *= len(self.groupings) * len(self.lengths)
        for values in self.options.values():
            number *= len(values)
        return number

    def chunks(self) -> Iterator[Chunk]:
        """The grid, cut so that all plans of a chunk share the specs of one deployment."""
        size = CHUNK if self.load is None else REPLAYED_CHUNK
        for model in self.models:
            for values in itertools.product(*self.options.values()):
                options = dict(zip(self.options, values, strict=True))
                points = itertools.product(self.groupings, self.lengths, self.memory_of(model))
                while rows := list(itertools.islice(points, size)):
                    yield Chunk(self, model, options, rows)


@dataclass(frozen=True)
class Chunk:
    """Plans of one deployment: (grouping, length, memory) each."""

    grid: Grid
    model: str
    options: dict[str, Any]
    points: list[tuple[str, int | str | None, Memory]]

    def plan(self) -> list[tuple[Any, ...]]:
        """A row of the grid's columns for each point; what cannot be planned says why."""
        key = (
            self.model,
            self.options["tensor_parallel_size"],
            self.options["pipeline_parallel_size"],
            self.options["decode_context_parallel_size"],
            self.options["kv_cache_dtype"],
            self.options["block_size"],
        )
        # Some specs depend on the length, and sliced grouping needs its own layout.
        inputs: dict[Any, tuple[Question, PlannerInput] | str] = {}
        rows = []
        known: dict[Any, Any] = {}  # by layout, capability and batch
        for grouping, length, memory in self.points:
            gpu = memory if isinstance(memory, Estimated) else None
            which = (length, layout_for(grouping, self.grid.layout), gpu and gpu.name)
            if which not in inputs:
                try:
                    question = self._question(length, which[1], gpu, known)
                    inputs[which] = question, question.planner_input()
                except kvplan.PlanningError as error:
                    inputs[which] = str(error)
            found = inputs[which]
            size = memory if isinstance(memory, int) else None
            plan: kvplan.Plan | None = None
            if isinstance(found, str):
                answer = _failed(found)
            else:
                given = found[1]
                sizes = (
                    given.available_memory if size is None else [size] * len(given.kv_cache_specs)
                )
                size = min(sizes)
                answer, plan = _plan(given, grouping, sizes)
            if self.grid.load is not None:
                answer = self._replayed(answer, found, plan)
            tokens = self._batch(gpu)
            rows.append((*key, tokens, grouping, gpu and gpu.name, size, length, *answer))
        return rows

    def _replayed(
        self,
        answer: tuple[Any, ...],
        found: tuple[Question, PlannerInput] | str,
        plan: kvplan.Plan | None,
    ) -> tuple[Any, ...]:
        """An answer with the figures of the load's replay, or with why there are none."""
        assert self.grid.load is not None
        if plan is None or isinstance(found, str):
            return (*answer, *(None for _ in REPLAY_TYPES))
        workload = _load_workload(self.grid.load)
        try:
            policy = workload.policy(*found, plan)
            report = workload.replay(plan, policy, self.grid.load["replicas"])
        except kvplan.PlanningError as error:
            why = f"not replayed: {' '.join(str(error).split())}"
            return (*answer[:-1], why, *(None for _ in REPLAY_TYPES))
        from kvplan.offline.cli.workload import figures

        numbers = figures(report)
        seconds = numbers.pop("first_token_seconds")
        numbers |= {f"first_token_{name}": seconds[name] for name in ("p50", "p99")}
        return (*answer, *(numbers[name] for name in REPLAY_TYPES))

    def _batch(self, gpu: Estimated | None) -> int:
        """Tokens of a step: those given, or the GPU's default."""
        given: int | None = self.options["max_num_batched_tokens"]
        if given is None:
            assert gpu is not None
            return gpu.max_num_batched_tokens
        return given

    def _question(
        self,
        length: int | str | None,
        layout: str | None,
        gpu: Estimated | None,
        known: dict[Any, Any],
    ) -> Question:
        """The question of one length, layout and GPU; `known` saves finding a model anew."""
        from kvplan.offline import models

        grid = self.grid
        if grid.is_request:
            question: Question = RequestQuestion(_load_request(self.model), self.model, (1,))
            question = question.with_config(**grid.config)
            if layout is not None:
                question = question.with_config(kv_cache_layout=layout)
            question = question.with_batch(self.options["max_num_batched_tokens"])
            if length == "auto":
                return question.with_config(auto_fit=True)
            return question if length is None else question.with_length(int(length))
        capability = gpu.capability if gpu is not None else None
        device = {} if capability is None else {"device_capability": capability}
        options = models.ModelOptions(
            **(self.options | grid.shared | device | {"max_num_batched_tokens": self._batch(gpu)}),
            max_model_len=length,
            kv_cache_layout=layout,
        )
        which = layout, capability, options.max_num_batched_tokens
        found = ModelQuestion(
            _load(self.model),
            options,
            () if gpu is not None else (1,),
            grid.config,
            estimate=None if gpu is None else gpu.estimate,
            max_num_seqs=grid.max_num_seqs or (None if gpu is None else gpu.max_num_seqs),
            known=known.get(which),
        )
        known[which] = found.model_input()
        return dataclasses.replace(found, known=known[which])


_loaded: dict[str, Any] = {}


def _load(model: str) -> Any:
    """The model's config, read once per process."""
    from kvplan.offline import models

    if model not in _loaded:
        _loaded[model] = models.load(model)
    return _loaded[model]


def _load_request(path: str) -> Any:
    """The recorded request, read once per process."""
    from kvplan import request

    if path not in _loaded:
        _loaded[path] = request.load(path)
    return _loaded[path]


def _load_workload(values: dict[str, Any]) -> Workload:
    """The load, read once per process."""
    from kvplan.offline.cli.replay import load_of
    from kvplan.offline.cli.workload import Workload

    key = repr(values)
    if key not in _loaded:
        _loaded[key] = Workload(load_of(values["workload"], values), values)
    return _loaded[key]


def _failed(reason: str, estimate: int | None = None) -> tuple[Any, ...]:
    return (False, None, *(None for _ in _PLAN_FIELDS), estimate, " ".join(reason.split()))


def _plan(
    given: PlannerInput, grouping: str, memory: list[int]
) -> tuple[tuple[Any, ...], kvplan.Plan | None]:
    """The `ANSWERS`, and the plan where there is one."""
    try:
        config = given.config
        if grouping != config.grouping:
            config = config.replace(grouping=grouping)
        plan = dataclasses.replace(given, config=config, available_memory=memory).plan()
        if not plan.groups:
            return _failed("this model has no layer with a KV cache"), None
        numbers = (getattr(plan, name) for name in _PLAN_FIELDS)
        return (True, len(plan.groups), *numbers, None, None), plan
    except kvplan.NotEnoughMemory as error:
        return _failed(str(error), error.estimated_max_len), None
    except (kvplan.PlanningError, DoesNotFit) as error:
        return _failed(str(error)), None
