"""The memory of a GPU, part by part, down to what is left for the KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.offline.budget.activation import (
    NOT_RECORDED,
    RECORDED,
    activation,
    has_v2_runner,
    shape_of,
)
from kvplan.offline.budget.cuda_graphs import are_estimated, capture_sizes, cuda_graphs
from kvplan.offline.budget.drafter import drafter_of
from kvplan.offline.budget.gpus import Gpu
from kvplan.offline.budget.lora import adapter_bytes
from kvplan.offline.budget.non_torch import non_torch
from kvplan.offline.budget.runner_buffers import runner_buffers
from kvplan.offline.budget.weights import ITEM_SIZES, Weights, config_tensors, rank_places
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.plan_input import ModelConfig, read_layers

_VERSION = (0, 33)
#: Of peak activation, by the phase that rules it; eager execution is what the forms are of.
_ACTIVATION_ERROR = {"sampler": 0.015, "encoder": 0.06, "forward": 0.1}
#: Of architectures whose profile run is not recorded: what layers of their own hold is not known.
_UNRECORDED_ERROR = 0.25
#: Of what is kept for adapters: scratch space besides is not modelled.
_ADAPTER_ERROR = 0.03
#: Of a GPU's memory: what drivers and boards of one name report differs by as much.
_DRIVER_ERROR = 0.004


@dataclass(frozen=True)
class Part:
    """One part of the memory.

    Attributes:
        name: What holds it.
        bytes: How much.
        error: How far off that may be, in either direction.
        source: Where it comes from.
    """

    name: str
    bytes: int
    error: int
    source: str


@dataclass(frozen=True)
class Budget:
    """A rank's memory.

    Attributes:
        gpu_bytes: Total memory as the driver reports it.
        utilization: Part of it that the engine may use.
        parts: What is taken off that.
    """

    gpu_bytes: int
    utilization: float
    parts: tuple[Part, ...]

    @property
    def usable_bytes(self) -> int:
        """What the engine may use."""
        return math.ceil(self.gpu_bytes * self.utilization)

    @property
    def kv_cache_bytes(self) -> int:
        """What is left for the KV cache; negative where nothing is."""
        return self.usable_bytes - sum(part.bytes for part in self.parts)

    @property
    def error(self) -> int:
        """How far off that may be; the parts' errors are independent, as is the driver's."""
        driver = int(self.gpu_bytes * _DRIVER_ERROR)
        return math.isqrt(driver**2 + sum(part.error**2 for part in self.parts))

    @property
    def interval(self) -> tuple[int, int]:
        """The least and the most that is left for the KV cache."""
        return self.kv_cache_bytes - self.error, self.kv_cache_bytes + self.error

    def verdict(self, needed_bytes: int) -> str:
        """Whether a cache of so many bytes fits: "fits", "does not", or "too close to call"."""
        low, high = self.interval
        if needed_bytes <= low:
            return "fits"
        if needed_bytes > high:
            return "does not"
        short = abs(needed_bytes - self.kv_cache_bytes)
        return f"too close to call, by {-(-short // (1 << 20)):,} MiB"


@dataclass(frozen=True)
class Deployment:
    """What decides a rank's memory beside the model and its options.

    Attributes:
        gpu: The GPU.
        utilization: Part of its memory that the engine may use.
        max_num_seqs: Sequences of a step.
        enforce_eager: Whether there are no CUDA graphs.
        data_parallel_size: DP ranks.
        expert_parallel: Whether whole experts are given to ranks.
        overhead_bytes: All but the weights, or None for what is predicted.
        version: vLLM's version.
        adapters: LoRA adapters that may be active at once, 0 without ``--enable-lora``.
        adapter_rank: Their rank at most.
    """

    gpu: Gpu
    utilization: float
    max_num_seqs: int
    enforce_eager: bool = False
    data_parallel_size: int = 1
    expert_parallel: bool = False
    overhead_bytes: int | None = None
    version: tuple[int, int] = _VERSION
    adapters: int = 0
    adapter_rank: int = 16


def memory_budgets(
    model: ModelConfig, options: ModelOptions, deployment: Deployment, weights: Weights
) -> list[Budget]:
    """The memory of a rank of each pipeline stage.

    Args:
        model: The model's config.
        options: Engine options; parallel sizes and tokens of a step count here.
        deployment: The GPU, and what else decides.
        weights: What ranks hold after loading.

    Raises:
        ModelError: The config says too little.
    """
    common = Budget(deployment.gpu.memory_bytes, deployment.utilization, ())
    held = [
        Part("weights", size, int(size * weights.relative_error), weights.source)
        for size in weights.by_stage
    ]
    if deployment.overhead_bytes is not None:
        overhead = Part("overhead", deployment.overhead_bytes, 0, "given")
        return [replace(common, parts=(part, overhead)) for part in held]
    is_given = weights.source == "given"
    return [
        replace(common, parts=(part, *_parts(model, options, deployment, stage, is_given=is_given)))
        for stage, part in enumerate(held)
    ]


def _parts(
    model: ModelConfig, options: ModelOptions, deployment: Deployment, stage: int, *, is_given: bool
) -> Sequence[Part]:
    stages = options.pipeline_parallel_size
    read = read_layers(model, options)
    shape, itemsize = shape_of(read, options.max_model_len), ITEM_SIZES[read.dtype]
    tp, tokens, sequences = (
        options.tensor_parallel_size,
        options.max_num_batched_tokens,
        deployment.max_num_seqs,
    )
    capability, version = deployment.gpu.capability, deployment.version
    ends = {"is_first_stage": stage == 0, "is_last_stage": stage == stages - 1}
    drafter = drafter_of(read, options) if ends["is_last_stage"] else None
    if drafter is not None:
        shape = drafter.beside(shape)
    step = activation(
        shape,
        tokens=tokens,
        sequences=sequences,
        tensor_parallel_size=tp,
        itemsize=itemsize,
        capability=capability,
        version=version,
        **ends,
    )
    buffers = runner_buffers(
        shape, tokens=tokens, sequences=sequences, itemsize=itemsize, version=version, **ends
    )
    is_v2 = has_v2_runner(shape, version)
    if shape.indexer is not None and not is_given and is_v2:
        buffers += shape.indexer.buffer_bytes(tokens, sequences)
    if drafter is not None and is_v2:
        buffers += drafter.buffer_bytes(
            shape, tokens=tokens, sequences=sequences, itemsize=itemsize
        )
    other = non_torch(
        tensor_parallel_size=tp,
        pipeline_parallel_size=stages,
        expert_parallel=deployment.expert_parallel,
        capability=capability,
        is_unified=deployment.gpu.is_unified,
    )
    relative = _ACTIVATION_ERROR[step.ruled_by]
    if step.ruled_by == "forward" and shape.has_states:
        relative = 0.15
    if shape.is_multimodal:
        relative = max(relative, 0.05)
    release = ".".join(map(str, version))
    rule = f"vLLM {release}'s profile run, ruled by the {step.ruled_by}"
    if read.architecture not in RECORDED:
        relative, rule = max(relative, _UNRECORDED_ERROR), f"{rule}; {NOT_RECORDED}"
    parts = [
        Part(
            "peak activation",
            step.peak,
            max(20 << 20, int(relative * step.peak)),
            rule,
        ),
        Part("runner's buffers", buffers, buffers // 50, f"vLLM {release}'s model runner"),
        Part("non-torch", other.bytes, other.error, "start-up logs"),
    ]
    if deployment.adapters:
        tensors = config_tensors(read, options)
        places = rank_places(
            read, options, tensors, deployment.data_parallel_size, deployment.expert_parallel
        )
        held = adapter_bytes(
            tensors,
            places[stage],
            adapters=deployment.adapters,
            rank=deployment.adapter_rank,
            itemsize=itemsize,
        )
        parts.append(
            Part(
                "LoRA adapters",
                held,
                int(_ADAPTER_ERROR * held),
                f"{deployment.adapters} of rank {deployment.adapter_rank}",
            )
        )
    if not deployment.enforce_eager and are_estimated(version, has_v2_runner=is_v2):
        drafted, drafting = (drafter.tokens, drafter.layers) if drafter else (0, 0)
        sizes = capture_sizes(sequences, tokens, capability=capability, query_tokens=1 + drafted)
        layers = -(-read.layers.num_hidden_layers // stages) + drafting
        graphs = cuda_graphs(len(sizes), layers, has_experts=shape.experts_per_token > 0)
        parts.append(
            Part("CUDA graphs", graphs.bytes, graphs.error, f"start-up logs, {len(sizes)} sizes")
        )
    return parts
