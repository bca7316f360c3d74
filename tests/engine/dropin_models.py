"""Configurations of tiny models, one for each kind of KV cache that the CPU backend can run."""

from typing import Any

import tiny_models

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def _model(architecture: str, model_type: str, layers: int, **fields: Any) -> dict[str, Any]:
    return _COMMON | {
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": layers,
        **fields,
    }


MODELS: dict[str, dict[str, Any]] = {
    "dense": _model("LlamaForCausalLM", "llama", 4, hidden_act="silu"),
    "gemma3": tiny_models.MODELS["gemma3_style"],
    "gemma2": _model(
        "Gemma2ForCausalLM",
        "gemma2",
        7,
        sliding_window=64,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=32,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        layer_types=[SLIDING, FULL] * 3 + [SLIDING],
    ),
    "llama4": _model(
        "Llama4ForCausalLM",
        "llama4_text",
        8,
        hidden_act="silu",
        intermediate_size_mlp=128,
        num_local_experts=2,
        num_experts_per_tok=1,
        interleave_moe_layer_step=0,
        moe_layers=[],
        no_rope_layers=[1, 1, 1, 0] * 2,
        attention_chunk_size=128,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        layer_types=([CHUNKED] * 3 + [FULL]) * 2,
    ),
    "lfm2": tiny_models.MODELS["mamba_hybrid"],
    "mamba2": _model(
        "Mamba2ForCausalLM",
        "mamba2",
        4,
        hidden_act="silu",
        num_heads=4,
        head_dim=32,
        state_size=16,
        n_groups=1,
        conv_kernel=4,
        expand=2,
        chunk_size=64,
        use_conv_bias=True,
        use_bias=False,
        layer_norm_epsilon=1e-5,
        residual_in_fp32=True,
    ),
    "bert": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 1024,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    },
}
