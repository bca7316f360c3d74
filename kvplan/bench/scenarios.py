"""What is planned: the caches of real models, over one worker up to a thousand."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kvplan
from kvplan import request, specs
from kvplan.offline import models

GIB = 1 << 30
#: Of a worker: one request of the full length fits in each scenario.
MEMORY = 60 * GIB

WORKERS = (1, 8, 64, 512, 1024)
REAL_MODELS = (
    "llama-3.1-70b",
    "gemma-3-27b",
    "gpt-oss-120b",
    "jamba-1.5-large",
    "qwen3-next-80b",
    "deepseek-v3.2",
    "deepseek-v4-flash",
)

Layers = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """A model as one GPU would hold it; with more workers, ranks of pipeline stages.

    Attributes:
        name: For tables and for choosing.
        layers: Cache name to spec, over all stages.
        config: Keywords of `kvplan.PlanningConfig`.
        stages: Pipeline stages, as far as there are workers for them.
        memory: Bytes of the first worker.
    """

    name: str
    layers: Layers
    config: dict[str, Any]
    stages: int = 1
    memory: int = MEMORY

    def inputs(self, num_workers: int) -> tuple[kvplan.PlanningConfig, list[Layers], list[int]]:
        """What `kvplan.plan` takes; each worker has a little less memory than the one before.

        Workers of a stage share one dict.
        """
        stages = min(self.stages, num_workers)
        names = list(self.layers)
        bounds = [len(names) * i // stages for i in range(stages + 1)]
        parts = [{n: self.layers[n] for n in names[a:b]} for a, b in itertools.pairwise(bounds)]
        workers = [parts[i * stages // num_workers] for i in range(num_workers)]
        memory = [self.memory - i for i in range(num_workers)]
        return kvplan.PlanningConfig(**self.config), workers, memory

    def request(self, num_workers: int) -> dict[str, Any]:
        """The same as a request file holds it."""
        made = request.from_objects(
            *self.inputs(num_workers), model=f"{self.name}, {num_workers} workers"
        )
        return made.document


def _real(name: str) -> Scenario:
    found = models.kv_cache_specs(models.load(name))
    config = {
        # vLLM 0.33's rule, which is what the planner is timed beside.
        "draft_rule": "is_draft",
        "max_in_flight_tokens": 16384,
    }
    return Scenario(name, found.kv_cache_specs[0], found.config | config)


def _seven_kinds() -> Scenario:
    """237 caches of seven kinds on 61 layers, in the manner of DeepSeek-V4, fitted."""
    packed = {"dtype": "uint8", "state_content_bytes": 584, "alignment": 576, "num_kv_heads": 1}
    ring = {"dtype": "float32", "num_kv_heads": 1, "head_size_v": 0}
    local = specs.SlidingWindowMLASpec(block_size=64, head_size=512, sliding_window=128, **packed)
    latent = {
        ratio: specs.MLAAttentionSpec(
            block_size=256, head_size=512, tokens_per_state=ratio, **packed
        )
        for ratio in (4, 128)
    }
    state = {
        ratio: specs.CircularBufferSpec(block_size=2 * ratio, head_size=1024, **ring)
        for ratio in (4, 128)
    }
    indexer = specs.MLAAttentionSpec(
        block_size=256,
        head_size=132,
        tokens_per_state=4,
        **{key: packed[key] for key in ("dtype", "alignment", "num_kv_heads")},
    )
    indexer_state = specs.CircularBufferSpec(block_size=16, head_size=256, **ring)
    layers: Layers = {}
    for i in range(61):
        layers[f"model.layers.{i}.swa"] = local
        if i < 2:
            continue
        ratio = 4 if i % 2 == 0 else 128
        layers[f"model.layers.{i}.mla"] = latent[ratio]
        layers[f"model.layers.{i}.state"] = state[ratio]
        if ratio == 4:
            layers[f"model.layers.{i}.indexer"] = indexer
            if i > 4:
                layers[f"model.layers.{i}.indexer.state"] = indexer_state
    config = {
        "max_model_len": 1 << 24,
        "auto_fit": True,
        "max_in_flight_tokens": 16384,
        "kv_cache_layout": "BLHNC",
        "draft_rule": "is_draft",
    }
    return Scenario("7-kinds-auto-fit", layers, config, stages=8)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    **{name: functools.partial(_real, name) for name in REAL_MODELS},
    "7-kinds-auto-fit": _seven_kinds,
}


def scale(num_layers: int) -> Scenario:
    """Far larger than any model: half full attention, half windows, over 8 stages."""
    heads = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
    full = specs.FullAttentionSpec(**heads)
    window = specs.SlidingWindowSpec(sliding_window=1024, **heads)
    layers = {f"layers.{i}": window if i % 2 else full for i in range(num_layers)}
    config = {"max_model_len": 131072, "draft_rule": "is_draft"}
    return Scenario(f"{num_layers:,} layers", layers, config, stages=8, memory=1 << 50)
