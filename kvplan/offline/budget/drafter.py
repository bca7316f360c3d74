"""What speculation takes beside a drafter's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.offline.budget.activation import ModelShape, shape_of
from kvplan.offline.budget.parameters import STATES_READ
from kvplan.offline.models.context_length import derived_max_model_len
from kvplan.offline.models.drafters import (
    HIDDEN_STATE_METHODS,
    WITHOUT_CACHE,
    draft_config,
    speculative_method,
)
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.plan_input import ModelConfig, ReadLayers, read_layers
from kvplan.offline.models.registry import ARCHITECTURES


@dataclass(frozen=True)
class Drafter:
    """A drafter's sizes.

    Attributes:
        tokens: Tokens that it drafts for a sequence.
        layers: Its layers, which CUDA graphs hold, too.
        reads_states: Whether it reads the hidden states of the model.
        mlp: Width of the MLP of one that reads them and is a model of its own, or 0.
        history: Tokens of each sequence that it looks drafts up in, or 0.
    """

    tokens: int
    layers: int = 0
    reads_states: bool = False
    mlp: int = 0
    history: int = 0

    def beside(self, shape: ModelShape) -> ModelShape:
        """The shape of a model with this drafter."""
        return replace(shape, drafter_mlp=self.mlp, has_mtp=self.reads_states and not self.mlp)

    def buffer_bytes(
        self, shape: ModelShape, *, tokens: int, sequences: int, itemsize: int = 2
    ) -> int:
        """What the V2 runner keeps for it: grammars' masks, hidden states, embeddings, tokens."""
        states = tokens * shape.hidden * itemsize * (1 + shape.is_multimodal)
        return states * self.reads_states + sequences * (
            self.tokens * shape.vocabulary // 8 + 4 * self.history
        )


def drafter_model(speculative: Mapping[str, Any]) -> ModelConfig:
    """The config of a drafter that is a model of its own.

    EAGLE's heads, whose names no family has, are decoder layers that read hidden states.
    Raises `ModelError` where there is no config.
    """
    model = ModelConfig(dict(draft_config(speculative).values), str(speculative.get("model")))
    method = speculative_method(speculative)
    if method not in HIDDEN_STATE_METHODS:
        return model
    names = [name for name in model.architectures if name in ARCHITECTURES]
    read = 2 if method == "eagle" else 3
    own = {"architectures": names or ["LlamaForCausalLM"], STATES_READ: read}
    return replace(model, values={**model.values, **own})


def drafter_of(read: ReadLayers, options: ModelOptions) -> Drafter | None:
    """The drafter of a speculative config. Raises `ModelError` where it is none that is planned."""
    speculative = options.speculative_config
    if speculative is None:
        return None
    method, tokens = speculative_method(speculative), options.num_speculative_tokens
    if method in WITHOUT_CACHE:
        length = options.max_model_len
        if not isinstance(length, int) or length < 1:
            length, _ = derived_max_model_len(read.root, read.text, read.root.model_type)
        return Drafter(tokens, history=length)
    if method == "mtp":
        return Drafter(tokens, layers=1, reads_states=True)
    own = read_layers(drafter_model(speculative), ModelOptions())
    reads_states = method in HIDDEN_STATE_METHODS
    mlp = shape_of(own).mlp if reads_states else 0
    return Drafter(tokens, own.layers.num_hidden_layers, reads_states, mlp)
