"""A model config and options, turned into what the planner takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvplan.offline.models.backend_choice import resolve_layout, supported_layouts
from kvplan.offline.models.config_file import read_config
from kvplan.offline.models.config_view import TEXT_CONFIG_KEYS, ConfigView, has_type, text_view
from kvplan.offline.models.context_length import derived_max_model_len, resolve_max_model_len
from kvplan.offline.models.drafters import (
    HIDDEN_STATE_METHODS,
    WITHOUT_BLOCK_DROP,
    speculative_method,
    with_drafter,
)
from kvplan.offline.models.dtypes import activation_dtype, checkpoint_cache_dtype, declared_dtype
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.layer_specs import spec_of
from kvplan.offline.models.layers import AttentionLayer, Layer, MLALayer, ModelLayers
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.parallel import (
    check_attention_heads,
    check_grouped_context_parallel,
    check_mlp_width,
    check_vocabulary,
    pipeline_stages,
)
from kvplan.offline.models.registry import Architecture, find_architecture, model_layers
from kvplan.offline.models.resolve import Resolution
from kvplan.offline.packing import get_backend, is_quantized


@dataclass(frozen=True)
class ModelConfig:
    """A model's config.

    Attributes:
        values: The parsed ``config.json``.
        source: Where it came from: a built-in name, a path or a Hub id.
    """

    values: dict[str, Any] = field(repr=False)
    source: str

    @property
    def architectures(self) -> list[str]:
        """The config's ``architectures``.

        Raises:
            ModelError: If there are none.
        """
        names = self.values.get("architectures")
        if isinstance(names, list) and names and all(isinstance(n, str) for n in names):
            return names
        raise ModelError(
            f"{self.source} names no architectures; a model config has a list such as "
            '"architectures": ["LlamaForCausalLM"]'
        )

    @property
    def architecture(self) -> str:
        """The architecture that kvplan plans.

        Raises:
            UnknownArchitecture: If no family knows it.
        """
        return find_architecture(self.architectures)[0]


@dataclass(frozen=True)
class ModelPlanInput:
    """What the planner needs to know about a model under some options.

    Attributes:
        model: The model's config.
        architecture: The architecture that was planned.
        family: Name of its attention family.
        kv_cache_specs: Layer name to spec, one dict per worker (TP ranks of a stage share one).
        config: Keywords of ``kvplan.PlanningConfig``.
        backends: Attention backends in layer order.
        cache_dtype: ``--kv-cache-dtype`` after the model's default.
        dtype: The model's activation dtype.
        dtype_is_assumed: Whether neither the config nor the options name one.
        longest: The model's own longest request in tokens, and what it was read from.
        length_decides_specs: Whether another ``max_model_len`` can give other specs.
        unknown_overrides: Keys of ``hf_overrides`` that neither the config has nor planning reads.
    """

    model: ModelConfig
    architecture: str
    family: str
    kv_cache_specs: list[dict[str, Any]]
    config: dict[str, Any]
    backends: list[str]
    cache_dtype: str
    dtype: str
    longest: tuple[int, str]
    length_decides_specs: bool
    dtype_is_assumed: bool = False
    unknown_overrides: tuple[str, ...] = ()

    def at_length(self, options: ModelOptions) -> ModelPlanInput:
        """The same model under options that differ from its own in ``max_model_len`` only.

        Raises:
            ModelError: If the model does not allow that length.
        """
        if self.length_decides_specs:
            return kv_cache_specs(self.model, options)
        length = resolve_max_model_len(*self.longest, options)
        changes = {"max_model_len": length, "auto_fit": options.auto_fit}
        return replace(self, config={**self.config, **changes})

    def planning_config(self, **changes: Any) -> Any:
        """The ``kvplan.PlanningConfig`` of this model, with some fields changed."""
        from kvplan import PlanningConfig

        return PlanningConfig(**{**self.config, **changes})


def load(model: str | Path) -> ModelConfig:
    """Read a model: a built-in name, a ``config.json``, its directory, or a Hub id.

    Raises:
        ModelError: If it cannot be read; the message says what would help.
    """
    values, source = read_config(model)
    return ModelConfig(values, source)


@dataclass(frozen=True)
class ReadLayers:
    """A config as its family reads it.

    Attributes:
        root: The whole config, ``hf_overrides`` applied.
        text: Its language model's part.
        architecture: Name of the architecture.
        family: Name of the family that read it: for a wrapper, that of its language model.
        row: Its row of the table of architectures.
        layers: What the family says of the layers.
        dtype: The model's activation dtype.
    """

    root: ConfigView
    text: ConfigView
    architecture: str
    family: str
    row: Architecture
    layers: ModelLayers
    dtype: str


def read_layers(model: ModelConfig, options: ModelOptions) -> ReadLayers:
    """A model's layers, before backends and block sizes are chosen.

    Raises:
        ModelError: If the config is wrong.
    """
    overridden = replace(model, values=_overridden(model.values, options.hf_overrides))
    root = ConfigView(overridden.values)
    name, row = find_architecture(overridden.architectures)
    text = text_view(root)
    dtype = activation_dtype(root, text, options)
    if row.traits.single_stage and options.pipeline_parallel_size > 1:
        raise ModelError(f"vLLM does not run {name} in pipeline stages; give --pp 1")
    context, layers = model_layers(name, row, root, text, options, dtype)
    drafted = with_drafter(context, layers)
    return ReadLayers(root, text, name, context.family, row, drafted, dtype)


def kv_cache_specs(
    model: ModelConfig | str | Path, options: ModelOptions | None = None
) -> ModelPlanInput:
    """The KV cache specs that vLLM 0.33 registers for a model, and the planner's defaults for it.

    Args:
        model: A loaded config, or what ``load`` takes.
        options: Engine options; the defaults are vLLM's.

    Raises:
        ModelError: If the config is wrong, or the options do not fit the model.
    """
    model = model if isinstance(model, ModelConfig) else load(model)
    options = options or ModelOptions()
    read = read_layers(model, options)
    root, text, dtype, layers = read.root, read.text, read.dtype, read.layers
    name, architecture = read.architecture, read.row
    num_heads = 0 if layers.is_attention_free else text.num_heads
    if num_heads:
        check_attention_heads(num_heads, options.tensor_parallel_size)
        check_mlp_width(name, text, num_heads, options.tensor_parallel_size)
    derived, source = derived_max_model_len(root, text, root.model_type)
    resolution = Resolution(
        model=layers,
        options=options,
        dtype=dtype,
        num_heads=num_heads or options.tensor_parallel_size,
        max_model_len=resolve_max_model_len(derived, source, options),
        rope_dim=_rope_dim(text),
        checkpoint_cache_dtype=checkpoint_cache_dtype(root, text),
    )
    _check_context_parallel(text, layers, resolution)
    _check_only_backend(name, architecture, resolution)
    _check_mamba_block_size(resolution)
    _check_float_cache(resolution)
    vocab_size = text.optional_size("padded_vocab_size") or text.optional_size("vocab_size")
    if vocab_size is not None:
        check_vocabulary(vocab_size, options.tensor_parallel_size)
    stages = pipeline_stages(
        layers.num_hidden_layers,
        options.pipeline_parallel_size,
        options.pipeline_layer_partition,
    )
    workers = _workers(layers, resolution, stages)
    specs = [
        spec for worker in workers[:: options.tensor_parallel_size] for spec in worker.values()
    ]
    layout = (
        resolve_layout(
            supported_layouts(resolution.declared_layouts()), specs, options.kv_cache_layout
        )
        if specs
        else "LBNHC"
    )
    return ModelPlanInput(
        model=model,
        architecture=name,
        family=read.family,
        kv_cache_specs=workers,
        config=_planning_config(layers, resolution, layout),
        backends=[b.published_name or b.name for b in resolution.backends],
        cache_dtype=resolution.cache_dtype,
        dtype=dtype,
        longest=(derived, source),
        # A state's block size is the length where states are not cached.
        length_decides_specs=bool(resolution.state_layers),
        unknown_overrides=tuple(
            key
            for key in options.hf_overrides
            if not (key in model.values or key in root.keys_read | text.keys_read or has_type(key))
        ),
        dtype_is_assumed=options.dtype == "auto" and declared_dtype(root, text) is None,
    )


def _check_context_parallel(text: ConfigView, layers: ModelLayers, resolution: Resolution) -> None:
    """Refuse decode context parallelism where the model's attention cannot do it, as vLLM does."""
    dcp = resolution.options.decode_context_parallel_size
    if dcp == 1:
        return
    kinds = {type(layer) for layer in layers.layers if not layer.is_draft}
    if AttentionLayer in kinds and MLALayer not in kinds:
        check_grouped_context_parallel(resolution.num_heads, text.num_kv_heads, resolution.tp, dcp)
    for layer in layers.layers:
        backend = get_backend(resolution.backend_of(layer))
        if layer.is_draft or not backend.is_selectable:
            continue
        if not backend.supports_dcp:
            raise ModelError(
                f"{layer.name}: attention backend {backend.name} does not do decode context "
                f"parallelism"
            )
        if backend.name == "FLASHMLA_SPARSE" and not is_quantized(resolution.cache_dtype):
            raise ModelError(
                f"{layer.name}: decode context parallelism with {backend.name} needs "
                f"kv_cache_dtype fp8_ds_mla or fp8"
            )


