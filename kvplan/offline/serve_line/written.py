"""A line written out again, with other options in it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from kvplan.offline.serve_line.line import ServeLine


def written(line: ServeLine, changes: Mapping[str, Sequence[str]]) -> str:
    """The line as one would type it.

    Args:
        line: The line; what it says of anything else stays.
        changes: vLLM's field to the words to write for it, e.g. ``{"max_model_len":
            ["--max-model-len", "8192"]}``; no words leave the option out.
    """
    words = [f"{name}={shlex.quote(value)}" for name, value in line.environment.items()]
    words += ["vllm", "serve"]
    if line.model is not None:
        words.append(shlex.quote(line.model))
    for argument in line.arguments:
        if argument.option.dest not in {*changes, "model"}:
            words += map(shlex.quote, argument.words)
    for change in changes.values():
        words += map(shlex.quote, change)
    return " ".join(words)
