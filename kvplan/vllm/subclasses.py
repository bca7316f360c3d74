"""Which spec classes of plugins kvplan plans with, and what came of it in this process.

A class that qualifies (:mod:`kvplan.vllm.spec_inheritance`) is on trial at first: the first call of
each planning function that meets it is compared with vLLM's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kvplan import _core
from kvplan.vllm import report, spec_inheritance
from kvplan.vllm.conversion import spec_classes
from kvplan.vllm.step_aside import StepAside


@dataclass
class _Entry:
    above: type | None
    objection: str | None
    attributes: list[dict[str, Any]]
    watch: _core.AttributeWatch
    equal: set[str] = field(default_factory=set)  # functions whose first result was vLLM's


class Subclasses:
    """The plugin classes that planning has met, by class."""

    def __init__(self, interface: ModuleType):
        """``interface`` is the module with vLLM's spec classes."""
        self._classes = spec_classes(interface)
        self._known = {cls: name for name, cls in self._classes.items()}
        self._grouped_by_registry = interface.KVCacheSpec.is_uniform_with_collection
        self._entries: dict[type, _Entry] = {}
        self.met: set[type] = set()
        """Those of the current call."""

    def class_above(self, cls: type) -> str:
        """The name of the known class that ``cls`` is a kind of.

        Raises:
            StepAside: the class is not planned with.
        """
        entry = self._entry(cls)
        reason = entry.objection or self._registry_objection(cls, entry.above)
        if reason is not None:
            report.plugin_class(_name(cls), "left to vLLM")
            raise StepAside(f"KV cache spec class {_name(cls)} is not known to kvplan: {reason}")
        self.met.add(cls)
        report.plugin_class(_name(cls), "planned" if entry.equal else "on trial")
        assert entry.above is not None
        return self._known[entry.above]

    def on_trial(self, function: str) -> list[type]:
        """Classes of the current call whose results of ``function`` nobody has compared yet."""
        return [cls for cls in self.met if function not in self._entries[cls].equal]

    def found_equal(self, function: str, classes: Iterable[type]) -> None:
        """The result with these classes was vLLM's."""
        for cls in classes:
            self._entries[cls].equal.add(function)
            report.plugin_class(_name(cls), "planned")

    def found_different(self, function: str, classes: Iterable[type], difference: str) -> str:
        """The result with these classes was not vLLM's; they are left to it from now on."""
        reason = f"{function} differed from vLLM's: {difference}"
        for cls in classes:
            self._entries[cls].objection = reason
            report.plugin_class(_name(cls), "left to vLLM")
        names = ", ".join(sorted(map(_name, classes)))
        return f"KV cache spec class {names} is not known to kvplan: {reason}"

    def _entry(self, cls: type) -> _Entry:
        entry = self._entries.get(cls)
        if entry is not None and not entry.watch.changed():
            return entry
        inspected = self._inspect(cls)
        if entry is not None and entry.attributes == inspected.attributes:
            entry.watch = inspected.watch  # an order, or an equal object
            return entry
        self._entries[cls] = inspected
        return inspected

    def _inspect(self, cls: type) -> _Entry:
        above = spec_inheritance.known_class(cls, self._known)
        if above is None:
            between: tuple[type, ...] = (cls,)
            objection: str | None = "it is beneath no class that kvplan knows"
        else:
            between = spec_inheritance.classes_between(cls, above)
            objection = spec_inheritance.objection(cls, above, self._known)
        watch = _core.AttributeWatch({}, {}, between)
        # Copying an object keeps a cache in its class.
        attributes = [
            {name: value for name, value in vars(part).items() if name != "__slotnames__"}
            for part in between
        ]
        return _Entry(above, objection, attributes, watch)

    def _registry_objection(self, cls: Any, above: Any) -> str | None:
        """Classes may be registered at any time, and to be grouped as they like."""
        if cls.is_uniform_with_collection is not self._grouped_by_registry:
            return None
        from vllm.v1 import kv_cache_spec_registry as registry

        registry.KVCacheSpecRegistry._ensure_registered()
        base = registered_base(cls, registry._REGISTRY_KVCACHESPEC_LIST)
        if base is self._classes.get(_core.spec_uniform_type_base(self._known[above])):
            return None
        return f"it is registered to be grouped as {'nothing' if base is None else _name(base)}"


def registered_base(cls: type, table: Mapping[type, Any]) -> type | None:
    """The class that decides which specs may share a group with ``cls``, if there is one."""
    entry = next((table[base] for base in cls.__mro__ if base in table), None)
    return None if entry is None else entry.uniform_type_base_spec


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
