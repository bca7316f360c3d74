"""Small value types that specs carry: quantization mode, cache role, stride alignment.

Mirrors vllm/v1/kv_cache_interface.py and vllm/v1/attention/backend.py (0.33).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple


class KVQuantMode(IntEnum):
    """How a KV cache is quantized. Mirrors ``KVQuantMode`` (0.33)."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4
    NVFP4 = 5
    TURBOQUANT_K8V4 = 6
    TURBOQUANT_4BIT_NC = 7
    TURBOQUANT_K3V4_NC = 8
    TURBOQUANT_3BIT_NC = 9
    NVFP4_DS_MLA = 10
    ULTRAQUANT_4BIT = 11
    OCTAVE_K3V4 = 12
    OCTAVE_K3V3 = 13
    OCTAVE_K3V3_COMPACT = 14
    CUSTOM = 12  # vLLM gives this value out twice; by value it reads as OCTAVE_K3V4

    @property
    def is_per_token_head(self) -> bool:
        """Each token and head has its own scale."""
        return self in (
            KVQuantMode.INT8_PER_TOKEN_HEAD,
            KVQuantMode.FP8_PER_TOKEN_HEAD,
            KVQuantMode.INT4_PER_TOKEN_HEAD,
        )

    @property
    def is_nvfp4(self) -> bool:
        """Packed fp4 data with fp8 block scales."""
        return self is KVQuantMode.NVFP4

    @property
    def is_turboquant(self) -> bool:
        """Any TurboQuant preset."""
        return KVQuantMode.TURBOQUANT_K8V4 <= self <= KVQuantMode.TURBOQUANT_3BIT_NC

    @property
    def is_octave(self) -> bool:
        """Any Octave preset."""
        return KVQuantMode.OCTAVE_K3V4 <= self <= KVQuantMode.OCTAVE_K3V3_COMPACT

    @property
    def is_ultraquant(self) -> bool:
        """The UltraQuant 4-bit format."""
        return self is KVQuantMode.ULTRAQUANT_4BIT

    @property
    def is_custom_mode(self) -> bool:
        """The backend chooses its kernels itself."""
        return self == KVQuantMode.CUSTOM


class SparseCacheRole(str, Enum):
    """What a sparse MLA cache holds. Mirrors ``SparseCacheRole`` (0.33)."""

    SPARSE = "sparse"
    INDEXER = "indexer"


class KVCacheSpecKind(str, Enum):
    """Mirrors ``KVCacheSpecKind`` (0.33)."""

    FULL_ATTENTION = "full_attention"
    MLA_ATTENTION = "mla_attention"
    SLIDING_WINDOW = "sliding_window"
    SLIDING_WINDOW_MLA = "sliding_window_mla"
    MAMBA = "mamba"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    SINK_FULL_ATTENTION = "sink_full_attention"
    ENCODER_ONLY_ATTENTION = "encoder_only_attention"
    CROSS_ATTENTION = "cross_attention"
    UNKNOWN = "unknown"


class KVCacheGroupRole(str, Enum):
    """Mirrors ``KVCacheGroupRole`` (0.33)."""

    DEFAULT = "default"
    HISPARSE_SOURCE = "hisparse_source"
    HISPARSE_INDEXER = "hisparse_indexer"


class MultipleOf(NamedTuple):
    """A block stride of whole kernel blocks of up to ``base`` tokens.

    Mirrors vllm/v1/attention/backend.py::MultipleOf (0.33).
    """

    base: int


class CustomDemand(NamedTuple):
    """Pages that one request holds, for a spec that enters as numbers.

    ``cdiv(min(cap, L), block_size) + extra_pages`` at a length of ``L`` tokens, where ``cap`` is
    ``cap_tokens`` (``None``: no cap), plus the in-flight tokens with ``cap_includes_in_flight``.
    """

    cap_tokens: int | None = None
    cap_includes_in_flight: bool = False
    extra_pages: int = 0