def _check_mamba_block_size(resolution: Resolution) -> None:
    """Refuse one that no prefix cache would use.

    Mirrors vllm/config/vllm.py::VllmConfig.validate_mamba_block_size (0.33).
    """
    wanted = resolution.options.mamba_block_size
    if wanted in (None, resolution.max_model_len) or resolution.prefix_caching:
        return
    raise ModelError(
        f"mamba_block_size {wanted} needs --enable-prefix-caching; without it the only block size "
        f"of states is the longest request, {resolution.max_model_len} tokens"
    )


def _check_float_cache(resolution: Resolution) -> None:
    """Refuse an unquantized cache in another 16-bit dtype than the model's.

    Mirrors vllm/config/vllm.py::VllmConfig._reject_mismatched_float_kv_cache (0.33).
    """
    wanted, dtype = resolution.cache_dtype, resolution.dtype
    if wanted not in ("float16", "bfloat16") or wanted == dtype:
        return
    allowed = "auto" if dtype == "float32" else f"auto or {dtype}"
    raise ModelError(
        f"kv_cache_dtype {wanted} is not the model's dtype, {dtype}; give --kv-cache-dtype "
        f"{allowed}, or --dtype {wanted}"
    )


def _check_only_backend(name: str, architecture: Architecture, resolution: Resolution) -> None:
    """Refuse a backend on which vLLM does not run the model, though it may choose it."""
    only = architecture.traits.only_backend
    chosen = [backend.name for backend in resolution.attention_backends]
    if only is not None and chosen != [only]:
        raise ModelError(
            f"{name} runs on attention backend {only} only, and vLLM does not choose that by "
            f"itself (here it takes {', '.join(chosen)}): give --attention-backend {only}"
        )


