"""Whether kvplan may stand in for this vLLM's planner: the one place where that is decided.

Plugins replace functions and classes of vLLM's planner, register spec classes to be grouped as they
like, and select builders of their own. Then their plan is the right one, and it comes from running
them, not from what kvplan knows of vLLM.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kvplan import _core
from kvplan.vllm.conversion import spec_classes
from kvplan.vllm.detect import Vllm
from kvplan.vllm.patch import stock

TESTED_VERSIONS = ("0.32.0", "0.33.0")

_BUILDERS = "vllm.v1.core.kv_cache_config_builder"
_REGISTRY = "vllm.v1.kv_cache_spec_registry"


class StepAside(Exception):
    """vLLM's own function must run; the message says why."""

    def __init__(self, reason: str, *, by_design: bool = False):
        """``by_design``: nothing to warn of."""
        super().__init__(reason)
        self.by_design = by_design


class Known:
    """What this vLLM's planner held when kvplan was installed."""

    def __init__(self, vllm: Vllm):
        """Remember the functions that the flow comes to use, and the classes that it plans with."""
        self._vllm = vllm
        interface = vllm.interface
        used = _globals_used(vllm.planning, (*vllm.flow, "DefaultKVCacheConfigBuilder"))
        self._globals = {name: value for name, value in used.items() if name not in vllm.flow}
        classes = spec_classes(interface)
        self._bases = {cls: _core.spec_uniform_type_base(name) for name, cls in classes.items()}
        watched = [
            *classes.values(),
            interface.KVCacheSpec,
            interface.AttentionSpec,
            interface.UniformTypeKVCacheSpecs,
            interface.KVCacheGroupSpec,
            interface.KVCacheTensor,
            interface.KVCacheConfig,
        ]
        self._classes = {cls: dict(vars(cls)) for cls in watched}
        self._registered = -1
        self._registry_reason: str | None = None
        self._replaced_before = _find_foreign(vllm, used, watched)
        self.fingerprinted = [*used.values(), *watched]

    @functools.cached_property
    def unknown(self) -> str | None:
        """What in this vLLM's planner is written otherwise than in each known release, if anything.

        Its version number does not count: a fork or a release candidate may have the known
        functions, and a patched release has others.
        """
        here = fingerprints(self.fingerprinted)
        differing = {
            release: [name for name, digest in here.items() if table.get(name) != digest]
            for release, table in known_functions().items()
        }
        release = min(differing, key=lambda name: len(differing[name]))
        if not differing[release]:
            return None
        return f"{differing[release][0]} is not that of vLLM {release}"

    def why_not(
        self, vllm_config: Any, *, grouping: bool = False, builders: tuple[type, ...] = ()
    ) -> StepAside | None:
        """Why vLLM's own function must answer a call, if it must.

        ``grouping``: the call decides which layers form a group. ``builders``: those whose
        placement kvplan knows, for a call that is not a builder's own.
        """
        reason = self.replaced()
        if reason is not None:
            return StepAside(reason)
        if builders:
            # A platform or a test that selects a builder of its own keeps it.
            cls = type(_module(_BUILDERS).get_kv_cache_config_builder(vllm_config))
            if cls not in builders:
                name = f"{cls.__module__}.{cls.__qualname__}"
                return StepAside(f"the platform selects the builder {name}", by_design=True)
        if grouping and vllm_config.model_config.supports_kv_cache_grouping:
            return StepAside("the model declares its own KV cache groups", by_design=True)
        reason = self._registered_otherwise(_module(_REGISTRY))
        return None if reason is None else StepAside(reason)

    def replaced(self) -> str | None:
        """Which part of vLLM's planner is not what it was, if any."""
        if self._replaced_before is not None:
            return self._replaced_before
        current = vars(self._vllm.planning)
        for name, value in self._globals.items():
            if current.get(name) is not value:
                return self._names(name, current.get(name))
        for cls, known in self._classes.items():
            if vars(cls) == known:
                continue
            before, now = _attributes(known), _attributes(vars(cls))
            if now != before:
                changed = [n for n, v in now.items() if before.get(n, ...) is not v]
                return f"{cls.__name__} was changed: {', '.join(changed) or 'attributes removed'}"
            self._classes[cls] = dict(vars(cls))
        return None

    def _names(self, name: str, value: Any) -> str:
        return f"{self._vllm.planning.__name__}.{name} was replaced by {origin(value)}"

    def _registered_otherwise(self, registry: ModuleType) -> str | None:
        """Why the registered spec classes do not group as kvplan groups them, if so."""
        table = registry._REGISTRY_KVCACHESPEC_LIST
        if not table:
            registry.KVCacheSpecRegistry._ensure_registered()
            table = registry._REGISTRY_KVCACHESPEC_LIST
        if len(table) != self._registered:
            self._registered = len(table)
            self._registry_reason = self._compare_registry(table)
        return self._registry_reason

    def _compare_registry(self, table: Mapping[type, Any]) -> str | None:
        for cls, expected in self._bases.items():
            entry = next((table[base] for base in cls.__mro__ if base in table), None)
            base = None if entry is None else entry.uniform_type_base_spec
            actual = "" if base is None else base.__name__
            if actual != expected:
                return (
                    f"{cls.__name__} is registered to be grouped as {actual or 'nothing'}, "
                    f"not as {expected or 'nothing'}"
                )
        return None


