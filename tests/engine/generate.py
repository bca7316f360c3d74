"""Generates with a tiny model under several groupings, in one process: generate.py MODEL GROUPS...

GROUPS is "vllm" or the most groups that compact grouping may make. Prints one JSON line: for every
grouping and prefix caching off and on, the groups' layers and the greedy tokens.
"""

import json
import sys
import tempfile
from typing import Any

from tiny_engine import enlarge_weights, greedy, make_engine, scheduler_of  # isort: skip

from compact_groups import use_compact, use_vllm
from tiny_models import MODELS, ODD_LAYER
from vllm.model_executor.models import gemma3


def make_odd() -> None:
    """One attention layer of another shape, which no config.json of this family can ask for."""
    build = gemma3.Gemma3Attention.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if f".{ODD_LAYER}." in kwargs["prefix"]:
            for count in ("num_heads", "num_kv_heads"):
                kwargs[count] //= 2
            kwargs["head_dim"] *= 2
        build(self, *args, **kwargs)

    gemma3.Gemma3Attention.__init__ = init


def prompts() -> list[list[int]]:
    """Prompts longer than the window, two of them with a long beginning in common."""
    shared = [(7 * i) % 1000 + 3 for i in range(300)]
    return [
        shared + [11, 12, 13],
        shared + [400 + i % 50 for i in range(90)],
        [(13 * i) % 900 + 5 for i in range(170)],
        [9, 8, 7],
    ]


def run(model_dir: str, name: str, prefix_caching: bool) -> dict[str, Any]:
    llm = make_engine(
        model_dir,
        MODELS[name],
        max_model_len=1024,
        max_num_batched_tokens=128,  # chunked prefill
        max_num_seqs=4,
        enable_prefix_caching=prefix_caching,
    )
    batch = [{"prompt_token_ids": p} for p in prompts()]
    tokens = []
    cached = []
    for _ in range(2):  # the second time from the prefix cache
        outputs = llm.generate(batch, greedy(24), use_tqdm=False)
        tokens.append([list(o.outputs[0].token_ids) for o in outputs])
        cached.append(sum(o.num_cached_tokens or 0 for o in outputs))
    groups = scheduler_of(llm).kv_cache_config.kv_cache_groups
    result = {
        "groups": [len(g.layer_names) for g in groups],
        "block_sizes": [g.kv_cache_spec.block_size for g in groups],
        "cached_tokens": cached,
        "tokens": tokens,
    }
    llm.llm_engine.engine_core.shutdown()
    return result


def main() -> None:
    name, *groupings = sys.argv[1:]
    enlarge_weights()
    if name == "odd_layer":
        make_odd()
    results = {}
    with tempfile.TemporaryDirectory() as model_dir:
        for grouping in groupings:
            if grouping == "vllm":
                use_vllm()
            else:
                use_compact(int(grouping))
            for prefix_caching in (False, True):
                results[f"{grouping} {prefix_caching}"] = run(model_dir, name, prefix_caching)
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main()
