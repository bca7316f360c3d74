"""The KV caches of published models, as (layer name, spec) lists that vLLM's own models register.

kvplan reads them off the models' configs; tests/python/test_models.py compares that with vLLM.
"""

import functools
from typing import Any

import reported_cases
from built_in_kinds import KINDS

from kvplan.offline import models

Layers = list[tuple[str, dict[str, Any]]]

_MTP = {"method": "mtp", "num_speculative_tokens": 1}
_DSPARK = {"method": "dspark", "num_speculative_tokens": 3}

#: Name -> built-in model and options.
REAL_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in (*KINDS, "whisper-large-v3")},
    "gemma-4-26b-a4b, fp8 a head": ("gemma-4-26b-a4b", {"kv_cache_dtype": "fp8_per_token_head"}),
    "deepseek-v3, drafter": ("deepseek-v3", {"speculative_config": _MTP}),
    "deepseek-v4.1-flash, drafter": (
        "deepseek-v4.1-flash",
        {"speculative_config": _DSPARK},
    ),
    "as reported": ("", {}),
}


@functools.cache
def real_layers(name: str, tp: int = 1, block_size: int = 16) -> Layers:
    """The layers of one rank; of at most so many as divide the model's heads.

    block_size: in tokens, where the model's attention backend takes it.
    """
    model, options = REAL_MODELS[name]
    if not model:
        reported = reported_cases.deepseek_v4_1_flash()
        return [(layer, reported["specs"][i]) for layer, i in reported["workers"][0]["layers"]]
    for ranks in range(tp, 0, -1):
        for asked in ({"block_size": block_size}, {}):
            try:
                given = models.ModelOptions(tensor_parallel_size=ranks, **options, **asked)
                found = models.kv_cache_specs(model, given)
            except models.ModelError:
                continue
            made: dict[int, dict[str, Any]] = {}
            return [
                (layer, made.setdefault(id(spec), spec.to_dict()))
                for layer, spec in found.kv_cache_specs[0].items()
            ]
    raise AssertionError(name)
