"""What is to be planned: a model under options or a recorded request, with the memory for it.

A question can be asked again with something changed, which is how knobs, fits and sweeps are found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.offline.cli.failures import BadInput, DoesNotFit, does_not_fit
from kvplan.specs import MambaSpec

if TYPE_CHECKING:
    from kvplan.offline.budget.budget import Budget
    from kvplan.offline.cli.gpu_budget import GpuBudget
    from kvplan.offline.models import ModelConfig, ModelOptions
    from kvplan.offline.models.plan_input import ModelPlanInput
    from kvplan.request import Request


@dataclass(frozen=True)
class PlannerInput:
    """All that the planner takes, and what is known of where it came from.

    Attributes:
        label: The model's name or the request's file.
        config: The planner's configuration.
        kv_cache_specs: Layer name to spec, one dict per worker.
        available_memory: Bytes for the KV cache, one entry per worker.
        facts: What to tell a reader of the model, in order, e.g. its architecture.
        max_num_seqs: Sequences that the engine is started for, or None where that is not known.
        budgets: What the memory of each pipeline stage was predicted from, if it was.
        max_num_batched_tokens: Tokens of one step.
        replicas: Engines side by side, each with such a cache.
    """

    label: str
    config: kvplan.PlanningConfig
    kv_cache_specs: list[dict[str, Any]]
    available_memory: list[int]
    facts: dict[str, str] = field(default_factory=dict)
    max_num_seqs: int | None = None
    budgets: Sequence[Budget] = ()
    replicas: int = 1

    @property
    def draft_layers(self) -> frozenset[str]:
        """Names of the layers that are a drafter's."""
        return frozenset(
            name for specs in self.kv_cache_specs for name, spec in specs.items() if spec.is_draft
        )

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one step, i.e. in-flight tokens by the batches at once."""
        return self.config.max_in_flight_tokens // self.config.max_concurrent_batches

    def with_memory(self, by_stage: Sequence[int]) -> PlannerInput:
        """The same with other memory on the ranks of each pipeline stage."""
        stages = self.config.pipeline_parallel_size
        memory = _per_worker(by_stage, len(self.kv_cache_specs), stages)
        return dataclasses.replace(self, available_memory=memory)

    def plan(self) -> kvplan.Plan:
        """Plan it.

        Raises `kvplan.NotEnoughMemory` and the planner's other errors, and `DoesNotFit` where vLLM
        would not start for as many sequences.
        """
        plan = kvplan.plan(self.config, self.kv_cache_specs, self.available_memory)
        self._check_sequences(plan)
        return plan

    def _check_sequences(self, plan: kvplan.Plan) -> None:
        """Each sequence needs a block for its recurrent state when CUDA graphs are captured.

        Mirrors vllm/config/compilation.py::CompilationConfig.resolve_cudagraph_mode_and_sizes
        (0.33).
        """
        if self.max_num_seqs is None or self.max_num_seqs <= plan.num_blocks:
            return
        specs = (spec for worker in self.kv_cache_specs for spec in worker.values())
        if any(isinstance(spec, MambaSpec) for spec in specs):
            raise DoesNotFit(
                f"{self.label}: vLLM does not start for {self.max_num_seqs:,} sequences "
                f"(max_num_seqs), each of which needs a block for its recurrent state: there are "
                f"{plan.num_blocks:,}. Give --max-num-seqs {plan.num_blocks} or less, or more "
                "memory"
            )

    def plan_or_refuse(self) -> kvplan.Plan:
        """The same for who asks no further; `DoesNotFit` then names what does not fit."""
        try:
            return self.plan()
        except kvplan.NotEnoughMemory as error:
            raise DoesNotFit(does_not_fit(self.label, error)) from None


class Question:
    """What can be asked of a model and of a recorded request alike."""

    config_changes: Mapping[str, Any]
    memory: Sequence[int]
    replicas: int

    @property
    def has_memory(self) -> bool:
        """Whether it says, or estimates, the memory for the cache."""
        raise NotImplementedError

    def with_config(self, **changes: Any) -> Question:
        """The same question under other fields of `PlanningConfig`."""
        return dataclasses.replace(self, config_changes={**self.config_changes, **changes})  # type: ignore[type-var]

    def with_memory(self, memory: Sequence[int]) -> Question:
        """The same question with other memory: for all workers, per stage, or per worker."""
        return dataclasses.replace(self, memory=tuple(memory))  # type: ignore[type-var]

    def with_batch(self, max_num_batched_tokens: int) -> Question:
        """The same question with another number of tokens per step."""
        changed = self.with_options(max_num_batched_tokens=max_num_batched_tokens)
        if changed is None:
            batches = self.planner_input().config.max_concurrent_batches
            return self.with_config(max_in_flight_tokens=batches * max_num_batched_tokens)
        return changed

    def with_length(self, max_model_len: int) -> Question:
        """The same question for requests of exactly this many tokens."""
        changed = self.with_options(max_model_len=max_model_len)
        if changed is None:
            return self.with_config(max_model_len=max_model_len, auto_fit=False)
        return changed

    def planner_input(self) -> PlannerInput:
        """Everything that the planner takes."""
        raise NotImplementedError

    def with_options(self, **changes: Any) -> Question | None:
        """The same question under other model options; None where they cannot change."""
        raise NotImplementedError


@dataclass(frozen=True)
class ModelQuestion(Question):
    """A model's config under engine options.

    Attributes:
        model: The model's config.
        options: Engine options.
        memory: Bytes for the KV cache: one for all workers, one per pipeline stage, or one each.
        config_changes: Fields of `PlanningConfig` that the user set.
        max_concurrent_batches: Batches in flight at once, or None for what vLLM would have.
        estimate: Where the memory comes from if none was given.
        max_num_seqs: Sequences that the engine is started for, or None where that is not known.
        replicas: Engines side by side (``--dp``), each with the whole model and its own cache.
        known: What was found of the same model under options that differ at most in
            ``max_model_len``; saves finding it again.
    """

    model: ModelConfig
    options: ModelOptions
    memory: Sequence[int] = ()
    config_changes: Mapping[str, Any] = field(default_factory=dict)
    max_concurrent_batches: int | None = None
    estimate: GpuBudget | None = None
    max_num_seqs: int | None = None
    known: ModelPlanInput | None = None
    replicas: int = 1

    @property
    def has_memory(self) -> bool:
        """Whether the memory is given or estimated."""
        return bool(self.memory) or self.estimate is not None

    def model_input(self) -> ModelPlanInput:
        """What the model's config says under the options. Raises `ModelError`."""
        from kvplan.offline import models

        if self.known is not None:
            return self.known.at_length(self.options)
        return models.kv_cache_specs(self.model, self.options)

    def planner_input(self) -> PlannerInput:
        """Everything that the planner takes. Raises `ModelError`."""
        found = self.model_input()
        changes = dict(self.config_changes)
        if self.max_concurrent_batches is not None:
            changes.setdefault("max_concurrent_batches", self.max_concurrent_batches)
            changes.setdefault(
                "max_in_flight_tokens",
                self.max_concurrent_batches * self.options.max_num_batched_tokens,
            )
        config = found.planning_config(**changes)
        workers = len(found.kv_cache_specs)
        facts = {"architecture": found.architecture}
        facts["dtype"] = found.dtype
        if found.dtype_is_assumed:
            facts["dtype"] += " (assumed: the config names none)"
        facts["KV cache dtype"] = found.cache_dtype
        if found.unknown_overrides:
            unknown = ", ".join(found.unknown_overrides)
            facts["hf_overrides"] = f"{unknown}: no key of this config, and read for no model"
        if found.backends:
            facts["attention backends"] = ", ".join(found.backends)
        memory = self.memory
        budgets: list[Budget] = []
        if not memory and self.estimate is not None:
            from kvplan.offline.cli.gpu_budget import budget_words, kv_cache_memory

            budgets = self.estimate.budgets(self.model, self.options)
            memory = kv_cache_memory(budgets, found.model.source)
            facts["memory"] = budget_words(budgets)
        return PlannerInput(
            label=found.model.source,
            config=config,
            kv_cache_specs=found.kv_cache_specs,
            available_memory=_per_worker(memory, workers, config.pipeline_parallel_size),
            facts=facts,
            max_num_seqs=self.max_num_seqs,
            budgets=budgets,
            replicas=self.replicas,
        )

    def with_options(self, **changes: Any) -> ModelQuestion:
        """The same question under other `ModelOptions`."""
        known = self.known if set(changes) <= {"max_model_len"} else None
        return dataclasses.replace(self, options=self.options.replace(**changes), known=known)


