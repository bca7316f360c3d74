"""Which part of a tensor a rank holds, by the tensor's name.

Mirrors what the weight loaders of vllm/model_executor/layers do (0.33): vocabularies and the outer
dimensions of linear layers are split over TP ranks, KV heads are replicated where there are fewer
of them than ranks, whole experts go to ranks with expert parallelism, and everything else is
everywhere. Layers belong to pipeline stages; the drafter's layers are not loaded with the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvplan.offline.budget.parameters import Parameter

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_TOWER = re.compile(r"(?:^|\.)(?:vision|visual|audio|image|mm_|multi_modal|vit)|^encoder\.")
_EMBEDDING = re.compile(r"embed_tokens\b|word_embeddings|\bwte\b|tok_embeddings|embed_in")
_HEAD = re.compile(r"lm_head|embed_out|output_layer|^output\.")
_KEY_VALUE = re.compile(r"\.(?:k_proj|v_proj|key|value)\.")
_EXPERT = re.compile(r"\.experts\.")
_SPLIT = re.compile(
    r"\.(?:q_proj|qkv_proj|query_key_value|qkv|c_attn|Wqkv|wqkv|gate_proj|up_proj|gate_up_proj|w1|w2"
    r"|w3|fc1|fc2|c_fc|linear_fc1|linear_fc2|dense_h_to_4h|dense_4h_to_h|q_b_proj|kv_b_proj|o_proj"
    r"|o_a_proj|o_b_proj|down_proj|c_proj|dense|wo|out_proj|in_proj|in_proj_\w+|x_proj|dt_proj"
    r"|conv1d|A_log|g_proj|proj|per_layer_model_projection)(?:\.|$|_blocks|_scales|_bias)"
)
#: vLLM pads vocabularies to a multiple of this before ranks divide them.
VOCABULARY_PADDING = 64


@dataclass(frozen=True)
class Placement:
    """Where a rank stands.

    Attributes:
        tensor_parallel_size: TP ranks.
        stage: Decoder layers of its pipeline stage.
        num_layers: Decoder layers of the model.
        num_kv_heads: KV heads over all ranks.
        data_parallel_size: DP ranks, over which experts are spread, too.
        expert_parallel: Whether whole experts are given to ranks.
        is_tied: Whether the output is the embedding, which the last stage then holds as well.
        splits_tower: Whether ranks divide the vision tower, too.
    """

    tensor_parallel_size: int
    stage: range
    num_layers: int
    num_kv_heads: int
    data_parallel_size: int = 1
    expert_parallel: bool = False
    is_tied: bool = False
    splits_tower: bool = True

    @property
    def is_first(self) -> bool:
        """Whether it is of the first stage."""
        return self.stage.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it is of the last stage."""
        return self.stage.stop == self.num_layers


def elements_on_rank(parameter: Parameter, place: Placement) -> float:
    """Elements of a tensor that a rank holds."""
    name, ranks = parameter.name, place.tensor_parallel_size
    elements = parameter.elements
    if name.startswith("mtp.") or ".mtp." in name:
        return 0
    if _TOWER.search(name):
        owners = ranks if place.splits_tower and _SPLIT.search(name) else 1
        return elements / owners if place.is_first else 0
    layer = _LAYER.search(name)
    if layer is not None and int(layer[1]) not in place.stage:
        return 0
    if layer is None and _EMBEDDING.search(name):
        needed = place.is_first or (place.is_last and place.is_tied)
        return _vocabulary(parameter, ranks) if needed else 0
    if "embed_tokens_per_layer" in name:
        return _vocabulary(parameter, ranks)
    if layer is None and _HEAD.search(name):
        return _vocabulary(parameter, ranks) if place.is_last else 0
    if _EXPERT.search(name):
        owners = ranks * place.data_parallel_size
        if place.expert_parallel:
            return _largest_share(parameter, owners)
        return elements / owners * _padding(parameter, owners)
    if not _SPLIT.search(name) and not _KEY_VALUE.search(name):
        return elements
    if _KEY_VALUE.search(name):
        return elements / min(ranks, place.num_kv_heads)
    return elements / ranks


def _largest_share(parameter: Parameter, owners: int) -> float:
    if parameter.copies > 1:
        return parameter.elements / parameter.copies * -(-parameter.copies // owners)
    return parameter.elements / owners


def _padding(parameter: Parameter, owners: int) -> float:
    """By how much a rank's part of an expert grows, in width and hidden size."""
    if parameter.padded_to == 1 or len(parameter.shape) < 2:
        return 1
    at = "down_proj" in parameter.name
    width, hidden = parameter.shape[at] / owners, parameter.shape[not at]
    wider = -(-width // parameter.padded_to) * parameter.padded_to / width
    return wider * -(-hidden // parameter.hidden_padded_to) * parameter.hidden_padded_to / hidden


def _vocabulary(parameter: Parameter, ranks: int) -> float:
    rows = -(-parameter.shape[0] // VOCABULARY_PADDING) * VOCABULARY_PADDING
    return parameter.elements / parameter.shape[0] * rows / ranks


def mtp_tensors(parameters: Iterable[Parameter], num_layers: int) -> list[Parameter]:
    """The layers that predict further tokens, which only a drafter loads.

    Those of a checkpoint stand behind the last decoder layer or under ``mtp``. Where only the
    config is known, such a layer is like the last one, with a projection in front.
    """
    tensors = list(parameters)
    layers = [(p, _LAYER.search(p.name)) for p in tensors]
    found = [
        replace(p, name=p.name.replace("mtp.", "predictor."))
        for p, layer in layers
        if "mtp." in p.name or (layer is not None and int(layer[1]) >= num_layers)
    ]
    if found:
        return found
    last = [p for p, layer in layers if layer is not None and int(layer[1]) == num_layers - 1]
    hidden = next((p.shape[-1] for p in tensors if _EMBEDDING.search(p.name)), 0)
    return [*last, Parameter("eh_proj.weight", (hidden, 2 * hidden))]


def stored_bytes(parameters: Iterable[Parameter], itemsize: int) -> float:
    """Bytes of tensors as a checkpoint of the model's dtype stores them."""
    return sum(p.elements * (itemsize * 8 if p.bits is None else p.bits) for p in parameters) / 8


def bytes_on_rank(parameters: Iterable[Parameter], place: Placement, itemsize: int) -> int:
    """Bytes of tensors on a rank; those without bits of their own are of the model's dtype."""
    bits = sum(
        elements_on_rank(p, place) * (itemsize * 8 if p.bits is None else p.bits)
        for p in parameters
    )
    return int(bits / 8)
