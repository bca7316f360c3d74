"""vLLM 0.32.0's CPU engine makes the same tokens with its own grouping and with kvplan's.

Each model runs in a process of its own (generate.py), under every grouping, with chunked prefill
and with prefix caching off and on.
"""

import pytest
from engine_process import run

pytest.importorskip("vllm")

# Model, the most groups for kvplan, and the layers of its groups under vLLM and under kvplan.
CASES = [
    ("gemma3_style", 4, [2, 2, 2, 2, 1, 2], [3, 3, 3, 2]),
    ("odd_layer", 6, [1] * 11, [2, 2, 2, 2, 1, 2]),
    ("mamba_hybrid", 64, [3, 2, 2, 3], [1] * 10),
]


@pytest.mark.parametrize(("model", "max_groups", "vllm", "compact"), CASES)
def test_same_tokens(model, max_groups, vllm, compact):
    results, _ = run("generate.py", model, "vllm", str(max_groups))
    for name, made in results.items():
        grouping, caching = name.split()
        expected = vllm if grouping == "vllm" else compact
        assert sorted(made["groups"]) == sorted(expected), name
        # Like with like: resuming from a cached state moves vLLM's own tokens, for any grouping.
        assert made["tokens"] == results[f"vllm {caching}"]["tokens"], name
        first, second = made["cached_tokens"]
        if caching == "True":
            assert second > first, f"{name}: the second batch should hit the prefix cache"
        else:
            assert (first, second) == (0, 0), name
    reference = results["vllm False"]
    # Had the context no say, this would hold for any grouping.
    prompts_with_one_tail = reference["tokens"][0]
    assert len({tuple(t) for t in prompts_with_one_tail}) == len(prompts_with_one_tail)
