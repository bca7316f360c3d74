"""The block operations of each kind of device, and where they run."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kvplan import _core
from kvplan._core import DeviceError, Unsupported

_LIBRARY = "libkvplan_cuda.so"


def library_path() -> Path:
    return Path(os.environ.get("KVPLAN_CUDA_LIBRARY") or Path(_core.__file__).parent / _LIBRARY)


def is_cuda_built() -> bool:
    """Whether this kvplan has its CUDA library (``KVPLAN_CUDA_LIBRARY`` names another one)."""
    return library_path().exists()


@cache
def ops_for(device_type: str) -> Any:
    if device_type == "cpu":
        return _core.cpu_block_ops()
    if device_type != "cuda":
        raise Unsupported(f"device: kvplan.device runs on cpu and cuda, not on {device_type}")
    path = library_path()
    if not path.exists():
        raise DeviceError(
            f"kvplan was built without its CUDA library ({path} is missing); build it where nvcc "
            "is found, with KVPLAN_CUDA=ON"
        )
    return _core.load_block_ops(str(path))


def resolved_device(device: torch.device | str) -> torch.device:
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
