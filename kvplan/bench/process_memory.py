"""Memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path


def resident_bytes() -> int:
    """What the process holds now."""
    return _status_bytes("VmRSS") or peak_bytes_so_far()


def peak_bytes_so_far() -> int:
    """The most that the process has held."""
    # Of this program alone; getrusage's figure begins with that of the process that started it.
    if (peak := _status_bytes("VmHWM")) is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status_bytes(key: str) -> int | None:
    """A line of Linux's /proc/self/status in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
    return None
