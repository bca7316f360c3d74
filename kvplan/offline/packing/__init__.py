"""What attention backends publish about a layer's KV cache: packing, kernel blocks, layouts."""

from kvplan.offline.packing.backends import (
    ATTENTION_BACKENDS,
    AttentionBackend,
    BackendNeeds,
    default_block_size,
    get_backend,
    smallest_kernel_block_size,
    supported_kernel_block_sizes,
    supported_layouts,
    supports_block_size,
)
from kvplan.offline.packing.customize import customize_attention_spec, customize_spec
from kvplan.offline.packing.formats import (
    DEEPSEEK_V4_PAGE_ALIGNMENT,
    DEEPSEEK_V4_RECORD_BYTES,
    DS_MLA_RECORD_BYTES,
    mla_per_token_head_bytes,
    nvfp4_slot_bytes,
    octave_slot_bytes,
    per_token_head_bytes,
    turboquant_slot_bytes,
    ultraquant_slot_bytes,
)
from kvplan.offline.packing.quant_mode import (
    CACHE_DTYPE_STORAGE,
    DTYPE_BYTES,
    KV_CACHE_DTYPES,
    get_kv_quant_mode,
    is_quantized,
    storage_dtype,
)

__all__ = [
    "ATTENTION_BACKENDS",
    "CACHE_DTYPE_STORAGE",
    "DEEPSEEK_V4_PAGE_ALIGNMENT",
    "DEEPSEEK_V4_RECORD_BYTES",
    "DS_MLA_RECORD_BYTES",
    "DTYPE_BYTES",
    "KV_CACHE_DTYPES",
    "AttentionBackend",
    "BackendNeeds",
    "customize_attention_spec",
    "customize_spec",
    "default_block_size",
    "get_backend",
    "get_kv_quant_mode",
    "is_quantized",
    "mla_per_token_head_bytes",
    "nvfp4_slot_bytes",
    "octave_slot_bytes",
    "per_token_head_bytes",
    "smallest_kernel_block_size",
    "storage_dtype",
    "supported_kernel_block_sizes",
    "supported_layouts",
    "supports_block_size",
    "turboquant_slot_bytes",
    "ultraquant_slot_bytes",
]
