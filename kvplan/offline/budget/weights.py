"""Bytes of weights that each rank holds after loading."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.offline.budget.activation import NOT_RECORDED, RECORDED
from kvplan.offline.budget.checkpoint import (
    INDEX,
    checkpoint_tensors,
    hub_bytes,
    hub_tensors,
    indexed_bytes,
)
from kvplan.offline.budget.drafter import drafter_model
from kvplan.offline.budget.parameters import (
    Parameter,
    has_values_of_keys,
    is_multimodal,
    parameters,
    tower_of,
)
from kvplan.offline.budget.quantization import quantized
from kvplan.offline.budget.sharding import Placement, bytes_on_rank, mtp_tensors, stored_bytes
from kvplan.offline.models.config_file import builtin_models, model_on_hub, snapshot_directory
from kvplan.offline.models.config_view import MAX_LAYERS, ConfigView
from kvplan.offline.models.drafters import WITHOUT_CACHE, num_mtp_layers, speculative_method
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.layers import AttentionLayer, MLALayer
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.parallel import pipeline_stages
from kvplan.offline.models.plan_input import ModelConfig, ReadLayers, read_layers

#: Types of models whose positions are in time and space, whether their config says so or not.
_ROTATED_IN_SPACE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
#: An index whose total is so many times what its config describes, or a part of it, lies: weights
#: of 32 bits may be stored in 4 without a word of it in the config.
_MOST_OFF = 9
ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Weights:
    """What ranks hold.

    Attributes:
        by_stage: Bytes on a rank of each pipeline stage.
        source: Where the sizes come from.
        relative_error: How far off they may be.
    """

    by_stage: tuple[int, ...]
    source: str
    relative_error: float = 0.0


def weights_on_ranks(
    model: ModelConfig,
    options: ModelOptions,
    *,
    total_bytes: int | None = None,
    data_parallel_size: int = 1,
    expert_parallel: bool = False,
) -> Weights:
    """What ranks hold of a model after loading.

    The headers of the files beside the config are exact. Where there are none the config alone
    says how large each tensor is; a size that is known in all is then divided in its proportions.

    Args:
        model: The model's config.
        options: Engine options, of which the parallel sizes count.
        total_bytes: Bytes of all weights, or None for what is found.
        data_parallel_size: DP ranks.
        expert_parallel: Whether whole experts are given to ranks.

    Raises:
        ModelError: A file is damaged, or the config says too little.
    """
    read = read_layers(model, options)
    tensors, source, error = None, "given", 0.0
    if total_bytes is None:
        tensors, total_bytes, source = _found(model)
        error = 0.005 if tensors is None else 0.001
        if source == "the config" and read.architecture not in RECORDED:
            error, source = 0.02, f"{source}; {NOT_RECORDED}"
    own = config_tensors(read, options) if tensors is None else tensors
    drafting = mtp_tensors(own, read.layers.num_hidden_layers)
    places = rank_places(read, options, own, data_parallel_size, expert_parallel)
    itemsize = ITEM_SIZES[read.dtype]
    held = [bytes_on_rank(own, place, itemsize) for place in places]
    if total_bytes is not None:
        in_checkpoint = [*own, *drafting] if num_mtp_layers(read.text) else own
        whole = stored_bytes(in_checkpoint, itemsize)
        if source != "given" and not 1 / _MOST_OFF < total_bytes / whole < _MOST_OFF:
            raise ModelError(
                f"{source} of {model.source} states {total_bytes:,} bytes, but what the config "
                f"describes is {int(whole):,}; one of them is of another model"
            )
        held = [int(size * total_bytes / whole) for size in held]
    if source != "given":
        held = [
            size + _made_after_loading(read, options, place, itemsize)
            for size, place in zip(held, places, strict=True)
        ]
    held[-1] += _drafter_bytes(options, drafting, places[-1], itemsize)
    return Weights(tuple(held), source, error)


def _found(model: ModelConfig) -> tuple[list[Parameter] | None, int | None, str]:
    """A checkpoint's tensors where their headers are here, else its size where an index says."""
    on_hub = model_on_hub(model.source)
    path = Path(model.source)
    if on_hub is not None:
        try:
            tensors = hub_tensors(on_hub)
        except ModelError:
            # Offline, say, with the index in the cache.
            total = hub_bytes(on_hub)
            if total is None:
                raise
            return None, total, "the Hub's index"
        if tensors is not None:
            return tensors, None, "the headers on the Hub"
        total = hub_bytes(on_hub)
        return None, total, "the config" if total is None else "the Hub's index"
    if model.source not in builtin_models() and path.exists():
        directory = snapshot_directory(path) if path.is_dir() else path.parent
        tensors = checkpoint_tensors(directory)
        if tensors is not None:
            return tensors, None, "the checkpoint's headers"
        if (directory / INDEX).is_file():
            return None, indexed_bytes(directory / INDEX), INDEX
    return None, None, "the config"