@dataclass(frozen=True)
class RequestQuestion(Question):
    """A recorded request; its specs are what they are, its config and memory may be changed."""

    request: Request
    source: str
    memory: Sequence[int] = ()
    config_changes: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1

    @property
    def has_memory(self) -> bool:
        """Whether the memory is given or recorded."""
        return bool(self.memory or self.request.available_memory())

    def planner_input(self) -> PlannerInput:
        """Everything that the planner takes. Raises `RequestError`."""
        config = self.request.planning_config()
        if self.config_changes:
            config = config.replace(**self.config_changes)
        specs = self.request.kv_cache_specs()
        memory = self.request.available_memory()
        if self.memory:
            memory = _per_worker(self.memory, len(specs), config.pipeline_parallel_size)
        facts = {"request": self.source}
        if self.request.source is not None:
            facts["recorded by"] = self.request.source
        label = self.source if self.request.model is None else self.request.model
        return PlannerInput(label, config, specs, memory, facts, replicas=self.replicas)

    def with_options(self, **changes: Any) -> None:
        """None: a recorded request's specs are fixed."""
        return None


def _per_worker(memory: Sequence[int], workers: int, stages: int) -> list[int]:
    """One entry per worker: all alike, or one per pipeline stage, or each its own."""
    if len(memory) == 1:
        return list(memory) * workers
    if len(memory) == workers:
        return list(memory)
    if len(memory) == stages and workers % stages == 0:
        return [m for m in memory for _ in range(workers // stages)]
    wanted = {1: "one for all", stages: f"{stages} (one per stage)", workers: f"{workers} (each)"}
    raise BadInput(
        f"--memory has {len(memory)} sizes; there are {workers} workers in {stages} pipeline "
        f"stages, so give {', '.join(wanted.values())}"
    )
