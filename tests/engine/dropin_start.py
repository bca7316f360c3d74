"""Starts vLLM's engine on a tiny model and prints what it planned and generated, as JSON.

Run as a process of its own: `dropin_start.py MODEL OPTIONS_JSON`.
"""

import functools
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import dropin_models
from tiny_engine import enlarge_weights, greedy, make_engine

PROMPTS = 64


def prompts():
    rng = random.Random(0)
    return [[rng.randrange(3, 1000) for _ in range(rng.randint(1, 120))] for _ in range(PROMPTS)]


def write_tokenizer(directory):
    """Embedding needs a tokenizer even for prompts of token ids."""
    from tokenizers import Tokenizer, models

    words = {f"t{i}": i for i in range(1024)}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "pad_token": "t0"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def drop_biases(loader):
    """What comes with every token alike would drown the context."""
    load = loader.load_weights

    @functools.wraps(load)
    def load_weights(self, model, model_config):
        load(self, model, model_config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.zero_()

    loader.load_weights = load_weights


def main():
    name, options = sys.argv[1], json.loads(sys.argv[2])
    directory = Path(tempfile.mkdtemp(prefix="kvplan-tiny-"))

    from vllm.model_executor.model_loader import dummy_loader
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine import core

    enlarge_weights()
    drop_biases(dummy_loader.DummyModelLoader)

    load_general_plugins()
    plans = []
    planning_step = core.get_kv_cache_configs

    def recorded(*args):
        configs = planning_step(*args)
        plans.append([repr(config) for config in configs])
        return configs

    core.get_kv_cache_configs = recorded
    pooling = name == "bert"
    if pooling:
        write_tokenizer(directory)
    arguments = {
        "skip_tokenizer_init": not pooling,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        **({"runner": "pooling"} if pooling else {"max_model_len": 1024}),
        **options,
    }
    result = {}
    try:
        llm = make_engine(directory, dropin_models.MODELS[name], **arguments)
        inputs = [{"prompt_token_ids": p} for p in prompts()]
        if pooling:
            result["tokens"] = [list(o.outputs.embedding) for o in llm.embed(inputs)]
        else:
            result["tokens"] = [
                list(o.outputs[0].token_ids) for o in llm.generate(inputs, greedy(8))
            ]
        config = llm.llm_engine.vllm_config
        result["max_model_len"] = config.model_config.max_model_len
        result["num_gpu_blocks"] = config.cache_config.num_gpu_blocks
        # An engine in a process of its own would hold on to the output, and the test to it.
        llm.llm_engine.engine_core.shutdown()
    except Exception as error:
        result["error"] = [type(error).__name__, str(error)]
    result["plans"] = plans
    result["stats"] = None
    if "kvplan.vllm.report" in sys.modules:
        result["stats"] = sys.modules["kvplan.vllm.report"].stats()
    print("RESULT " + json.dumps(result), flush=True)
    os._exit(0)  # an engine that failed half-way may not come down by itself


if __name__ == "__main__":
    main()
