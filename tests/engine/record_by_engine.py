"""Record the KV cache specs that a running CPU engine of vLLM 0.32.0 registers for tiny models.

Run in the engine's environment: ``python record_by_engine.py [NAME...]``. Each model is a
``config.json`` with random weights; what is recorded is its config and, per layer, the facts that
do not depend on the CPU's own attention backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tiny_engine
from recordings import BY_ENGINE, recordings, write

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_FOURTH_FULL = (["sliding_attention"] * 3 + ["full_attention"]) * 2

MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "sliding_window": 128},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen3ForCausalLM": {"model_type": "qwen3"},
    "Qwen3MoeForCausalLM": {"model_type": "qwen3_moe", **_MOE},
    "Phi3ForCausalLM": {"model_type": "phi3", "pad_token_id": 0, "sliding_window": None},
    "Gemma2ForCausalLM": {
        "model_type": "gemma2",
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
    },
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "sliding_window": 128,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
    },
    "Olmo3ForCausalLM": {
        "model_type": "olmo3",
        "sliding_window": 128,
        "layer_types": _FOURTH_FULL,
    },
    "Cohere2ForCausalLM": {
        "model_type": "cohere2",
        "sliding_window": 128,
        "layer_types": _FOURTH_FULL,
    },
    "GPT2LMHeadModel": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_head": 2,
        "n_layer": 4,
        "n_positions": 1024,
    },
    "DeepseekV2ForCausalLM": {
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "first_k_dense_replace": 8,
    },
    "JambaForCausalLM": {
        "model_type": "jamba",
        "num_experts": 1,
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
}

#: Fields that vLLM takes from the model, whatever the backend.
FACTS = ("num_kv_heads", "head_size", "sliding_window", "shapes")


def config_of(name: str) -> dict[str, Any]:
    """The whole config of a tiny model."""
    return {"architectures": [name], **TINY, **MODELS[name]}


def record(name: str) -> dict[str, Any]:
    """Start an engine on a tiny model and note what it registers."""
    import vllm.v1.engine.core as core
    from vllm import __version__

    seen: list[dict[str, Any]] = []
    original = core.get_kv_cache_configs

    def wrapped(vllm_config: Any, kv_cache_specs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.extend(kv_cache_specs)
        return original(vllm_config, kv_cache_specs, *args, **kwargs)

    core.get_kv_cache_configs = wrapped
    config = config_of(name)
    with tempfile.TemporaryDirectory() as directory:
        tiny_engine.make_engine(directory, config, max_model_len=1024)
    layers = {
        layer: {
            "kind": type(spec).__name__,
            **{
                fact: getattr(spec, fact) for fact in FACTS if getattr(spec, fact, None) is not None
            },
        }
        for layer, spec in seen[0].items()
    }
    return {"vllm": __version__, "config": config, "layers": layers}


def main() -> None:
    """Record every model, or those that are named, each in a process of its own."""
    if len(sys.argv) == 4 and sys.argv[1] == "--one":
        Path(sys.argv[3]).write_text(json.dumps(record(sys.argv[2])))
        os._exit(0)
    found = dict(recordings(BY_ENGINE))
    for name in sys.argv[1:] or MODELS:
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [sys.executable, __file__, "--one", name, out.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found[name] = json.loads(Path(out.name).read_text())
        last = (done.stderr.strip().splitlines() or [""])[-1]
        print(name, "ok" if done.returncode == 0 else f"failed: {last}", flush=True)
    write(BY_ENGINE, found)


if __name__ == "__main__":
    main()
