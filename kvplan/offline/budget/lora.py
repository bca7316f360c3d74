"""What vLLM keeps for LoRA adapters: two matrices for each linear layer and adapter."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvplan.offline.budget.parameters import Parameter
from kvplan.offline.budget.sharding import VOCABULARY_PADDING, Placement

#: Linear layers whose input is divided over TP ranks; of the others it is the output.
_BY_INPUT = re.compile(r"\.(?:o_proj|o_b_proj|down_proj|out_proj|w2|fc2|c_proj|dense_4h_to_h|wo)\.")
_KEY_VALUE = re.compile(r"\.(?:k_proj|v_proj)\.")
_LINEAR = re.compile(r"^model\.layers\.(\d+)\..*(?:proj|in_proj\w*|w[123]|fc[12]|kv_a\w*)\.weight$")


def adapter_bytes(
    tensors: Iterable[Parameter], place: Placement, *, adapters: int, rank: int, itemsize: int
) -> int:
    """Bytes on a rank for so many adapters at once, whether any is loaded or not.

    Mirrors ``create_lora_weights`` of vllm/lora/layers (0.33), without ``--fully-sharded-loras``.

    Args:
        tensors: The model's, by their names in a checkpoint.
        place: The rank.
        adapters: ``--max-loras``.
        rank: ``--max-lora-rank``.
        itemsize: Bytes of an element.
    """
    elements = 0.0
    for tensor in tensors:
        linear = _LINEAR.search(tensor.name)
        if len(tensor.shape) < 2:
            continue
        if linear is not None and int(linear[1]) in place.stage:
            elements += _pair(tensor, place)
        elif "embed_tokens." in tensor.name:
            rows = -(-tensor.shape[0] // VOCABULARY_PADDING) * VOCABULARY_PADDING
            # Of the embedding, and of the output, which may be the same.
            elements += (place.is_first + place.is_last) * (rows + tensor.shape[1])
    return int(elements * adapters * rank * itemsize)


def _pair(tensor: Parameter, place: Placement) -> float:
    """Elements of both matrices for a rank of one, over all copies that the rank has."""
    outputs, inputs = tensor.shape[-2:]
    ranks, copies = place.tensor_parallel_size, float(tensor.copies)
    if ".experts." in tensor.name:
        owners = ranks * place.data_parallel_size
        if place.expert_parallel:
            return -(-tensor.copies // owners) * (outputs + inputs)
        ranks = owners
    if _BY_INPUT.search(tensor.name):
        return copies * (outputs + inputs / ranks)
    shared = min(ranks, place.num_kv_heads) if _KEY_VALUE.search(tensor.name) else ranks
    return copies * (outputs / shared + inputs)