def _drafter_bytes(
    options: ModelOptions, drafting: list[Parameter], place: Placement, itemsize: int
) -> int:
    """What the drafter of a speculative config adds to the last stage."""
    speculative = options.speculative_config
    method = speculative_method(speculative) if speculative else "ngram"
    if method in WITHOUT_CACHE:
        return 0
    assert speculative is not None
    if method == "mtp":
        everywhere = replace(place, stage=range(MAX_LAYERS), num_layers=MAX_LAYERS)
        return bytes_on_rank(drafting, everywhere, itemsize)
    own = {"speculative_config": None, "pipeline_parallel_size": 1, "max_model_len": None}
    ranks = speculative.get("draft_tensor_parallel_size") or options.tensor_parallel_size
    alone = options.replace(**own, pipeline_layer_partition=None, tensor_parallel_size=ranks)
    return weights_on_ranks(drafter_model(speculative), alone).by_stage[0]


def config_tensors(read: ReadLayers, options: ModelOptions) -> list[Parameter]:
    """Every tensor that the config tells of, in the bits that it is stored in."""
    tensors = parameters(read.root, read.text, read.architecture, read.layers)
    for view in (read.root, read.text):
        config = view.values.get("quantization_config")
        if isinstance(config, dict):
            expert_dtype = read.root.get("expert_dtype") or read.text.get("expert_dtype")
            quantization = {"expert_dtype": expert_dtype, **config}
            return quantized(tensors, quantization, options.device_capability)
    return tensors


def rank_places(
    read: ReadLayers,
    options: ModelOptions,
    tensors: list[Parameter],
    data_parallel_size: int,
    expert_parallel: bool,
) -> list[Placement]:
    """A rank of each pipeline stage."""
    num_layers = read.layers.num_hidden_layers
    stages = pipeline_stages(
        num_layers, options.pipeline_parallel_size, options.pipeline_layer_partition
    )
    is_tied = not any("lm_head" in tensor.name for tensor in tensors)
    tower = tower_of(read.root)
    return [
        Placement(
            tensor_parallel_size=options.tensor_parallel_size,
            stage=stage,
            num_layers=num_layers,
            num_kv_heads=_kv_heads(read),
            data_parallel_size=data_parallel_size,
            expert_parallel=expert_parallel,
            is_tied=is_tied,
            splits_tower=tower is None or tower.is_split,
        )
        for stage in stages
    ]


def _kv_heads(read: ReadLayers) -> int:
    return 1 if read.layers.is_attention_free else read.text.num_kv_heads


def _made_after_loading(
    read: ReadLayers, options: ModelOptions, place: Placement, itemsize: int
) -> int:
    """Tables and copies that no checkpoint holds.

    A rotary table spans all positions. Latent attention keeps the two halves of its projection from
    the latent beside it, in the model's dtype. Where values are the keys, the projection is loaded
    as both. A multimodal Gemma 4 keeps what its layers look up for a step's tokens.
    Mirrors vllm/model_executor/layers/rotary_embedding and
    vllm/model_executor/layers/attention/mla_attention.py::MLAAttention
    .process_weights_after_loading, and vllm/model_executor/models/gemma4_mm.py (0.33).
    """
    text, ranks = read.text, place.tensor_parallel_size
    here = [layer for layer in read.layers.layers if layer.index in place.stage]
    copies = 0
    for layer in here:
        if isinstance(layer, MLALayer):
            width = (text.get("qk_nope_head_dim") or 0) + (text.get("v_head_dim") or 0)
            copies += text.num_heads // ranks * width * (text.get("kv_lora_rank") or 0)
        elif isinstance(layer, AttentionLayer) and has_values_of_keys(text, layer):
            heads = layer.num_kv_heads / min(ranks, layer.num_kv_heads)
            copies += int(heads * layer.head_size * text.size("hidden_size"))
    looked_up = text.get("hidden_size_per_layer_input") or 0
    if looked_up and is_multimodal(read.root, text):
        copies += looked_up * read.layers.num_hidden_layers * options.max_num_batched_tokens
    return (copies + _rotary_tables(read)) * itemsize


def _rotary_tables(read: ReadLayers) -> int:
    """Elements of the tables of sines and cosines.

    Linear scaling spans as many positions more, and positions in time and space four times as many;
    kinds of layers that turn at a base of their own have a table of their own.
    """
    text = read.text
    positions = text.get("max_position_embeddings") or 0
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kinds = {kind: own for kind, own in scaling.items() if isinstance(own, dict)}
    if kinds:
        return int(positions * sum(_rotated(text, k, v) * _times(v) for k, v in kinds.items()))
    tables = _times(scaling)
    if text.model_type.startswith("gemma3"):
        tables += 1
    if "mrope_section" in scaling or read.root.model_type.startswith(_ROTATED_IN_SPACE):
        tables = 4
    return int(tables * positions * _rotated(text, "", scaling))


def _times(scaling: dict[str, Any]) -> float:
    is_linear = (scaling.get("rope_type") or scaling.get("type")) == "linear"
    return scaling.get("factor") or 1 if is_linear else 1


def _rotated(text: ConfigView, kind: str, scaling: dict[str, Any]) -> int:
    """Elements of a head that are turned; a proportional table has those that stand still, too."""
    if rope := text.get("qk_rope_head_dim"):
        return int(rope)
    try:
        head = text.head_size
    except ValueError:
        return 0
    if kind == "full_attention":
        head = text.get("global_head_dim") or head
    if scaling.get("rope_type") == "proportional":
        return head
    part = text.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1
    return int(head * part)
