"""Putting kvplan's functions and classes where vLLM holds its own, and taking them out again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

from kvplan.vllm import report

_STOCK = "_kvplan_stock"  # on what was put in: what was there before


class Patch(NamedTuple):
    """``owner.name`` becomes ``new``, also in the modules that have imported it from a module.

    With ``only_there``, what those modules have stays.
    """

    owner: ModuleType | type
    name: str
    new: Any
    only_there: bool = False


def stock(owner: ModuleType | type, name: str) -> Any:
    """What ``owner`` holds, or held before kvplan if something has put kvplan's back.

    Raises:
        AttributeError: there is no such name.
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner.__name__} has no {name}")
    held = vars(owner)[name]
    while _STOCK in getattr(held, "__dict__", {}):
        held = vars(held)[_STOCK]
    return held


class Applied:
    """Patches that are in force until :meth:`undo`."""

    def __init__(self, patches: Iterable[Patch]):
        """Apply all of them, or none.

        Raises:
            AttributeError: an owner has no such name.
        """
        self._done = [(patch, stock(patch.owner, patch.name)) for patch in patches]
        for patch, old in self._done:
            if hasattr(patch.new, "__dict__"):
                setattr(patch.new, _STOCK, old)
            held = vars(patch.owner)[patch.name]
            _replace(patch, held, patch.new)
            _replace(patch, old, patch.new)  # where `held` is kvplan's of an earlier time

    def undo(self) -> None:
        """Put back what was there, also in modules that have been imported since.

        What somebody else has put in meanwhile stays, with one warning.
        """
        for patch, old in reversed(self._done):
            if vars(patch.owner).get(patch.name) is not patch.new:
                report.once(
                    logging.WARNING,
                    f"{patch.owner.__name__}.{patch.name} was replaced after kvplan was installed "
                    "and stays as it is",
                )
            _replace(patch, patch.new, old)
        self._done = []


def _replace(patch: Patch, old: Any, new: Any) -> None:
    """Put ``new`` in the place of ``old``, wherever a module other than kvplan's has it."""
    places: list[ModuleType | type] = [patch.owner]
    if isinstance(patch.owner, ModuleType) and not patch.only_there:
        places += [
            module
            for path, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and not path.startswith("kvplan.")
        ]
    for place in places:
        if vars(place).get(patch.name, _STOCK) is old:
            setattr(place, patch.name, new)
