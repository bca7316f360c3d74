"""Tensor parallel sizes that the width of a model's MLPs allows."""

from __future__ import annotations

from math import gcd

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError

#: The width of an MLP, by the names that configs have for it.
_KEYS = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "decoder_ffn_dim")

#: Architectures whose MLPs have another width than these keys say, so that vLLM starts with sizes
#: that do not divide them; and those of which this is not known, since vLLM 0.33 could not build
#: them for want of their vision tower's config.
_OTHER_WIDTH = frozenset(
    {
        "DeciLMForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "IsaacForConditionalGeneration",
        "Lfm2ForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "MolmoForCausalLM",
        "Ovis2_5",
        "Ovis2_6ForCausalLM",
        "TeleChat2ForCausalLM",
        "DotsOCRForCausalLM",
        "Eagle2_5_VLForConditionalGeneration",
        "FalconForCausalLM",
        "Gemma4ForConditionalGeneration",
        "H2OVLChatModel",
        "InternS1ForConditionalGeneration",
        "InternVLChatModel",
        "KeyeForConditionalGeneration",
        "Llama_Nemotron_Nano_VL",
        "NVLM_D",
        "OpenCUAForConditionalGeneration",
        "Phi4MMForCausalLM",
        "SkyworkR1VChatModel",
        "VoxtralForConditionalGeneration",
    }
)


def check_mlp_width(
    architecture: str, text: ConfigView, num_heads: int, tensor_parallel_size: int
) -> None:
    """Refuse a TP size that does not divide the width of the MLPs, as vLLM does.

    Models with experts are left to vLLM: expert parallelism does not divide the experts' width,
    and whether a layer has an MLP without experts depends on the model.
    Mirrors vllm/model_executor/layers/linear.py::MergedColumnParallelLinear.__init__ and
    RowParallelLinear.__init__ (0.33).

    Raises:
        ModelError: If it does not divide it.
    """
    if architecture in _OTHER_WIDTH or _has_experts(text):
        return
    for key in _KEYS:
        width = text.values.get(key)
        if not isinstance(width, int) or width % tensor_parallel_size == 0:
            continue
        largest = gcd(width, num_heads)
        sizes = [n for n in range(1, min(largest, 4096) + 1) if largest % n == 0]
        raise ModelError(
            f"the model's MLPs are {width:,} wide ({key}), which must be divisible by "
            f"tensor_parallel_size {tensor_parallel_size}; sizes that divide it and the "
            f"{num_heads} attention heads: {', '.join(map(str, sizes))}"
        )


def _has_experts(text: ConfigView) -> bool:
    return any("expert" in key and value for key, value in text.values.items())
