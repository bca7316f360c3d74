"""What a plugin's spec class changes of the vLLM class that it inherits from.

Only numbers may differ: kvplan asks the class for them. Whatever else a class overrides decides how
layers are grouped, merged or counted, which is not known without running it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

# Asked of the plugin's own objects.
_NUMBERS = {
    "num_heads",
    "num_states",
    "page_size_bytes",
    "real_page_size_bytes",
    "state_content_size_bytes",
    "unpadded_page_size_bytes",
}
_NUMBER_METHODS = {
    "copy_with_new_block_size",
    "get_block_stride_alignment",
    "get_num_kernel_states",
}
# Read by workers and the scheduler off the objects that the plan carries, never by the planner.
_NOT_PLANNED_WITH = {
    "block_table_token_alignment",
    "has_layer_views",
    "max_num_blocks_per_req",
    "num_retained_tokens",
    "prefix_cacheable",
    "prefix_replay_tokens",
    "uses_slot_mapping",
}
# Of any class, and what `dataclass` notes down.
_BOOK_KEEPING = {
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__match_args__",
    "__module__",
    "__qualname__",
    "__replace__",
    "__repr__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
}
_MADE_BY_DATACLASS = {"__delattr__", "__eq__", "__hash__", "__init__", "__setattr__"}
_FIELD_ATTRIBUTES = ("default", "default_factory", "init", "compare", "hash")


def known_class(cls: type, known: Mapping[type, str]) -> type | None:
    """The nearest class above ``cls`` that kvplan knows."""
    return next((base for base in cls.__mro__ if base in known), None)


def classes_between(cls: type, above: type) -> tuple[type, ...]:
    """``cls`` and what stands between it and the known class above it."""
    return cls.__mro__[: cls.__mro__.index(above)]


def objection(cls: type, above: type, known: Iterable[type]) -> str | None:
    """Why ``cls`` is more than ``above`` with other numbers, if it is."""
    between = classes_between(cls, above)
    if cls.__mro__[len(between) :] != above.__mro__:
        return f"it has base classes beside {above.__name__}"
    for part in between:
        if type(part) is not type:
            return f"{part.__name__} has the metaclass {type(part).__name__}"
    changed = _changed_fields(cls, above)
    if changed:
        return f"it adds or changes the fields {', '.join(changed)}"
    of_specs = {name for spec in known for name in (*dir(spec), *_fields(spec))}
    for part in between:
        for name, value in vars(part).items():
            if not _is_harmless(part, name, value, above, of_specs):
                return f"it overrides {name}"
    return None


def _fields(cls: type) -> dict[str, Any]:
    """The fields, what only ``__init__`` takes included, and no class variables."""
    class_variable = vars(dataclasses)["_FIELD_CLASSVAR"]
    fields: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
    return {n: f for n, f in fields.items() if f._field_type is not class_variable}


def _changed_fields(cls: type, above: type) -> list[str]:
    ours, theirs = _fields(cls), _fields(above)
    return [
        name
        for name in ours | theirs
        if name not in ours
        or name not in theirs
        or any(getattr(ours[name], a) != getattr(theirs[name], a) for a in _FIELD_ATTRIBUTES)
    ]


def _is_harmless(part: type, name: str, value: Any, above: type, of_specs: set[str]) -> bool:
    if name in _fields(above):
        return False
    if name in _NUMBERS:
        return type(value) in (property, int)
    if name in _NUMBER_METHODS:
        return type(value) is FunctionType
    if name in _NOT_PLANNED_WITH or name in _BOOK_KEEPING:
        return True
    if name in _MADE_BY_DATACLASS:
        return issubclass(part, above) and _is_generated(part, value)
    # A helper of the plugin's own, which nobody else calls.
    return not name.startswith("__") and name not in of_specs


def _is_generated(part: type, value: Any) -> bool:
    """Whether ``dataclass`` wrote this function; what it finds in a class, it leaves there."""
    code = getattr(value, "__code__", None)
    return "__dataclass_params__" in vars(part) and getattr(code, "co_filename", "") == "<string>"
