"""Write the options of vLLM 0.33.0's ``vllm serve`` into kvplan's table of them.

Usage: python tests/vllm033/record_serve_options.py

Names and defaults come from vLLM's own argument parser and environment variables. What an option
does to memory is written by hand in the table's last column, and kept; an option that is new gets a
text which says that its effect is not known, so that it is named until somebody has looked.
"""

from __future__ import annotations

import sys
from argparse import Action
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "kvplan" / "offline" / "serve_line" / "vllm_options.tsv"
UNKNOWN_EFFECT = "its effect on memory is not known"
HEADER = "kind\tnames\tnegative names\tdest\tdefault\teffect"


def _kind(action: Action) -> str:
    if action.nargs == 0:
        return "flag"
    return {"+": "values", "?": "optional"}.get(str(action.nargs), "value")


def _default(action: Action) -> str:
    """A plain default as one would write it; empty where it is none, or no single word."""
    default = action.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (int, float)) or (isinstance(default, str) and default.isidentifier()):
        return str(default)
    return ""


def rows(effects: dict[tuple[str, str], str]) -> list[str]:
    """The table's lines below its header; `effects` by (is it ``env`` or ``option``, dest)."""
    sys.path.insert(0, str(HERE))
    import stand_in_cuda  # noqa: F401 - vLLM's parser asks for the platform
    from vllm import envs
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    spellings: dict[Action, list[str]] = {}
    for name, action in parser._option_string_actions.items():
        spellings.setdefault(action, []).append(name)
    lines = []
    for action, names in spellings.items():
        negative = set(getattr(action, "negative_option_strings", ()))
        positive = [name for name in names if name not in negative]
        effect = effects.get(("option", action.dest), UNKNOWN_EFFECT)
        names_of_both = (" ".join(positive), " ".join(sorted(negative)))
        cells = (_kind(action), *names_of_both, action.dest, _default(action), effect)
        lines.append("\t".join(cells))
    for name in envs.environment_variables:
        effect = effects.get(("env", name), UNKNOWN_EFFECT)
        lines.append("\t".join(("env", name, "", name, "", effect)))
    return lines


def known_effects() -> dict[tuple[str, str], str]:
    """The last column of the table as it is."""
    if not TABLE.exists():
        return {}
    cells = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {("env" if c[0] == "env" else "option", c[3]): c[-1] for c in cells}


def text() -> str:
    """The whole table."""
    return "\n".join([HEADER, *rows(known_effects())]) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text())