def _overridden(values: dict[str, Any], overrides: Any) -> dict[str, Any]:
    """A config with keys replaced, and those of the configs within it.

    Mirrors vllm/config/model.py::ModelConfig._apply_dict_overrides (0.33).
    """
    merged = dict(values)
    for key, value in overrides.items():
        if key in TEXT_CONFIG_KEYS and not isinstance(merged.get(key), dict):
            raise ModelError(
                f"hf_overrides.{key} changes a nested config that the model's config does not "
                "have; name the keys without it, such as "
                '{"max_position_embeddings": 131072}'
            )
        inner = merged.get(key)
        if (
            isinstance(value, dict)
            and isinstance(inner, dict)
            and (key in TEXT_CONFIG_KEYS or "model_type" in inner)
        ):
            value = _overridden(inner, value)
        merged[key] = value
    return merged


def _rope_dim(text: ConfigView) -> int | None:
    head_dim = text.get("head_dim")
    factor = text.get("partial_rotary_factor", 1.0)
    if not isinstance(head_dim, int) or not isinstance(factor, (int, float)):
        return None
    if not 0 <= factor <= 1:
        raise ModelError(f"{text.where}.partial_rotary_factor must be from 0 to 1; got {factor!r}")
    return int(head_dim * factor)


def _workers(
    layers: ModelLayers, resolution: Resolution, stages: list[range]
) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = []
    for number, stage in enumerate(stages):
        is_last = number == len(stages) - 1

        def belongs(layer: Layer, stage: range = stage, is_last: bool = is_last) -> bool:
            return is_last if layer.index is None else layer.index in stage

        specs = {
            layer.name: spec_of(resolution, layer) for layer in layers.layers if belongs(layer)
        }
        workers.extend([specs] * resolution.tp)
    return workers


def _planning_config(layers: ModelLayers, resolution: Resolution, layout: str) -> dict[str, Any]:
    options = resolution.options
    speculative = options.speculative_config
    method = speculative_method(speculative) if speculative is not None else None
    config: dict[str, Any] = {
        "max_model_len": resolution.max_model_len,
        "auto_fit": options.auto_fit,
        "max_in_flight_tokens": options.max_concurrent_batches * options.max_num_batched_tokens,
        "max_concurrent_batches": options.max_concurrent_batches,
        "kv_cache_layout": layout,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "decode_context_parallel_size": options.decode_context_parallel_size,
        "mamba_cache_mode": resolution.mamba_cache_mode,
        "disable_hybrid_kv_cache_manager": options.disable_hybrid_kv_cache_manager,
        "max_num_encoder_input_tokens": options.max_num_batched_tokens,
        "block_size": resolution.block_size,
        "enable_prefix_caching": resolution.prefix_caching,
    }
    if layers.encoder_tokens is not None:
        config["encoder_tokens_per_request"] = layers.encoder_tokens
    if layers.model_type:
        config["model_type"] = layers.model_type
    if method is not None:
        uses_hidden_states = method in HIDDEN_STATE_METHODS
        config["speculative_method"] = method
        config["use_eagle"] = uses_hidden_states
        config["use_eagle_block_drop"] = uses_hidden_states and method not in WITHOUT_BLOCK_DROP
        config["num_prefill_lookahead_tokens"] = layers.num_prefill_lookahead_tokens
    return config
