"""From a family's layers to one KV cache spec per layer and worker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kvplan import specs
from kvplan.offline.models.backend_choice import (
    can_run,
    check_triton_dtype,
    choose_backend,
    hybrid_block_size,
    preferred_block_size,
    skip_layer_page,
)
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.layers import (
    AttentionLayer,
    CustomLayer,
    Layer,
    MLALayer,
    ModelLayers,
    StateLayer,
)
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.packing import (
    ATTENTION_BACKENDS,
    DTYPE_BYTES,
    AttentionBackend,
    BackendNeeds,
    customize_spec,
    get_kv_quant_mode,
    storage_dtype,
    supported_kernel_block_sizes,
    supported_layouts,
    supports_block_size,
)

#: Attention layers at either end that vLLM keeps unquantized for packed 4-bit formats.
_BOUNDARY_LAYERS = 2


class Blocks(NamedTuple):
    """Block sizes of attention and of aligned states in tokens, and shared pages in bytes."""

    block_size: int
    state_block_size: int
    padded_state_bytes: int | None = None
    skipped_page_bytes: int | None = None


@dataclass
class Resolution:
    """Backends and block sizes of one model under one set of options.

    Attributes:
        model: What the family says.
        options: The user's options.
        dtype: The model's activation dtype.
        num_heads: Attention heads over all TP ranks.
        max_model_len: Longest request in tokens.
        rope_dim: Rotary elements of a head, for formats that need it.
        checkpoint_cache_dtype: What a quantized checkpoint asks for, or "auto".
    """

    model: ModelLayers
    options: ModelOptions
    dtype: str
    num_heads: int
    max_model_len: int
    rope_dim: int | None = None
    checkpoint_cache_dtype: str = "auto"
    _chosen: dict[Layer, str] = field(default_factory=dict, init=False)

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.options.tensor_parallel_size

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA compute capability."""
        return self.options.device_capability

    @cached_property
    def cache_dtype(self) -> str:
        """``--kv-cache-dtype`` after the model's own default."""
        wanted = self.options.kv_cache_dtype
        if wanted != "auto":
            return wanted
        if self.checkpoint_cache_dtype != "auto":
            return self.checkpoint_cache_dtype
        return self.model.cache_dtype

    @property
    def prefix_caching(self) -> bool:
        """Whether prefixes are cached; models without attention or with an encoder default to not.

        Mirrors vllm/config/model.py::ModelConfig.is_prefix_caching_supported (0.33).
        """
        if self.options.enable_prefix_caching is not None:
            return self.options.enable_prefix_caching
        return not (self.model.is_attention_free or self.model.is_encoder_decoder)

    @property
    def mamba_cache_mode(self) -> str:
        """How recurrent states are cached: "align" where prefixes are cached, else "none"."""
        has_state = self.model.is_hybrid or self.model.is_attention_free
        return "align" if has_state and self.prefix_caching else "none"

    @cached_property
    def skipped_layers(self) -> frozenset[str]:
        """Layers kept unquantized: the user's, and the outermost two for packed 4-bit formats.

        Mirrors vllm/engine/arg_utils.py::EngineArgs.create_engine_config (0.33).
        """
        skipped = {str(entry) for entry in self.options.kv_cache_dtype_skip_layers}
        packed = self.cache_dtype.startswith("turboquant_") or self.cache_dtype == "ultraquant_4bit"
        if packed and not self.model.is_hybrid:
            count = self.model.num_hidden_layers
            edge = min(_BOUNDARY_LAYERS, count // 2)
            skipped |= {str(i) for i in (*range(edge), *range(count - edge, count))}
        return frozenset(skipped)

    def layer_cache_dtype(self, layer: Layer) -> str:
        """``--kv-cache-dtype`` of one layer, "auto" where it is skipped."""
        if isinstance(layer, AttentionLayer):
            if layer.sliding_window is not None and "sliding_window" in self.skipped_layers:
                return "auto"
            return self.named_cache_dtype(layer.name)
        is_latent = isinstance(layer, MLALayer) and layer.can_be_skipped
        return self.named_cache_dtype(layer.name) if is_latent else self.cache_dtype

    def named_cache_dtype(self, name: str) -> str:
        """The same by the number in a layer's name, which is what vLLM goes by.

        Mirrors vllm/model_executor/models/utils.py::extract_layer_index (0.33).

        Raises:
            ModelError: If layers are skipped and the name does not have one number.
        """
        if not self.skipped_layers:
            return self.cache_dtype
        numbers = [part for part in name.split(".") if part.isdecimal()]
        if len(numbers) != 1:
            raise ModelError(
                f"kv_cache_dtype_skip_layers needs layers with one number in their name, by which "
                f"vLLM tells them; this model has {name}"
            )
        return "auto" if numbers[0] in self.skipped_layers else self.cache_dtype

    def backend_of(self, layer: Layer) -> str:
        """Name of a layer's backend."""
        if layer not in self._chosen:
            name = self._choose(layer)
            check_triton_dtype(name, self.layer_cache_dtype(layer), self.capability)
            self._chosen[layer] = name
        return self._chosen[layer]

    def _choose(self, layer: Layer) -> str:
        if isinstance(layer, CustomLayer):
            return layer.backend
        if isinstance(layer, StateLayer):
            if layer.backend is not None:
                return layer.backend
            return {
                "mamba1": "MAMBA1_ATTN",
                "mamba2": "MAMBA2_ATTN",
                "short_conv": "SHORT_CONV_ATTN",
                "linear": "BAILING_LINEAR_ATTN",
                "gdn_attn": "GDN_ATTN",
            }[layer.mamba_type]
        assert isinstance(layer, (MLALayer, AttentionLayer))
        own: dict[str, Any]
        if isinstance(layer, MLALayer):
            own = {"uses_mla": True, "is_sparse": layer.is_sparse}
        elif layer.backend is not None:
            return layer.backend
        else:
            own = {
                "has_sinks": layer.has_sinks,
                "mm_prefix": self.model.mm_prefix,
                "asymmetric": layer.head_size_v not in (None, layer.head_size),
            }
        needs = BackendNeeds(
            head_size=layer.head_size,
            kv_cache_dtype=self.layer_cache_dtype(layer),
            num_heads=max(1, self.num_heads // self.tp),
            uses_dcp=self.options.decode_context_parallel_size > 1,
            dtype=self.dtype,
            **own,
        )
        sinks = layer.backend_with_sinks if isinstance(layer, MLALayer) else None
        if sinks is not None and can_run(sinks, needs, self.capability):
            return sinks
        return choose_backend(needs, self.capability, self.options.attention_backend)

    def kernel_sizes(self, backend: AttentionBackend, *, is_quantized: bool = False) -> tuple:
        """Kernel block sizes of a backend on this GPU."""
        return supported_kernel_block_sizes(
            backend.name,
            device_capability=self.capability,
            is_quantized=is_quantized,
            uses_trtllm_attention=self.uses_trtllm,
        )

    @cached_property
    def backends(self) -> list[AttentionBackend]:
        """Distinct backends in layer order."""
        names = dict.fromkeys(self.backend_of(layer) for layer in self.model.layers)
        return [ATTENTION_BACKENDS[name] for name in names]

    @cached_property
    def attention_backends(self) -> list[AttentionBackend]:
        """Distinct backends that are not recurrent."""
        return [backend for backend in self.backends if not backend.is_state]

    @cached_property
    def state_layers(self) -> list[StateLayer]:
        """Every recurrent layer."""
        return [layer for layer in self.model.layers if isinstance(layer, StateLayer)]

    @cached_property
    def checkpoint_alignment(self) -> int | None:
        """Tokens that every recurrent layer aligns its prefill checkpoints to, or None.

        Mirrors vllm/model_executor/layers/mamba/abstract.py::get_mamba_prefill_checkpoint_alignment
        (0.33).
        """
        alignments = []
        for layer in self.state_layers:
            if layer.checkpoint_alignment is None:
                return None
            alignments.append(layer.checkpoint_alignment)
        return math.lcm(*alignments) if alignments else None

    def _page_spec(self, cache_dtype: str) -> Any:
        """One token of one attention layer, as hybrid block sizes are computed with it."""
        common = {
            "block_size": 1,
            "head_size": self.model.page_head_size,
            "dtype": storage_dtype(cache_dtype, self.dtype),
            "kv_quant_mode": get_kv_quant_mode(cache_dtype),
        }
        if self.model.uses_mla:
            return specs.MLAAttentionSpec(num_kv_heads=1, cache_dtype_str=cache_dtype, **common)
        heads = max(1, self.model.page_kv_heads // self.tp)
        spec = specs.FullAttentionSpec(num_kv_heads=heads, **common)
        if not self.attention_backends or cache_dtype == "auto":
            return spec
        return customize_spec(
            self.attention_backends[0].name,
            spec,
            device_capability=self.capability,
            rope_dim=self.rope_dim,
        )

    @cached_property
    def blocks(self) -> Blocks:
        """Block sizes, and the pages that layers share."""
        options = self.options
        if not self.attention_backends:
            return Blocks(options.block_size or 16, options.block_size or 16)
        block_size = options.block_size
        if block_size is None:
            block_size = preferred_block_size(self.attention_backends, self.kernel_sizes)
        else:
            self._check_block_size(block_size)
        padded_state = None
        if self.model.is_hybrid and self.state_layers:
            token_bytes = self._page_spec(self.cache_dtype).page_size_bytes
            if self.skipped_layers and self.cache_dtype.startswith(("turboquant_", "ultraquant_")):
                token_bytes = math.lcm(token_bytes, self._page_spec("auto").page_size_bytes)
            state_bytes = max(_state_bytes(layer) for layer in self.state_layers)
            aligned = self.mamba_cache_mode == "align"
            block_size = hybrid_block_size(
                block_size,
                self.attention_backends,
                self.kernel_sizes,
                token_bytes=token_bytes,
                state_bytes=state_bytes,
                uses_mla=self.model.uses_mla,
                checkpoint_alignment=(self.checkpoint_alignment or 1) if aligned else 1,
            )
            if block_size * token_bytes != state_bytes:
                padded_state = block_size * token_bytes
        skip_page, state_block_size = None, block_size
        if self.skipped_layers:
            # vLLM counts a latent's token here as a key and a value, too.
            parts = 2 if self.model.uses_mla else 1
            block_size, skip_page = skip_layer_page(
                block_size,
                self.kernel_sizes(self.attention_backends[0]),
                primary=parts * self._page_spec(self.cache_dtype).page_size_bytes,
                skipped=parts * self._page_spec("auto").page_size_bytes,
                padded_state=padded_state or 0,
            )
            if padded_state is not None and skip_page is not None:
                padded_state = skip_page
        return Blocks(block_size, state_block_size, padded_state, skip_page)

    def _check_block_size(self, block_size: int) -> None:
        for backend in self.attention_backends:
            sizes = self.kernel_sizes(backend)
            if not supports_block_size(backend, block_size, sizes):
                raise ModelError(
                    f"block_size {block_size} is not supported by attention backend "
                    f"{backend.name}, whose kernels take {', '.join(map(_size_text, sizes))} tokens"
                )

    @property
    def block_size(self) -> int:
        """Tokens of a block of the primary attention layers."""
        return self.blocks.block_size

    @property
    def mamba_block_size(self) -> int:
        """Tokens between the states that recurrent layers keep.

        Mirrors vllm/model_executor/models/config.py::MambaModelConfig.verify_and_update_config
        (0.33).
        """
        wanted = self.options.mamba_block_size
        if self.mamba_cache_mode != "align":
            return wanted or self.max_model_len
        if wanted is not None and self.model.is_attention_free:
            return wanted
        return self.blocks.state_block_size

    @property
    def uses_trtllm(self) -> bool:
        """Whether TensorRT-LLM's kernels run the model's grouped-query attention."""
        heads, kv_heads = self.num_heads // self.tp, max(1, self.model.page_kv_heads // self.tp)
        return heads > kv_heads and heads % kv_heads == 0

    def declared_layouts(self) -> list[tuple[str, ...]]:
        """Layouts of every backend, for the choice of one."""
        return [supported_layouts(b.name, self.capability) for b in self.backends]


def _state_bytes(layer: StateLayer) -> int:
    return sum(
        math.prod(shape) * DTYPE_BYTES[dtype]
        for shape, dtype in zip(layer.shapes, layer.dtypes, strict=True)
    )


def _size_text(size: Any) -> str:
    return str(size) if isinstance(size, int) else f"any multiple of {size.base}"
