"""Tiny models that vLLM's CPU engine runs from nothing but a config.json, with random weights."""

from typing import Any

COMMON = {
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def gemma3(num_layers: int, full_layers: tuple[int, ...]) -> dict[str, Any]:
    """Sliding windows of 128 tokens but for `full_layers`."""
    kinds = [
        "full_attention" if i in full_layers else "sliding_attention" for i in range(num_layers)
    ]
    return COMMON | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": num_layers,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 128,
        "layer_types": kinds,
        "query_pre_attn_scalar": 32,
        "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
    }


def lfm2(num_layers: int, full_layers: tuple[int, ...]) -> dict[str, Any]:
    """Short convolutions, whose states are Mamba states to the planner, but for `full_layers`."""
    kinds = ["full_attention" if i in full_layers else "conv" for i in range(num_layers)]
    return COMMON | {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "layer_types": kinds,
        "conv_L_cache": 3,
        "conv_bias": False,
        "norm_eps": 1e-5,
        "block_dim": 64,
        "conv_dim": 64,
        "conv_dim_out": 64,
        "block_ff_dim": 128,
        "block_auto_adjust_ff_dim": False,
        "rope_theta": 10000.0,
    }


MODELS = {
    # Two full layers and nine windows: vLLM's groups are two layers wide, one of them half empty.
    "gemma3_style": gemma3(11, (5, 10)),
    # The same with one full layer of another shape: vLLM makes eleven groups of one layer.
    "odd_layer": gemma3(11, (5, 10)),
    "mamba_hybrid": lfm2(10, (2, 5, 9)),
}

#: Layer of `odd_layer` with half as many heads, twice as large: its page has as many bytes.
ODD_LAYER = 10
