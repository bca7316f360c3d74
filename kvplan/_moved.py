"""Import paths from before the offline tool had a package of its own."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_MOVED = {
    name: name.replace("kvplan.", "kvplan.offline.")
    for name in ("kvplan.cli", "kvplan.models", "kvplan.packing")
}


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers an old path with the very module of the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = ".".join(fullname.split(".")[:2])
        if package not in _MOVED:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self)
        spec.loader_state = _MOVED[package] + fullname[len(package) :]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import has just replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let ``kvplan.models`` and the like be imported, now or later."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
