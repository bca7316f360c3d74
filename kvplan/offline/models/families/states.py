"""Shapes and dtypes of recurrent states on one TP rank.

Mirrors vllm/model_executor/layers/mamba/mamba_utils.py::MambaStateShapeCalculator and
MambaStateDtypeCalculator (0.33); convolution states in vLLM's default (state length, channels)
order.
"""

from __future__ import annotations

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.families.context import FamilyContext
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.parallel import divide
from kvplan.offline.packing import storage_dtype

Shapes = tuple[tuple[int, ...], ...]


def mamba1_shapes(tp: int, intermediate: int, state: int, conv_kernel: int) -> Shapes:
    """Convolution and selective-scan state of Mamba 1."""
    channels = divide(intermediate, tp, "Mamba's inner size")
    return (conv_kernel - 1, channels), (channels, state)


def mamba2_shapes(
    tp: int,
    intermediate: int,
    num_groups: int,
    num_heads: int,
    head_dim: int,
    state: int,
    conv_kernel: int,
    num_speculative: int = 0,
) -> Shapes:
    """Convolution and selective-scan state of Mamba 2; groups are replicated to fill the ranks."""
    if num_groups % tp:
        if num_groups != 1:
            raise ModelError(
                f"Mamba 2's groups ({num_groups}) must be divisible by tensor_parallel_size "
                f"({tp}), or be one"
            )
        num_groups = tp
    channels = divide(intermediate + 2 * num_groups * state, tp, "Mamba 2's convolution size")
    heads = divide(num_heads, tp, "Mamba 2's heads")
    return (conv_kernel - 1 + num_speculative, channels), (heads, head_dim, state)


def gated_delta_shapes(tp: int, text: ConfigView, num_speculative: int = 0) -> Shapes:
    """Convolution and recurrent state of the gated delta networks that a text config describes."""
    num_key_heads = text.size("linear_num_key_heads")
    num_value_heads = text.size("linear_num_value_heads")
    key_head_dim = text.size("linear_key_head_dim")
    value_head_dim = text.size("linear_value_head_dim")
    conv_kernel = text.size("linear_conv_kernel_dim")
    channels = 2 * key_head_dim * num_key_heads + value_head_dim * num_value_heads
    channels = divide(channels, tp, "the linear attention's convolution size")
    heads = divide(num_value_heads, tp, "linear_num_value_heads")
    return (conv_kernel - 1 + num_speculative, channels), (heads, value_head_dim, key_head_dim)


def kda_shapes(
    tp: int, num_heads: int, head_dim: int, conv_kernel: int, num_speculative: int = 0
) -> Shapes:
    """Convolution and recurrent state of Kimi delta attention."""
    channels = divide(3 * num_heads * head_dim, tp, "KDA's convolution size")
    heads = divide(num_heads, tp, "KDA's heads")
    return (conv_kernel - 1 + num_speculative, channels), (heads, head_dim, head_dim)


def flashkda_alignment(context: FamilyContext, linear: ConfigView) -> int | None:
    """Tokens that FlashKDA's prefill aligns its checkpoints to, or None where it does not run.

    Mirrors vllm/models/kimi_k3/nvidia/kda.py::is_flashkda_supported (0.33), whose recurrent states
    are float32.
    """
    runs = (
        context.options.device_capability[0] in (9, 10, 12)
        and linear.get("head_dim") == 128
        and context.dtype == "bfloat16"
        and linear.get("gate_lower_bound") is not None
    )
    return 16 if runs else None


def linear_attention_shapes(tp: int, num_heads: int, head_dim: int) -> Shapes:
    """State of lightning attention."""
    return ((divide(num_heads, tp, "the linear attention's heads"), head_dim, head_dim),)


def short_conv_shapes(tp: int, channels: int, conv_kernel: int, num_speculative: int = 0) -> Shapes:
    """State of a short convolution."""
    return ((conv_kernel - 1 + num_speculative, divide(channels, tp, "conv_dim")),)


def state_dtypes(
    options: ModelOptions, dtype: str, *, ssm_dtype: str | None = None
) -> tuple[str, str]:
    """Dtypes of the convolution and of the recurrent state.

    Args:
        options: The user's options; "auto" follows the model.
        dtype: The model's activation dtype.
        ssm_dtype: What the model asks for its recurrent state, or None for the convolution's.
    """
    conv = dtype if options.mamba_cache_dtype == "auto" else _dtype(options.mamba_cache_dtype)
    wanted = options.mamba_ssm_cache_dtype
    if wanted != "auto":
        return conv, _dtype(wanted)
    return conv, _dtype(ssm_dtype) if ssm_dtype else conv


def _dtype(name: str) -> str:
    if name not in ("float32", "float16", "bfloat16", "float", "half"):
        raise ModelError(
            f"unknown Mamba cache dtype {name!r}; known: auto, float32, float16, bfloat16"
        )
    return storage_dtype(name, name)
