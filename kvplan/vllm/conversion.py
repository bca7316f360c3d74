"""How this vLLM's classes and configuration become kvplan's.

The classes are described once, field by field, and read and made in C++ from then on. A class whose
fields kvplan cannot place is marked, and only models that use it are left to vLLM.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from types import ModuleType
from typing import Any

from kvplan import _core

# HiSparse is planned by vLLM, and a custom spec has no class of vLLM's.
_LEFT_OUT = {"HiSparseHotSpec", "HiSparseResidentSpec", "CustomSpec"}
SPEC_CLASSES = tuple(name for name in _core.spec_class_names() if name not in _LEFT_OUT)

DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "uint8",
    "int8",
    "bool",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)

# Fields that the C++ side gives to each new object, in this order; others get their defaults.
GROUP_FIELDS = (
    "layer_names",
    "kv_cache_spec",
    "is_eagle_group",
    "host_resident",
    "enable_kv_transfer",
    "role",
)
TENSOR_FIELDS = ("size", "layers", "layer_stride", "block_stride", "offset")
CONFIG_FIELDS = (
    "num_blocks",
    "kv_cache_tensors",
    "kv_cache_groups",
    "prefix_cache_retention_interval",
)


_plain_new: Any = object.__new__


class UnknownClassError(TypeError):
    """A class of this vLLM that kvplan cannot stand in for; the message says which and why."""


def spec_classes(interface: ModuleType) -> dict[str, type]:
    """The spec classes of this vLLM that kvplan knows, by name."""
    return {name: getattr(interface, name) for name in SPEC_CLASSES if hasattr(interface, name)}


def _default(field: dataclasses.Field[Any]) -> Any:
    """A field's default; Ellipsis stands for none."""
    return ... if field.default is dataclasses.MISSING else field.default


def _describe_spec(name: str, cls: type) -> dict[str, Any]:
    known = _core.spec_field_names(name)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    extra = {field: _default(fields[field]) for field in fields if field not in known}
    required = [field for field, default in extra.items() if default is ...]
    unsupported = ""
    if required:
        unsupported = f"{name} has fields that kvplan does not know: {', '.join(required)}"
    elif "__slots__" in vars(cls) or cls.__new__ is not _plain_new:
        unsupported = f"{name} is made in a way that kvplan does not know"
    return {
        "type": cls,
        "fields": set(fields),
        "extra": {} if unsupported else extra,
        "unsupported": unsupported,
    }


def _describe_plain(cls: type, given: tuple[str, ...], optional: tuple[str, ...] = ()) -> Any:
    """A dataclass that is made by setting its fields: those given by kvplan come first."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    missing = [name for name in (*given, *optional) if name not in fields]
    if missing:
        raise UnknownClassError(f"{cls.__name__} has no {', '.join(missing)}")
    rest = {name: _default(field) for name, field in fields.items() if name not in given}
    required = [name for name, value in rest.items() if value is ... and name not in optional]
    if required:
        raise UnknownClassError(
            f"{cls.__name__} has fields that kvplan does not know: {', '.join(required)}"
        )
    changed = [n for n in ("__slots__", "__setattr__", "__post_init__") if n in vars(cls)]
    # Specs are frozen, and the wrapper's `__post_init__` is followed.
    if changed and not optional:
        raise UnknownClassError(f"{cls.__name__} defines {', '.join(changed)}")
    return {"type": cls, "fields": {name: _default(fields[name]) for name in given} | rest}


def describe(interface: ModuleType, *, before_033: bool) -> dict[str, Any]:
    """Describe the classes of this vLLM to :class:`kvplan._core.VllmPlanner`.

    Raises:
        UnknownClassError: a class that every plan needs is not as kvplan knows it.
    """
    import torch
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

    roles = interface.KVCacheGroupRole
    return {
        "specs": {name: _describe_spec(name, c) for name, c in spec_classes(interface).items()},
        "uniform_type": _describe_plain(
            interface.UniformTypeKVCacheSpecs, (), ("block_size", "kv_cache_specs")
        ),
        "group": _describe_plain(interface.KVCacheGroupSpec, GROUP_FIELDS),
        "tensor": _describe_plain(interface.KVCacheTensor, TENSOR_FIELDS),
        "config": _describe_plain(interface.KVCacheConfig, CONFIG_FIELDS, ("kv_tp_replicas",)),
        "dtypes": {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)},
        "mamba_types": {member.name.lower(): member for member in MambaAttentionBackendEnum},
        "cache_roles": {role.value: role for role in interface.SparseCacheRole},
        "quant_mode": interface.KVQuantMode,
        "multiple_of": MultipleOf,
        "fraction": Fraction,
        "roles": [roles.DEFAULT, roles.HISPARSE_SOURCE, roles.HISPARSE_INDEXER],
        "projection_resets_group": before_033,
        "groups_annotate": before_033,
    }
