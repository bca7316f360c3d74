"""What vLLM registered for models, as recorded: one JSON object a line, by name.

python tests/recordings.py NAME...     prints recordings, indented.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "registered"

#: Built-in models; every architecture, with a small config; drafters; options and odd sizes.
KINDS = ("models", "architectures", "drafters", "variants")

#: What a running engine registered, as far as it was looked at.
BY_ENGINE = "by_engine"


@cache
def recordings(kind: str) -> dict[str, dict[str, Any]]:
    """All recordings of a kind, by name; change a copy."""
    lines = (DATA / f"{kind}.jsonl").read_text().splitlines()
    return {found.pop("name"): found for found in map(json.loads, lines)}


def all_recordings() -> dict[str, dict[str, Any]]:
    """The recordings of every kind, but of the engine's."""
    return {name: found for kind in KINDS for name, found in recordings(kind).items()}


def recorded_config(architecture: str) -> dict[str, Any]:
    """The config that an architecture was recorded with."""
    return recordings("architectures")[architecture]["config"]


def write(kind: str, found: dict[str, dict[str, Any]]) -> None:
    """Write the recordings of a kind, sorted by name."""
    lines = (
        json.dumps({"name": name, **found[name]}, separators=(",", ":")) for name in sorted(found)
    )
    (DATA / f"{kind}.jsonl").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    everything = {**all_recordings(), **recordings(BY_ENGINE)}
    for name in sys.argv[1:]:
        print(json.dumps(everything[name], indent=1))
