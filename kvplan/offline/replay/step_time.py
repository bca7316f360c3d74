"""How long a step takes: a linear model, from data sheets where nothing better is given.

No measurement: reports compare plans under one model of time, and say nothing of a real server's
seconds that the numbers here do not.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.frontier import step_seconds

if TYPE_CHECKING:
    from kvplan.offline.budget.gpus import Gpu
    from kvplan.offline.models.options import ModelOptions
    from kvplan.offline.models.plan_input import ModelConfig

__all__ = ["SPEEDS", "GivenTime", "StepTime", "default_step_time", "parse_step_time", "with_parts"]

#: Terabytes a second of memory, and dense teraflops in bfloat16, by GPU: the vendors' data sheets.
SPEEDS = {
    "T4": (0.32, 65),
    "V100": (0.9, 125),
    "A10": (0.6, 125),
    "A10G": (0.6, 70),
    "A30": (0.933, 165),
    "A40": (0.696, 150),
    "A100-40GB": (1.555, 312),
    "A100": (2.04, 312),
    "L4": (0.3, 121),
    "L20": (0.864, 120),
    "L40": (0.864, 181),
    "L40S": (0.864, 362),
    "RTX3090": (0.936, 71),
    "RTX4090": (1.008, 165),
    "RTX5090": (1.792, 210),
    "H100": (3.35, 989),
    "H100-NVL": (3.94, 835),
    "H100-96GB": (3.36, 989),
    "H20": (4.0, 148),
    "H20-141GB": (4.8, 148),
    "GH200": (4.0, 989),
    "GH200-144GB": (4.9, 989),
    "H200": (4.8, 989),
    "B200": (8.0, 2250),
    "GB200": (8.0, 2500),
    "B300": (8.0, 2250),
    "GB300": (8.0, 2500),
    "GB10": (0.273, 125),
    "MI300X": (5.3, 1307),
    "MI325X": (6.0, 1307),
    "MI355X": (8.0, 2500),
}
#: Of a data sheet's figures, what a forward pass reaches.
_REACHED = 0.6
#: Seconds of a step that are neither reading nor arithmetic: launches, sampling, the scheduler.
_OVERHEAD = 2e-3
_PER_SEQUENCE = 5e-6
#: A group, with kvplan's cache manager.
_PER_GROUP = step_seconds(1)
#: Keys for the experts that a token meets.
_CHOSEN_KEYS = (
    "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
)  # fmt: skip

_NAMES = ("base", "token", "sequence", "context", "group", "row")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: base, and for each token, sequence, token of context, and group.

    A row is a group of a sequence: vLLM's own cache manager takes time for each, kvplan's hardly.
    """

    base: float = 10e-3
    token: float = 30e-6
    sequence: float = 5e-6
    context: float = 30e-9
    group: float = _PER_GROUP
    row: float = 0.0
    source: str = "a rough default: an 8B model on a GPU of 3 TB/s"

    @property
    def seconds(self) -> tuple[float, ...]:
        """The six numbers."""
        return astuple(self)[: len(_NAMES)]

    @property
    def words(self) -> str:
        """The model as a sentence."""
        return (
            f"base {_short(self.base)} + {_short(self.token)} a token + {_short(self.sequence)} a "
            f"sequence + {_short(self.context)} a token of context + {_short(self.group)} a group "
            f"{f'+ {_short(self.row)} a group of a sequence ' if self.row else ''}"
            f"({self.source}); a model of time, no measurement"
        )


@dataclass(frozen=True)
class GivenTime:
    """Parts of a step's time by name, and where they come from."""

    parts: dict[str, float]
    source: str = ""


def parse_step_time(text: str) -> GivenTime:
    """``base=8ms,token=20us,sequence=5us,context=10ns,group=2us,row=1us``, or some; or a log.

    Raises:
        ValueError: A part is unknown, or no time; a log says too little.
    """
    if "=" not in text and Path(text).is_file():
        from kvplan.offline.replay.step_time_log import fitted_parts

        return GivenTime(*fitted_parts(Path(text), _PER_SEQUENCE))
    found = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        number = value.rstrip("smun")
        unit = value[len(number) :] or "s"
        if name not in _NAMES or unit not in _UNITS:
            raise ValueError(
                f"{part!r} is no part of a step's time; write e.g. base=8ms,token=20us,"
                "sequence=5us,context=10ns,group=2us, or a log of vllm serve"
            )
        try:
            seconds = float(number) * _UNITS[unit]
        except ValueError:
            raise ValueError(f"{part!r}: {value!r} is no time such as 8ms") from None
        if not 0 <= seconds < 1e9:
            raise ValueError(f"{part!r}: {value!r} is not between 0 and 1e9 s")
        found[name] = seconds
    return GivenTime(found)


def default_step_time(
    gpu: Gpu | None, model: ModelConfig, options: ModelOptions, bytes_per_token: float
) -> StepTime:
    """What a model on a GPU would take by the GPU's data sheet; a rough default without one.

    Args:
        gpu: The GPU, or None where it is not known.
        model: The model's config.
        options: Engine options.
        bytes_per_token: Of the KV cache of one GPU, in groups that grow.
    """
    speeds = SPEEDS.get(gpu.name) if gpu is not None else None
    if gpu is None or speeds is None:
        return StepTime()
    from kvplan.offline.budget.weights import weights_on_ranks

    try:
        held = weights_on_ranks(model, options).by_stage
    except ValueError:
        return StepTime()
    bandwidth, flops = (speed * 1e12 * _REACHED for speed in speeds)
    weights = sum(held) / len(held)
    return StepTime(
        base=_OVERHEAD + weights / bandwidth,
        token=weights * _active_share(model, options) / flops,  # two operations for two bytes
        sequence=_PER_SEQUENCE,
        context=bytes_per_token / bandwidth,
        source=f"{model.source} on {gpu.name} by its data sheet",
    )


def _active_share(model: ModelConfig, options: ModelOptions) -> float:
    """Of the weights, those that one token meets: of experts, the chosen ones."""
    from kvplan.offline.budget.parameters import num_experts, parameters
    from kvplan.offline.models.plan_input import read_layers

    read = read_layers(model, options)
    experts = num_experts(read.text)
    chosen = next((n for key in _CHOSEN_KEYS if isinstance(n := read.text.get(key), int)), None)
    if not experts or not chosen:
        return 1.0
    tensors = parameters(read.root, read.text, read.architecture, read.layers)
    whole = sum(tensor.elements for tensor in tensors)
    in_experts = sum(tensor.elements for tensor in tensors if ".experts." in tensor.name)
    return 1 - in_experts / whole * (1 - min(1.0, chosen / experts)) if whole else 1.0


def with_parts(default: StepTime, given: GivenTime | None) -> StepTime:
    """A default, with what the user gave of it."""
    if given is None:
        return default
    source = given.source or "as given"
    if not set(given.parts) >= set(_NAMES) - {"row"}:
        source = f"{', '.join(given.parts)} {source}, else {default.source}"
    return replace(default, **given.parts, source=source)


def _short(seconds: float) -> str:
    for unit, factor in _UNITS.items():
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return "0"
