"""The options of ``vllm serve`` (0.33.0) and what each does to memory.

The table `vllm_options.tsv` is written by tests/vllm033/record_serve_options.py. Its last column
is ``=`` for an option that kvplan plans, ``-`` for one without effect on memory, and else the
effect that is not planned, in a few words; with ``!`` before them, of the option switched off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

#: The version whose options the table holds.
VLLM_VERSION = "0.33.0"


@dataclass(frozen=True)
class Option:
    """One option, or one environment variable.

    Attributes:
        kind: ``flag``, ``value``, ``values`` (one or more), ``optional`` (at most one) or ``env``.
        names: Its names, and aliases.
        negative_names: Names that switch a flag off.
        dest: vLLM's name of the field.
        default: A plain default as text; empty where there is none.
        effect: ``=``, ``-``, or what is not planned.
    """

    kind: str
    names: tuple[str, ...]
    negative_names: tuple[str, ...]
    dest: str
    default: str
    effect: str

    @property
    def is_planned(self) -> bool:
        """Whether a plan heeds it."""
        return self.effect == "="

    def unplanned_effect(self, value: object) -> str | None:
        """What this value would do to memory and is not planned, or None."""
        if self.effect in ("=", "-") or str(value).lower() == self.default:
            return None
        if self.effect.startswith("!"):
            return self.effect[1:] if value is False else None
        return self.effect


@dataclass(frozen=True)
class OptionTable:
    """All options by each of their names, and all environment variables."""

    by_name: dict[str, Option]
    environment: dict[str, Option]


@cache
def option_table() -> OptionTable:
    """The table, read once."""
    text = (resources.files("kvplan.offline.serve_line") / "vllm_options.tsv").read_text()
    by_name: dict[str, Option] = {}
    environment: dict[str, Option] = {}
    for line in text.splitlines()[1:]:
        kind, names, negative, dest, default, effect = line.split("\t")
        option = Option(kind, tuple(names.split()), tuple(negative.split()), dest, default, effect)
        if kind == "env":
            environment[dest] = option
        else:
            by_name |= dict.fromkeys((*option.names, *option.negative_names), option)
    return OptionTable(by_name, environment)
