"""The tensors of a checkpoint, from a model's config alone.

They bear the names that published checkpoints use, so that `sharding` treats both alike. Small ones
(norms of heads, biases of routers) are left out; together they are below a thousandth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import prod
from typing import Any

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.layers import CustomLayer, Layer, MLALayer, ModelLayers, StateLayer

#: Architectures whose MLP has an input and an output projection, and no gate.
_WITHOUT_GATE = (
    "Bloom", "Falcon", "GPT", "NemotronH", "NemotronFor", "OPT", "PhiFor", "Starcoder2", "Whisper",
)  # fmt: skip
#: Those whose queries, keys and values have biases whatever the config says.
_WITH_QKV_BIAS = ("Qwen2", "GptOss", "GPT", "PhiFor", "Starcoder2", "Bloom", "OPT", "Glm4", "Ovis")
#: Those that tie the output to the embedding where the config does not say.
_TIED = ("Gemma", "Cohere", "GPT2", "GPTBigCode", "Bloom", "Falcon", "OPT", "Whisper", "Lfm2")

#: A key of our own: hidden states of the model that a drafter reads, in the drafter's config.
STATES_READ = "hidden_states_read"


@dataclass(frozen=True)
class Parameter:
    """One tensor of a checkpoint, or several alike.

    Attributes:
        name: Its name; ``*`` stands for the number of an expert.
        shape: Its shape as stored.
        bits: Bits of an element as stored, or None for those of the model's dtype.
        copies: How many such tensors there are.
        padded_to: What kernels round a rank's part of an expert's width up to.
        hidden_padded_to: What they round an expert's hidden size up to.
    """

    name: str
    shape: tuple[int, ...]
    bits: float | None = None
    copies: int = 1
    padded_to: int = 1
    hidden_padded_to: int = 1

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return prod(self.shape) * self.copies


def parameters(
    root: ConfigView, text: ConfigView, architecture: str, layers: ModelLayers
) -> list[Parameter]:
    """Every tensor of the language model, and of its vision tower.

    Args:
        root: The whole config.
        text: Its language model's part.
        architecture: The architecture's name.
        layers: What the model's family says of its layers.

    Raises:
        ModelError: A size is missing.
    """
    model = _Model(root, text, architecture, layers)
    return [*model.language(), *model.encoder(), *_tower(root, text)]


def has_gate(architecture: str) -> bool:
    """Whether the MLP multiplies its input projection with a gate."""
    return not architecture.startswith(_WITHOUT_GATE)


def has_values_of_keys(text: ConfigView, layer: Layer) -> bool:
    """Whether a checkpoint has no value projection for a layer, whose values are its keys."""
    return bool(text.get("attention_k_eq_v")) and not getattr(layer, "sliding_window", None)


def largest(value: Any) -> int:
    """A number, or the largest of a list with one for each layer or modality; 0 where none is."""
    values = value if isinstance(value, list) else [value]
    return max((v for v in values if isinstance(v, int) and not isinstance(v, bool)), default=0)


def mlp_width(text: ConfigView) -> int:
    """Width of a dense layer's MLP.

    Mirrors vllm/model_executor/models/lfm2.py::Lfm2MLP (0.33), whose config has it unadjusted.
    """
    keys = ("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size")
    width = next((w for key in keys if (w := largest(text.get(key)))), 4 * text.size("hidden_size"))
    if not text.get("block_auto_adjust_ff_dim"):
        return width
    multiple = text.size("block_multiple_of")
    width = int((text.get("block_ffn_dim_multiplier") or 1) * int(2 * width / 3))
    return -(-width // multiple) * multiple


def num_experts(text: ConfigView) -> int:
    """Experts of a layer that has some, or 0."""
    for key in ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"):
        value = largest(text.get(key))
        if value:
            return value
    return 0


class _Model:
    def __init__(
        self, root: ConfigView, text: ConfigView, architecture: str, layers: ModelLayers
    ) -> None:
        self.root, self.text, self.architecture = root, text, architecture
        self.hidden = text.size("hidden_size")
        self.layers = layers
        self.mixers: dict[int, list[Layer]] = {}
        for layer in layers.layers:
            if layer.index is not None and not layer.is_draft:
                self.mixers.setdefault(layer.index, []).append(layer)
        self.pattern = text.get("hybrid_override_pattern") or ""

    def _is(self, *names: str) -> bool:
        return self.architecture.startswith(names)

    def _first(self, *keys: str, default: int = 0) -> int:
        for key in keys:
            value = largest(self.text.get(key))
            if value:
                return value
        return default

    def language(self) -> Iterator[Parameter]:
        vocabulary = self._first("padded_vocab_size", "vocab_size")
        if states := self._first(STATES_READ):  # its embeddings are the model's
            vocabulary = self._first("draft_vocab_size", default=vocabulary)
            yield Parameter("fc.weight", (self.hidden, states * self.hidden))
        else:
            yield Parameter("model.embed_tokens.weight", (vocabulary, self.hidden))
        layers, each = self.layers.num_hidden_layers, self._size_per_layer_input
        if each:
            entries = self._first("vocab_size_per_layer_input", default=vocabulary)
            yield Parameter("model.embed_tokens_per_layer.weight", (entries, layers * each))
            yield Parameter("model.per_layer_model_projection.weight", (layers * each, self.hidden))
        for index in range(self.layers.num_hidden_layers):
            for parameter in self._layer(index):
                yield replace(parameter, name=f"model.layers.{index}.{parameter.name}")
        if not self.is_tied:
            yield Parameter("lm_head.weight", (vocabulary, self.hidden))

    @property
    def _size_per_layer_input(self) -> int:
        """Elements of a token that each layer of Gemma 4 looks up for itself, or 0."""
        return self._first("hidden_size_per_layer_input") if self._is("Gemma4") else 0

    def encoder(self) -> Iterator[Parameter]:
        """The encoder of a model that decodes speech."""
        depth = self._first("encoder_layers") if self.layers.is_encoder_decoder else 0
        width = self._first("encoder_ffn_dim", default=4 * self.hidden)
        if depth:
            hidden = self.hidden
            yield Parameter("encoder.qkv.weight", (3 * hidden, hidden), copies=depth)
            yield Parameter("encoder.out_proj.weight", (hidden, hidden), copies=depth)
            yield Parameter("encoder.fc1.weight", (width, hidden), copies=depth)
            yield Parameter("encoder.fc2.weight", (hidden, width), copies=depth)
        if mels := self.text.get("num_mel_bins"):
            hidden = self.hidden
            yield Parameter("encoder.conv1.weight", (hidden, mels, 3))
            yield Parameter("encoder.conv2.weight", (hidden, hidden, 3))
            for tokens in ("max_source_positions", "max_target_positions"):
                yield Parameter("embed_positions.weight", (self._first(tokens), hidden))

    @property
    def is_tied(self) -> bool:
        for view in (self.root, self.text):
            value = view.get("tie_word_embeddings")
            if value is not None:
                return bool(value)
        return self._is(*_TIED)

    def _layer(self, index: int) -> Iterator[Parameter]:
        yield Parameter("norms.weight", (2 * self.hidden,))
        if each := self._size_per_layer_input:
            yield Parameter("per_layer_input_gate.weight", (each, self.hidden))
            yield Parameter("per_layer_projection.weight", (self.hidden, each))
        mixers = self.mixers.get(index) or self._of_owner(index)
        kinds = {type(mixer) for mixer in mixers}
        if any(isinstance(mixer, CustomLayer) for mixer in mixers) and self._is("DeepseekV4"):
            yield from self._deepseek_v4()
        elif MLALayer in kinds:
            yield from self._latent_attention(
                has_indexer=any(getattr(mixer, "is_index_group_leader", False) for mixer in mixers)
            )
        else:
            for mixer in mixers:
                if not isinstance(mixer, StateLayer):
                    has_keys = not (self._is("Gemma4") and self._shares(index))
                    yield from self._attention(mixer, has_keys=has_keys)
        for mixer in mixers:
            if isinstance(mixer, StateLayer):
                yield from self._state(mixer)
        if self.pattern:
            if self.pattern[index] == "-":
                yield from self._mlp("mlp", self._first("intermediate_size"))
            elif self.pattern[index] == "E":
                yield from self._experts()
        elif self._has_experts(index):
            yield from self._experts()
            if self._is("Gemma4"):
                yield from self._mlp("mlp", self._first("intermediate_size"))
        else:
            wider = 1 + bool(self._shares(index) and self.text.get("use_double_wide_mlp"))
            yield from self._mlp("mlp", wider * mlp_width(self.text))

    def _shares(self, index: int) -> bool:
        """Whether a layer attends to keys and values of an earlier one."""
        return index >= self.layers.num_hidden_layers - self._first("num_kv_shared_layers")

    def _of_owner(self, index: int) -> list[Layer]:
        """The attention of the last layer of the same kind that has a cache of its own."""
        kinds = self.text.get("layer_types") or ()
        if not self._shares(index) or index >= len(kinds):
            return []
        owners = [i for i in self.mixers if i < index and kinds[i] == kinds[index]]
        return self.mixers[max(owners)] if owners else []

    def _attention(self, layer: Layer, *, has_keys: bool) -> Iterator[Parameter]:
        hidden, heads = self.hidden, self.text.num_heads
        inputs = hidden * (1 + (self._first(STATES_READ) > 2))  # embeddings beside states
        head = getattr(layer, "head_size", self.text.head_size)
        value_head = getattr(layer, "head_size_v", None) or head
        kv_heads = getattr(layer, "num_kv_heads", self.text.num_kv_heads)
        if self._is("MiMoV2") and getattr(layer, "sliding_window", None):
            heads = self._first("swa_num_attention_heads", default=heads)
        gate = 2 if self._is("Qwen3Next", "Qwen3_5") else 1
        rows = {"q_proj": gate * heads * head}
        if has_keys:
            rows["k_proj"] = kv_heads * head
            if not has_values_of_keys(self.text, layer):
                rows["v_proj"] = kv_heads * value_head
        for name, count in rows.items():
            yield Parameter(f"self_attn.{name}.weight", (count, inputs))
            if self.text.get("attention_bias") or self._is(*_WITH_QKV_BIAS):
                yield Parameter(f"self_attn.{name}.bias", (count,))
        yield Parameter("self_attn.o_proj.weight", (hidden, heads * value_head))

    def _latent_attention(self, *, has_indexer: bool) -> Iterator[Parameter]:
        text, hidden, heads = self.text, self.hidden, self.text.num_heads
        rope, nope = text.size("qk_rope_head_dim", minimum=0), text.size("qk_nope_head_dim")
        value, latent = text.size("v_head_dim"), text.size("kv_lora_rank")
        rank = text.get("q_lora_rank")
        if rank:
            yield Parameter("self_attn.q_a_proj.weight", (rank, hidden))
            yield Parameter("self_attn.q_b_proj.weight", (heads * (nope + rope), rank))
        else:
            yield Parameter("self_attn.q_proj.weight", (heads * (nope + rope), hidden))
        yield Parameter("self_attn.kv_a_proj_with_mqa.weight", (latent + rope, hidden))
        yield Parameter("self_attn.kv_b_proj.weight", (heads * (nope + value), latent))
        yield Parameter("self_attn.o_proj.weight", (hidden, heads * value))
        if has_indexer:
            count, head = text.size("index_n_heads"), text.size("index_head_dim")
            yield Parameter("self_attn.indexer.wq_b.weight", (count * head, rank or hidden))
            yield Parameter("self_attn.indexer.wk.weight", (head, hidden))
            yield Parameter("self_attn.indexer.weights_proj.weight", (count, hidden))

    def _deepseek_v4(self) -> Iterator[Parameter]:
        text, hidden, heads = self.text, self.hidden, self.text.num_heads
        head = text.size("head_dim")
        rank, out, groups = (text.size(k) for k in ("q_lora_rank", "o_lora_rank", "o_groups"))
        yield Parameter("self_attn.q_a_proj.weight", (rank, hidden))
        yield Parameter("self_attn.q_b_proj.weight", (heads * head, rank))
        yield Parameter("self_attn.kv_a_proj_with_mqa.weight", (head, hidden))
        yield Parameter("self_attn.o_a_proj.weight", (groups * out, heads * head // groups))
        yield Parameter("self_attn.o_b_proj.weight", (hidden, groups * out))

    def _state(self, layer: StateLayer) -> Iterator[Parameter]:
        text, hidden = self.text, self.hidden
        match layer.mamba_type:
            case "mamba1":
                inner = text.get("intermediate_size") if self._is("Mamba", "FalconMamba") else None
                inner = inner or self._first("mamba_expand", default=2) * hidden
                state = self._first("mamba_d_state", "state_size", default=16)
                rank = self._first("mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
                yield Parameter("mamba.in_proj.weight", (2 * inner, hidden))
                yield Parameter("mamba.x_proj.weight", (rank + 2 * state, inner))
                yield Parameter("mamba.dt_proj.weight", (inner, rank))
                yield Parameter("mamba.A_log", (inner, state), 32)
                yield Parameter("mamba.out_proj.weight", (hidden, inner))
            case "mamba2":
                heads = self._first("mamba_num_heads", "mamba_n_heads", "num_heads")
                head = self._first("mamba_head_dim", "mamba_d_head", "head_dim")
                inner = heads * head
                groups = self._first("n_groups", "mamba_n_groups", default=1)
                state = self._first("ssm_state_size", "mamba_d_state", "state_size")
                rows = 2 * inner + 2 * groups * state + heads
                yield Parameter("mixer.in_proj.weight", (rows, hidden))
                yield Parameter("mixer.out_proj.weight", (hidden, inner))
            case "gdn_attn" if text.get("linear_num_key_heads"):
                key = text.size("linear_num_key_heads") * text.size("linear_key_head_dim")
                values = text.size("linear_num_value_heads")
                value = values * text.size("linear_value_head_dim")
                yield Parameter("linear_attn.in_proj_qkvz.weight", (2 * key + 2 * value, hidden))
                yield Parameter("linear_attn.in_proj_ba.weight", (2 * values, hidden))
                yield Parameter("linear_attn.conv1d.weight", (2 * key + value, 4))
                yield Parameter("linear_attn.out_proj.weight", (hidden, value))
            case "short_conv":
                yield Parameter("conv.in_proj.weight", (3 * hidden, hidden))
                yield Parameter("conv.out_proj.weight", (hidden, hidden))
            case _:
                yield Parameter("self_attn.qkv_proj.weight", (3 * hidden, hidden))
                yield Parameter("self_attn.g_proj.weight", (hidden, hidden))
                yield Parameter("self_attn.o_proj.weight", (hidden, hidden))

    def _mlp(self, name: str, width: int) -> Iterator[Parameter]:
        names = ("gate_proj", "up_proj") if has_gate(self.architecture) else ("up_proj",)
        for projection in names:
            yield Parameter(f"{name}.{projection}.weight", (width, self.hidden))
        yield Parameter(f"{name}.down_proj.weight", (self.hidden, width))

    def _has_experts(self, index: int) -> bool:
        text = self.text
        if num_experts(text) < 2:
            return False
        frequency = text.get("moe_layer_freq", 1)
        if isinstance(frequency, list):
            return bool(frequency[index])
        period = self._first("expert_layer_period")
        if period:
            return index % period == self._first("expert_layer_offset")
        if "interleave_moe_layer_step" in text.values:
            return (index + 1) % self._first("interleave_moe_layer_step", default=1) == 0
        if index in (text.get("mlp_only_layers") or ()):
            return False
        step = self._first("decoder_sparse_step", default=1)
        first = self._first("first_k_dense_replace")
        return index >= first and (index + 1) % step == 0 and index % frequency == 0

    def _experts(self) -> Iterator[Parameter]:
        text, experts = self.text, num_experts(self.text)
        width = self._first("moe_intermediate_size", "intermediate_size")
        yield Parameter("mlp.gate.weight", (experts, self.hidden))
        for parameter in self._mlp("mlp.experts.*", width):
            yield replace(parameter, copies=experts)
        if self._is("GptOss"):
            for name, rows in (
                ("gate_proj", width),
                ("up_proj", width),
                ("down_proj", self.hidden),
            ):
                yield Parameter(f"mlp.experts.*.{name}.bias", (rows,), 32, experts)
        shared = self._first(
            "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"
        )
        shared = shared or (text.get("n_shared_experts") or 0) * width
        if self._is("Llama4"):
            shared = width
        if shared:
            yield from self._mlp("mlp.shared_experts", shared)


#: Positions on an axis where the config does not say.
_GEMMA4_POSITIONS = 10240


@dataclass(frozen=True)
class Tower:
    """A vision tower of usual build.

    Attributes:
        depth: Its layers.
        hidden: Elements of a patch's hidden state.
        width: Width of its MLP.
        gated: Whether that has a gate.
        mergers: MLPs that make tokens of four patches each.
        positions: Rows of tables of positions, for both axes.
        is_split: Whether ranks divide it.
    """

    depth: int
    hidden: int
    width: int
    gated: bool = False
    mergers: int = 0
    positions: int = 0
    is_split: bool = True


def is_multimodal(root: ConfigView, text: ConfigView) -> bool:
    """Whether a model takes more than text."""
    return text is not root or isinstance(root.values.get("vision_config"), dict)


def tower_of(root: ConfigView) -> Tower | None:
    """The vision tower that a config describes, or that models of its type are published with."""
    values = root.values.get("vision_config")
    if isinstance(values, dict):
        vision = ConfigView(values, "vision_config")
        depth = vision.optional_size("num_hidden_layers") or vision.optional_size("depth")
        hidden = vision.optional_size("embed_dim") or vision.optional_size("hidden_size")
        width = vision.optional_size("intermediate_size")
        if hidden and width is None:
            width = int(hidden * (vision.get("mlp_ratio") or 0))
        if depth and hidden and width:
            gated = vision.values.get("hidden_act") in ("silu", "swiglu")
            if vision.values.get("model_type") == "gemma4_vision":
                rows = 2 * (vision.optional_size("position_embedding_size") or _GEMMA4_POSITIONS)
                return Tower(depth, hidden, width, gated=True, positions=rows, is_split=False)
            return Tower(depth, hidden, width, gated, int("spatial_merge_size" in values))
    return _usual_towers().get(root.model_type)


@cache
def _usual_towers() -> dict[str, Tower]:
    text = (resources.files(__package__) / "towers.json").read_text()
    return {name: Tower(**row) for name, row in json.loads(text).items()}


def _tower(root: ConfigView, text: ConfigView) -> Iterator[Parameter]:
    tower = tower_of(root) if is_multimodal(root, text) else None
    if tower is None:
        return
    hidden, width, depth = tower.hidden, tower.width, tower.depth
    out, merged = text.size("hidden_size"), 4 * hidden
    yield Parameter("vision_tower.qkv.weight", (3 * hidden, hidden), copies=depth)
    yield Parameter("vision_tower.out_proj.weight", (hidden, hidden), copies=depth)
    yield Parameter("vision_tower.fc1.weight", (width, hidden), copies=depth * (1 + tower.gated))
    yield Parameter("vision_tower.fc2.weight", (hidden, width), copies=depth)
    if tower.positions:
        yield Parameter("vision_tower.positions", (tower.positions, hidden))
    if tower.mergers:
        yield Parameter("vision_tower.merger.fc1.weight", (merged, merged), copies=tower.mergers)
        yield Parameter("vision_tower.merger.fc2.weight", (out, merged), copies=tower.mergers)
    else:
        yield Parameter("multi_modal_projector.weight", (out, hidden))
