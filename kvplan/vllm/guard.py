"""Whether this vLLM still plans with its own functions, so that kvplan may stand in for them.

Plugins replace functions and classes of vLLM's planner at run time. Then their plan is the right
one, and it comes from running them, not from what kvplan knows of vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kvplan import _core
from kvplan.vllm.conversion import spec_classes
from kvplan.vllm.subclasses import registered_base


class Guard:
    """What vLLM's planning modules held when kvplan was installed."""

    def __init__(self, planning: ModuleType, interface: ModuleType, replaced: tuple[str, ...]):
        """Remember the functions of ``planning`` but those that kvplan replaces itself."""
        self._planning = planning
        used = _globals_used(planning, (*replaced, "DefaultKVCacheConfigBuilder"))
        self._globals = {name: value for name, value in used.items() if name not in replaced}
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
        self._patched_before = _find_foreign(planning, used, interface, watched)
        self._watch = self._make_watch()

    def _make_watch(self) -> _core.AttributeWatch:
        return _core.AttributeWatch(vars(self._planning), self._globals, self._classes)

    def reason(self) -> str | None:
        """Why kvplan must step aside now, if it must."""
        if self._patched_before is not None:
            return self._patched_before
        if not self._watch.changed():
            return None
        current = vars(self._planning)
        for name, value in self._globals.items():
            if current.get(name) is not value:
                where = f"{self._planning.__name__}.{name}"
                return f"{where} was replaced by {_origin(current.get(name))}"
        for cls, known in self._classes.items():
            if vars(cls) == known:
                continue
            before, now = _attributes(known), _attributes(vars(cls))
            if now != before:
                changed = [n for n, v in now.items() if before.get(n, ...) is not v]
                return f"{cls.__name__} was changed: {', '.join(changed) or 'attributes removed'}"
            self._classes[cls] = dict(vars(cls))
        self._watch = self._make_watch()
        return None

    def registry_reason(self, registry: ModuleType) -> str | None:
        """Why the registered spec classes do not group as kvplan groups them, if so."""
        table = registry._REGISTRY_KVCACHESPEC_LIST
        if not table:
            registry.KVCacheSpecRegistry._ensure_registered()
            table = registry._REGISTRY_KVCACHESPEC_LIST
        if len(table) != self._registered:
            self._registered = len(table)
            self._registry_reason = self._compare_registry(table)
        return self._registry_reason

    def _compare_registry(self, table: dict[type, Any]) -> str | None:
        for cls, expected in self._bases.items():
            base = registered_base(cls, table)
            actual = "" if base is None else base.__name__
            if actual != expected:
                return (
                    f"{cls.__name__} is registered to be grouped as {actual or 'nothing'}, "
                    f"not as {expected or 'nothing'}"
                )
        return None


def _attributes(of_class: Mapping[str, Any]) -> dict[str, Any]:
    """A class's own attributes, but the one in which copying keeps a cache."""
    return {name: value for name, value in of_class.items() if name != "__slotnames__"}


def _globals_used(module: ModuleType, roots: tuple[str, ...]) -> dict[str, Any]:
    """The functions and classes of a module that some of its functions come to use."""
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        value = vars(module).get(name)
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


def _find_foreign(
    planning: ModuleType, used: dict[str, Any], interface: ModuleType, watched: list[type]
) -> str | None:
    """What another plugin has put into vLLM already, if anything."""
    for name, value in used.items():
        if not _is_vllms(value, planning):
            return f"{planning.__name__}.{name} was replaced by {_origin(value)}"
    for cls in watched:
        if cls.__module__ != interface.__name__:
            return f"{interface.__name__}.{cls.__name__} was replaced by {_origin(cls)}"
        for name, value in vars(cls).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType) and function.__module__ != cls.__module__:
                return f"{cls.__name__}.{name} was replaced by {_origin(function)}"
    return None


def _is_vllms(value: Callable[..., Any], planning: ModuleType) -> bool:
    """Whether a global of the planning module is what its source file put there."""
    module = getattr(value, "__module__", None) or ""
    if module == planning.__name__ and isinstance(value, FunctionType):
        return value.__code__.co_filename == planning.__file__
    # vLLM decorates some with functools, and imports from itself and the standard library.
    top = module.partition(".")[0]
    return not module or top == "vllm" or top in sys.stdlib_module_names


def _origin(value: Any) -> str:
    if value is None:
        return "nothing"
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{module}.{name}" if module else name
