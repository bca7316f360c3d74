"""The table of commands: where each lives, and its line in ``kvplan --help``.

A module ``kvplan.offline.cli.<module>`` holds the click command ``command``.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command: its module below ``kvplan.offline.cli`` and its one-line help."""

    module: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "plan": Entry("plan", "Plan a model's KV cache: does it fit, how much does it hold?"),
    "fit": Entry("fit", "Find the longest context, or the least memory or GPUs, that fits."),
    "serve-line": Entry("serve_line", "Print the vllm serve line that works."),
    "log": Entry("log", "Explain a vLLM start-up log: memory, time, refusal; compare several."),
    "explain": Entry("explain", "One request's bill, group by group, in plain words."),
    "frontier": Entry("frontier", "Groups against tokens: vLLM's grouping and the better ones."),
    "diff": Entry("diff", "Two plans side by side."),
    "check": Entry("check", "Check a placement with the independent checker."),
    "sweep": Entry("sweep", "Plan a whole grid of what-ifs into a CSV or JSON file."),
    "replay": Entry("replay", "Run a trace of requests through a plan: hits, waits, preemptions."),
    "map": Entry("map", "A picture of what a block holds, group by group."),
    "bench": Entry("bench", "How long start-up planning takes here, beside vLLM."),
    "models": Entry("models", "List the built-in models and the known architectures."),
    "completion": Entry("completion", "Print the completion script of a shell."),
}
