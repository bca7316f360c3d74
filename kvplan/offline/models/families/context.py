"""What every family reads: the config, the options, and which layers slide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.layers import AttentionLayer, Layer, ModelLayers, StateLayer
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

    def attention(self, index: int, **fields: Any) -> AttentionLayer:
        """Keys and values of a layer; the config says the name and the heads that are not given."""
        text = self.text
        return AttentionLayer(
            index=index,
            **_filled(
                fields,
                name=lambda: self.name(index),
                num_kv_heads=lambda: text.num_kv_heads,
                head_size=lambda: text.head_size,
            ),
        )

    def interleaved(
        self, attends: Sequence[bool], attention: Layer, state: StateLayer
    ) -> tuple[Layer, ...]:
        """By layer, the one where it attends and else the other, each under its own name."""
        return tuple(
            replace(attention, name=self.name(i), index=i)
            if attending
            else replace(state, name=self.state_name(i), index=i)
            for i, attending in enumerate(attends)
        )

    def model(self, layers: Iterable[Layer], **fields: Any) -> ModelLayers:
        """The model of these layers; the config says the number and the heads not given."""
        text = self.text
        return ModelLayers(
            layers=tuple(layers),
            model_type=text.model_type,
            **_filled(
                fields,
                num_hidden_layers=lambda: text.num_layers,
                page_kv_heads=lambda: 1 if fields.get("uses_mla") else text.num_kv_heads,
                page_head_size=lambda: text.head_size,
            ),
        )


def _filled(fields: dict[str, Any], **defaults: Callable[[], Any]) -> dict[str, Any]:
    """The fields, with what is read only where it is missing."""
    return fields | {name: read() for name, read in defaults.items() if name not in fields}


def model_window(context: FamilyContext) -> int | None:
    """A window that holds for the whole model, or None.

    vLLM takes ``sliding_window`` for every layer unless the config lists layer kinds, or the
    config class drops it (``use_sliding_window`` false).
    """
    text = context.text
    window = text.get("sliding_window")
    if "sliding_window" in context.traits.ignored_keys or text.get("use_sliding_window") is False:
        return None
    return window if isinstance(window, int) and window > 0 else None


def _pattern_types(context: FamilyContext, num_layers: int) -> list[str] | None:
    """Layer kinds from a period: the last layer of each period is full."""
    period = context.traits.period
    if period is None:
        return None
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        value = context.text.own(key)
        if isinstance(value, int) and value > 0:
            period = value
            break
    return [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention"
        for i in range(num_layers)
    ]


def layer_kinds(context: FamilyContext) -> list[str] | None:
    """The kind of every layer, or None where all are alike."""
    num_layers = context.text.num_layers
    return context.text.layer_types(num_layers) or _pattern_types(context, num_layers)


def window_of_layers(context: FamilyContext) -> list[int | None]:
    """The window of every layer in tokens, None for full attention.

    Raises:
        ModelError: If a layer slides and no window is given.
    """
    num_layers = context.text.num_layers
    listed = _listed_windows(context, num_layers)
    if listed is not None:
        return listed
    kinds = layer_kinds(context)
    if kinds is None:
        return [model_window(context)] * num_layers
    window = context.text.get("sliding_window")
    windows: list[int | None] = []
    for i, kind in enumerate(kinds):
        if kind not in context.traits.sliding_kinds:
            windows.append(None)
            continue
        if not isinstance(window, int) or window < 1:
            raise ModelError(
                f"{context.text.where}.layer_types[{i}] is {kind!r}, but sliding_window is "
                f"{window!r}"
            )
        windows.append(window + context.traits.window_extra)
    return windows


def _listed_windows(context: FamilyContext, num_layers: int) -> list[int | None] | None:
    """Windows that the config spells out layer by layer, as PLaMo 3 does."""
    for key in ("interleaved_sliding_window", "sliding_window", "window_sizes"):
        windows = context.text.own(key)
        if not isinstance(windows, list):
            continue
        if key == "window_sizes":
            windows = [_tokens_of_pair(pair) for pair in windows]
        where = f"{context.text.where}.{key}"
        if len(windows) != num_layers:
            raise ModelError(
                f"{where} has {len(windows)} entries, but the model has {num_layers} layers"
            )
        for i, window in enumerate(windows):
            if window is not None and (not isinstance(window, int) or window < 1):
                raise ModelError(f"{where}[{i}] is {window!r}, which is not a number of tokens")
        context.text.keys_read |= {"layer_types", "sliding_window"}  # the list says it all
        return windows
    return None


def _tokens_of_pair(pair: object) -> object:
    """The window of a pair of tokens (left, right), which counts the token itself in vLLM."""
    left = pair[0] if isinstance(pair, list) and pair else pair
    if not isinstance(left, int):
        return left
    return left + 1 if left > 0 else None
