"""GPUs by name, and what vLLM chooses by the GPU."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_GIB = 2**30
#: Words of a product's name that tell nothing of its memory: vendors, boards, generations.
_IDLE_WORDS = re.compile(
    r"nvidia|geforce|tesla|amd|instinct|radeon|blackwell|generation|workstationedition|workstation"
    r"|serveredition|maxq|sxm\d?|pcie|oam|hbm\d?e?|mig"
)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: The usual short name.
        memory_bytes: Total memory as the driver reports it to an engine, less than the name says.
        capability: CUDA compute capability, or None where only a size was given, and for AMD.
        is_unified: Whether the host's memory is the same.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int] | None = None
    is_unified: bool = False


@dataclass(frozen=True)
class GpuDefaults:
    """What ``vllm serve`` takes where the user says nothing.

    Attributes:
        max_num_batched_tokens: Tokens of a step.
        max_num_seqs: Sequences of a step.
        gpu_memory_utilization: Part of the memory that the engine may use.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float


#: Tokens of the largest item of models that attend to an item as a whole, so that a step holds
#: one: a video of 32 frames, each of 70 tokens, 2 marks and a time of 6. Mirrors
#: vllm/model_executor/models/gemma4_mm.py::Gemma4ProcessingInfo.get_mm_max_tokens_per_item (0.33).
_LARGEST_ITEM = {"Gemma4ForConditionalGeneration": 32 * (70 + 2 + 6)}


def defaults_for(gpu: Gpu, architecture: str | None = None) -> GpuDefaults:
    """What vLLM takes on a GPU where the user says nothing, if need be for an architecture.

    Mirrors vllm/engine/arg_utils.py::EngineArgs.get_batch_defaults, for the API server, and
    ._set_default_max_num_seqs_and_batched_tokens_args; and
    vllm/config/cache.py::CacheConfig.gpu_memory_utilization (0.33).
    """
    if gpu.memory_bytes >= 160 * _GIB:
        tokens, sequences = 16384, 1024
    elif (
        gpu.memory_bytes >= 70 * _GIB
        and not _key(gpu.name).startswith("a100")
        and gpu.capability != (12, 1)
    ):
        tokens, sequences = 8192, 1024
    else:
        tokens, sequences = 2048, 256
    return GpuDefaults(max(tokens, _LARGEST_ITEM.get(architecture or "", 0)), sequences, 0.92)


def find_gpu(name: str) -> Gpu:
    """A GPU by one of its names, whatever the case, the spaces and the vendor.

    Raises:
        ValueError: No GPU of that name is known; the nearest are named.
    """
    key = _key(name)
    gpu = _by_key().get(key) or _by_key().get(key.removesuffix("gb"))
    if gpu is not None:
        return gpu
    names = {_key(known): known for known in known_gpus()}
    begins = [known for key_, known in names.items() if key and key_.startswith(key)]
    near = begins or [names[k] for k in difflib.get_close_matches(key, names, n=3, cutoff=0.75)]
    hint = f" Did you mean {' or '.join(near[:4])}?" if near else ""
    raise ValueError(
        f"{name!r} is no GPU known here.{hint} Known: "
        f"{', '.join(gpu for gpu in known_gpus() if 'g.' not in gpu)}, and MIG slices such as "
        "H100-3g.40gb; for another, give its memory, e.g. --gpu-memory 96GiB"
    )


def known_gpus() -> list[str]:
    """The usual names of all GPUs known, from old to new."""
    return [gpu.name for gpu in dict.fromkeys(_by_key().values())]


def _key(name: str) -> str:
    return _IDLE_WORDS.sub("", re.sub(r"[^a-z0-9.]", "", name.lower()))


@cache
def _by_key() -> dict[str, Gpu]:
    text = (resources.files(__package__) / "gpus.json").read_text()
    found: dict[str, Gpu] = {}
    for name, row in json.loads(text).items():
        major, _, minor = row.get("capability", "").partition(".")
        capability = (int(major), int(minor)) if major else None
        gpu = Gpu(name, int(row["gib"] * _GIB), capability, row.get("unified", False))
        for alias in (name, *row.get("aliases", ())):
            found[_key(alias)] = gpu
    return found
