"""vLLM 0.32.0's CPU engine makes the same tokens with its own grouping and with kvplan's.

Each model runs in a process of its own (generate.py), under every grouping, with chunked prefill
and with prefix caching off and on.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvplan

pytest.importorskip("vllm")

HERE = Path(__file__).parent
PACKAGES = Path(kvplan.__file__).parents[1]  # of the kvplan under test

# Model, the most groups for kvplan, and the layers of its groups under vLLM and under kvplan.
CASES = [
    ("gemma3_style", 4, [2, 2, 2, 2, 1, 2], [3, 3, 3, 2]),
    ("odd_layer", 6, [1] * 11, [2, 2, 2, 2, 1, 2]),
    ("mamba_hybrid", 64, [3, 2, 2, 3], [1] * 10),
]


def generate(model, max_groups):
    path = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    # The plugin stays out, so that "vllm" is vLLM alone.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path), "KVPLAN_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "generate.py", model, "vllm", str(max_groups)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(("model", "max_groups", "vllm", "compact"), CASES)
def test_same_tokens(model, max_groups, vllm, compact):
    results = generate(model, max_groups)
    for name, run in results.items():
        grouping, caching = name.split()
        expected = vllm if grouping == "vllm" else compact
        assert sorted(run["groups"]) == sorted(expected), name
        # Like with like: resuming from a cached state moves vLLM's own tokens, for any grouping.
        assert run["tokens"] == results[f"vllm {caching}"]["tokens"], name
        first, second = run["cached_tokens"]
        if caching == "True":
            assert second > first, f"{name}: the second batch should hit the prefix cache"
        else:
            assert (first, second) == (0, 0), name
    reference = results["vllm False"]
    # Had the context no say, this would hold for any grouping.
    prompts_with_one_tail = reference["tokens"][0]
    assert len({tuple(t) for t in prompts_with_one_tail}) == len(prompts_with_one_tail)
