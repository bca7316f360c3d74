"""What a figure depends on."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import kvplan


def describe_machine() -> dict[str, str]:
    """Processor, memory, load and versions of this process, as a reader wants them."""
    described = {
        "processor": _processor(),
        "cores": str(_cores()),
        "memory": _memory(),
        "load": _load(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kvplan": kvplan.__version__,
        "vllm": _version("vllm"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    return {key: value for key, value in described.items() if value}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return ""
    return f"{total / 2**30:.0f} GiB"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
