"""What every family reads: the config, the options, and a few derived values."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.traits import Traits


@dataclass(frozen=True, kw_only=True)
class FamilyContext:
    """Input of a family.

    Attributes:
        architecture: Name of the architecture.
        family: Name of the family's module.
        root: The whole config.
        text: The language model's part of it; the config itself where nothing is nested.
        options: The user's options.
        dtype: The model's activation dtype.
        pattern: vLLM's name of a layer's attention, with ``{i}`` for the layer index.
        prefix: What a multimodal wrapper puts before the names of its language model.
        traits: What the architecture's code does beyond that.
    """

    architecture: str
    family: str
    root: ConfigView
    text: ConfigView
    options: ModelOptions
    dtype: str
    pattern: str
    prefix: str = ""
    traits: Traits = field(default_factory=Traits)

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.options.tensor_parallel_size

    def name(self, index: int) -> str:
        """VLLM's name of a layer's attention."""
        return self.pattern.format(i=index)

    def state_name(self, index: int) -> str:
        """VLLM's name of a recurrent layer."""
        return self.prefix + self.traits.state_pattern.format(i=index)