def known_functions() -> dict[str, dict[str, str]]:
    """The fingerprints of each known release; scripts/make_known_functions.py writes them."""
    path = Path(__file__).with_name("known_functions.json")
    table: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return table


def fingerprints(values: Iterable[Any]) -> dict[str, str]:
    """What functions and classes of vLLM say in their source, comments left out, by name."""
    by_module: dict[str, dict[str, str]] = {}
    found = {}
    for value in values:
        value = inspect.unwrap(value)
        module = getattr(value, "__module__", None) or ""
        # HiSparse is planned by vLLM.
        if not module.startswith("vllm.") or module.startswith("vllm.v1.hisparse"):
            continue
        if module not in by_module:
            by_module[module] = _definitions(inspect.getsource(sys.modules[module]))
        text = by_module[module].get(value.__name__, "")
        found[f"{module}.{value.__name__}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def _definitions(source: str) -> dict[str, str]:
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            own = [line.rstrip() for line in lines[first - 1 : node.end_lineno]]
            own = [line for line in own if line and not line.lstrip().startswith("#")]
            found[node.name] = "\n".join(own)
    return found


def _module(name: str) -> Any:
    """As vLLM imports it, in each call."""
    return sys.modules.get(name) or importlib.import_module(name)


def _attributes(of_class: Mapping[str, Any]) -> dict[str, Any]:
    """A class's own attributes, but the one in which copying keeps a cache."""
    return {name: value for name, value in of_class.items() if name != "__slotnames__"}


def _globals_used(module: ModuleType, roots: tuple[str, ...]) -> dict[str, Any]:
    """The functions and classes of a module that some of its functions come to use."""
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        value = stock(module, name) if name in vars(module) else None
        if name in found or not callable(value):
            continue
        found[name] = value
        functions = vars(value).values() if isinstance(value, type) else (value,)
        for function in functions:
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                waiting += _names_in(function.__code__)
    return found


def _names_in(code: CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names_in(constant)
    return names


def _find_foreign(vllm: Vllm, used: dict[str, Any], watched: list[type]) -> str | None:
    """What another plugin has put into vLLM already, if anything."""
    for name, value in used.items():
        if not _is_vllms(value, vllm.planning):
            return f"{vllm.planning.__name__}.{name} was replaced by {origin(value)}"
    for cls in watched:
        if cls.__module__ != vllm.interface.__name__:
            return f"{vllm.interface.__name__}.{cls.__name__} was replaced by {origin(cls)}"
        for name, value in vars(cls).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType) and function.__module__ != cls.__module__:
                return f"{cls.__name__}.{name} was replaced by {origin(function)}"
    return None


def _is_vllms(value: Callable[..., Any], planning: ModuleType) -> bool:
    """Whether a global of the planning module is what its source file put there."""
    module = getattr(value, "__module__", None) or ""
    if module == planning.__name__ and isinstance(value, FunctionType):
        return value.__code__.co_filename == planning.__file__
    # vLLM decorates some with functools, and imports from itself and the standard library.
    top = module.partition(".")[0]
    return not module or top == "vllm" or top in sys.stdlib_module_names


def origin(value: Any) -> str:
    """Where a function or a class comes from."""
    if value is None:
        return "nothing"
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{module}.{name}" if module else name
