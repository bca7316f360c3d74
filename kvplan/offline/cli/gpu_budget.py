"""Where the memory for the KV cache comes from if it is not given: the budget of a named GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kvplan
from kvplan.offline.budget.budget import Budget, Deployment, memory_budgets
from kvplan.offline.budget.weights import Weights, weights_on_ranks
from kvplan.offline.cli.failures import BadInput, DoesNotFit, does_not_fit
from kvplan.offline.cli.sizes import format_size

if TYPE_CHECKING:
    from kvplan.offline.cli.question import PlannerInput
    from kvplan.offline.models import ModelConfig, ModelOptions


@dataclass(frozen=True)
class GpuBudget:
    """A GPU, and what the user says of what it holds.

    Attributes:
        deployment: The GPU, and what else decides.
        weights_bytes: Weights of the whole model, or None for what is found.
        weights_per_gpu: Weights of each rank, or None.
    """

    deployment: Deployment
    weights_bytes: int | None = None
    weights_per_gpu: int | None = None

    def budgets(self, model: ModelConfig, options: ModelOptions) -> list[Budget]:
        """The memory of a rank of each pipeline stage.

        Raises:
            BadInput: The weights cannot be read.
        """
        from kvplan.offline.models import ModelError

        try:
            return memory_budgets(model, options, self.deployment, self._weights(model, options))
        except ModelError as error:
            raise BadInput(f"{error}; give the size of the weights, e.g. --weights 140GB") from None

    def _weights(self, model: ModelConfig, options: ModelOptions) -> Weights:
        if self.weights_per_gpu is not None:
            return Weights((self.weights_per_gpu,) * options.pipeline_parallel_size, "given")
        return weights_on_ranks(
            model,
            options,
            total_bytes=self.weights_bytes,
            data_parallel_size=self.deployment.data_parallel_size,
            expert_parallel=self.deployment.expert_parallel,
        )


def kv_cache_memory(budgets: Sequence[Budget], label: str) -> list[int]:
    """What each stage has left. Raises DoesNotFit, which names the model, where nothing is."""
    for budget in budgets:
        if budget.kv_cache_bytes <= 0:
            held = " and ".join(
                f"{format_size(part.bytes)} {part.name}" for part in budget.parts if part.bytes
            )
            raise DoesNotFit(
                does_not_fit(
                    label,
                    f"{held} leave nothing of the {format_size(budget.usable_bytes)} that may be "
                    "used of each GPU (estimated)",
                )
            )
    return [budget.kv_cache_bytes for budget in budgets]


def budget_words(budgets: Sequence[Budget]) -> str:
    """The sum of the stage with the least left, for a reader."""
    budget = min(budgets, key=lambda one: one.kv_cache_bytes)
    parts = "".join(f" - {format_size(part.bytes)} {part.name}" for part in budget.parts)
    error = f" +- {format_size(budget.error)}" if budget.error else ""
    return (
        f"{format_size(budget.gpu_bytes)} x {budget.utilization:g}{parts} = "
        f"{format_size(budget.kv_cache_bytes)}{error}, ESTIMATED "
        f"(--kv-cache-memory-bytes {budget.kv_cache_bytes})"
    )


def verdict(given: PlannerInput, needed: kvplan.NotEnoughMemory | None = None) -> str:
    """Whether the plan fits for sure: it is tried with the least and the most that may be left.

    Args:
        given: The planner's input, with the memory that is expected.
        needed: The refusal that was met with it, if one was.
    """
    worst = min(given.budgets, key=lambda budget: budget.kv_cache_bytes)
    if needed is not None:
        stages = len(given.budgets)
        worst = given.budgets[needed.worker * stages // max(1, len(given.kv_cache_specs))]
        return worst.verdict(needed.needed_bytes)
    try:
        given.with_memory([budget.interval[0] for budget in given.budgets]).plan()
    except kvplan.NotEnoughMemory as error:
        return worst.verdict(error.needed_bytes)
    except DoesNotFit as error:
        return f"too close to call: with the least memory, {error.message}"
    return "fits"


def budget_dict(budgets: Sequence[Budget]) -> list[dict[str, object]]:
    """The budgets for JSON, one a pipeline stage."""
    return [
        {
            "gpu_bytes": budget.gpu_bytes,
            "gpu_memory_utilization": budget.utilization,
            "kv_cache_bytes": budget.kv_cache_bytes,
            "interval": list(budget.interval),
            "parts": [
                {
                    "name": part.name,
                    "bytes": part.bytes,
                    "error": part.error,
                    "source": part.source,
                }
                for part in budget.parts
            ],
        }
        for budget in budgets
    ]
