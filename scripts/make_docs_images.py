"""Draw the pictures of the documentation anew, each by the command that its page shows.

    python scripts/make_docs_images.py [NAME...]

A test compares the pictures and the pages with this table.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"

#: Page, file, and command; ``{}`` stands for the file.
PICTURES = (
    ("cli.md", "map-gemma-3-27b.svg", "map gemma-3-27b --memory 60GiB -o {}"),
    ("concepts.md", "frontier-deepseek-v4-flash.svg", "frontier deepseek-v4-flash --plot {}"),
    (
        "sliced.md",
        "map-deepseek-v4.1-flash-sliced.svg",
        "map deepseek-v4.1-flash --tp 4 --memory 4GiB --grouping sliced -o {}",
    ),
    (
        "cli.md",
        "sweep-gemma-3-27b.svg",
        "sweep gemma-3-27b --memory 40GiB --max-model-len 8K:128K:8K --grouping vllm,compact "
        "--kv-cache-dtype auto,fp8 --quiet --plot {}",
    ),
    (
        "hit-rates.md",
        "replay-windows.svg",
        "replay agents:requests=800,rate=1 gemma-3-27b --memory 20GiB --max-model-len 65536 "
        "--quiet --plot {}",
    ),
    (
        "hit-rates.md",
        "replay-windows-retention.svg",
        "replay agents:requests=800,rate=1 gemma-3-27b --memory 20GiB --max-model-len 65536 "
        "--prefix-cache-retention-interval 0 --quiet --plot {}",
    ),
    (
        "hit-rates.md",
        "replay-batch.svg",
        "replay agents:requests=600,rate=4 qwen3-8b --memory 8GiB --max-model-len 32768 "
        "--quiet --plot {}",
    ),
)

if __name__ == "__main__":
    for _, name, command in PICTURES:
        if not sys.argv[1:] or name in sys.argv[1:]:
            arguments = command.format(IMAGES / name).split()
            subprocess.run([sys.executable, "-m", "kvplan", *arguments], check=True)
