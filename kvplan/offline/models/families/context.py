"""What every family reads: the config, the options, and a few derived values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.options import ModelOptions


@dataclass(frozen=True, kw_only=True)
class FamilyContext:
    """Input of a family.

    Attributes:
        architecture: Name of the architecture.
        root: The whole config.
        text: The language model's part of it; the config itself where nothing is nested.
        options: The user's options.
        dtype: The model's activation dtype.
        pattern: vLLM's name of a layer's attention, with ``{i}`` for the layer index.
        settings: What the architecture table says beyond that.
    """

    architecture: str
    root: ConfigView
    text: ConfigView
    options: ModelOptions
    dtype: str
    pattern: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.options.tensor_parallel_size

    @property
    def prefix(self) -> str:
        """What a multimodal wrapper puts before the names of its language model."""
        return self.setting("prefix", "")

    def name(self, index: int) -> str:
        """VLLM's name of a layer's attention."""
        return self.pattern.format(i=index)

    def setting(self, key: str, default: Any = None) -> Any:
        """A value of the architecture table."""
        return self.settings.get(key, default)
