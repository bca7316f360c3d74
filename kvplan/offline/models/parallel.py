"""Which layers and heads a rank holds, and the parallel sizes that a model allows."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from kvplan.offline.models.config_view import ConfigView
from kvplan.offline.models.errors import ModelError


def pipeline_stages(
    num_layers: int, num_stages: int, partition: Sequence[int] | None = None
) -> list[range]:
    """The decoder layers of every pipeline stage.

    Layers that are left over go to the stages before the last, from the back.
    Mirrors vllm/distributed/utils.py::get_pp_indices (0.33).

    Raises:
        ModelError: If an explicit partition does not fit, or there are more stages than layers.
    """
    if partition is not None:
        counts = list(partition)
        if len(counts) != num_stages:
            raise ModelError(
                f"the layer partition has {len(counts)} entries, but pipeline_parallel_size is "
                f"{num_stages}"
            )
        if sum(counts) != num_layers or any(count < 0 for count in counts):
            raise ModelError(
                f"the layer partition {counts} sums to {sum(counts)}, but the model has "
                f"{num_layers} layers"
            )
    elif num_stages > num_layers:
        raise ModelError(
            f"pipeline_parallel_size {num_stages} is more than the model's {num_layers} layers: "
            "every stage must own one"
        )
    else:
        counts = [num_layers // num_stages] * num_stages
        for back in range(2, num_layers % num_stages + 2):
            counts[-back] += 1
    stages, start = [], 0
    for count in counts:
        stages.append(range(start, start + count))
        start += count
    return stages


def local_kv_heads(total: int, tensor_parallel_size: int) -> int:
    """KV heads of one TP rank: split while there are enough, replicated beyond that.

    Raises:
        ModelError: If heads and ranks do not divide, which vLLM refuses.
    """
    larger, smaller = max(total, tensor_parallel_size), min(total, tensor_parallel_size)
    if larger % smaller:
        raise ModelError(
            f"{total} KV heads cannot be spread over tensor_parallel_size "
            f"{tensor_parallel_size}: one must divide the other"
        )
    return max(1, total // tensor_parallel_size)


def check_attention_heads(num_heads: int, tensor_parallel_size: int) -> None:
    """Refuse a TP size that does not divide the attention heads, as vLLM does.

    Mirrors vllm/config/model.py::ModelConfig.verify_with_parallel_config (0.33).

    Raises:
        ModelError: If it does not divide them.
    """
    if num_heads % tensor_parallel_size:
        divisors = [n for n in range(1, min(num_heads, 4096) + 1) if num_heads % n == 0]
        raise ModelError(
            f"the model's {num_heads} attention heads must be divisible by tensor_parallel_size "
            f"{tensor_parallel_size}; sizes that work: {', '.join(map(str, divisors))}"
        )


#: vLLM pads vocabularies to a multiple of this before ranks divide them.
_VOCAB_PADDING = 64


def check_vocabulary(vocab_size: int, tensor_parallel_size: int) -> None:
    """Refuse a TP size that does not divide the padded vocabulary, as vLLM does.

    Mirrors vllm/model_executor/layers/vocab_parallel_embedding.py::VocabParallelEmbedding (0.33).

    Raises:
        ModelError: If it does not divide it.
    """
    padded = -(-vocab_size // _VOCAB_PADDING) * _VOCAB_PADDING
    if padded % tensor_parallel_size:
        raise ModelError(
            f"the model's vocabulary, padded to {padded:,} entries, must be divisible by "
            f"tensor_parallel_size {tensor_parallel_size}"
        )


def check_query_groups(name: str, num_heads: int, num_kv_heads: int) -> None:
    """Refuse KV heads that do not divide a rank's attention heads, as vLLM does.

    Mirrors vllm/model_executor/layers/attention/attention.py::Attention.__init__ (0.33).

    Raises:
        ModelError: If they do not.
    """
    if num_heads % num_kv_heads:
        raise ModelError(
            f"{name}: num_attention_heads must be divisible by the KV heads (num_key_value_heads); "
            f"a rank has {num_heads} and {num_kv_heads}"
        )


def check_grouped_context_parallel(
    num_heads: int, num_kv_heads: int, tensor_parallel_size: int, decode_context_parallel_size: int
) -> None:
    """Refuse decode context parallelism that replicated KV heads cannot carry, as vLLM does.

    Mirrors vllm/config/model.py::ModelConfig.verify_with_parallel_config (0.33).

    Raises:
        ModelError: If there are too few replicas of each KV head, or the queries do not divide.
    """
    replicas, dcp = tensor_parallel_size // num_kv_heads, decode_context_parallel_size
    if tensor_parallel_size <= num_kv_heads or dcp > replicas:
        raise ModelError(
            f"decode_context_parallel_size {dcp} needs tensor_parallel_size {num_kv_heads * dcp} "
            f"or more: the model has {num_kv_heads} KV heads, and only ranks that hold the same "
            f"one can share a sequence"
        )
    queries = num_heads // num_kv_heads
    if queries % dcp:
        raise ModelError(
            f"the {queries} query heads of each KV head must be divisible by "
            f"decode_context_parallel_size {dcp}"
        )


def divide(value: int, parts: int, what: str) -> int:
    """Exact division over TP ranks.

    Raises:
        ModelError: If it does not divide.
    """
    if value % parts:
        raise ModelError(f"{what} ({value}) must be divisible by tensor_parallel_size ({parts})")
    return value // parts


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
