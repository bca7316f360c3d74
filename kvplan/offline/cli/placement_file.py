"""A plan's placement as JSON: what each worker's memory holds, for ``kvplan check``.

The format is in docs/cli.md. Workers with the same placement are written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

import kvplan
from kvplan import specs as native
from kvplan.offline.cli.failures import BadInput

MAX_FILE_BYTES = 256 << 20

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Stride = Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class GroupEntry(Struct, forbid_unknown_fields=True):
    """A group: its layers, and the index of the one spec, or of each layer's."""

    layer_names: list[Name]
    specs: list[Count]
    block_size: Count
    has_spec_per_layer: bool = False
    is_eagle_group: bool = False
    slices: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class TensorEntry(Struct, forbid_unknown_fields=True):
    """Pages of layers of one shape, in bytes; see `kvplan.specs.KVCacheTensor`."""

    size: Count
    layers: list[Name]
    layer_stride: Stride
    block_stride: Stride
    offset: Stride = 0


class WorkerEntry(Struct, forbid_unknown_fields=True):
    """A worker: its placement, or the index of a worker before it with the same."""

    available_memory: Count
    same_as: Count | None = None
    num_blocks: Count = 0
    layers: list[Name] = []
    groups: list[GroupEntry] = []
    tensors: list[TensorEntry] = []


class Placement(Struct, forbid_unknown_fields=True):
    """The whole placement."""

    layout: Name
    specs: list[dict[str, Any]]
    workers: Annotated[list[WorkerEntry], Meta(min_length=1, max_length=16384)]


class PlanFile(Struct):
    """What of a plan's JSON is checked; other fields may be there."""

    placement: Placement


@dataclass(frozen=True)
class Checkable:
    """What the checker takes: per worker its config, its layers, and its memory in bytes."""

    layout: str
    configs: list[Any]
    kv_cache_specs: list[dict[str, Any]]
    available_memory: list[int]

    def violations(self) -> list[Any]:
        """The broken rules; empty for a correct placement. Raises ValueError."""
        from kvplan.check import check_kv_cache_configs

        return check_kv_cache_configs(
            self.configs,
            self.kv_cache_specs,
            self.layout,
            available_memory=self.available_memory,
        )


def placement_dict(plan: kvplan.Plan, kv_cache_specs: list[dict[str, Any]]) -> dict[str, Any]:
    """The placement of a plan."""
    specs: list[dict[str, Any]] = []
    numbers: dict[Any, int] = {}

    def number(spec: Any) -> int:
        if spec not in numbers:
            numbers[spec] = len(specs)
            specs.append(spec.to_dict())
        return numbers[spec]

    def group_dict(group: Any) -> dict[str, Any]:
        spec = group.kv_cache_spec
        by_layer = getattr(spec, "kv_cache_specs", None)
        used = [spec] if by_layer is None else [by_layer[name] for name in group.layer_names]
        return {
            "layer_names": list(group.layer_names),
            "specs": [number(s) for s in used],
            "block_size": spec.block_size,
            "has_spec_per_layer": by_layer is not None,
            "is_eagle_group": group.is_eagle_group,
            **({"slices": group.slices} if group.slices != 1 else {}),
        }

    workers: list[dict[str, Any]] = []
    seen: dict[tuple[Any, ...], int] = {}
    for index, (config, report) in enumerate(zip(plan.kv_cache_configs, plan.workers, strict=True)):
        worker: dict[str, Any] = {"available_memory": report.effective_bytes}
        layers = list(kv_cache_specs[index])
        # A stage's workers share their layers' dict, and all have the same number of blocks.
        first = seen.setdefault(tuple(layers), index)
        if first != index:
            workers.append(worker | {"same_as": first})
            continue
        tensors = [
            {
                "size": tensor.size,
                "layers": list(tensor.layers),
                "layer_stride": tensor.layer_stride,
                "block_stride": tensor.block_stride,
                "offset": tensor.offset,
            }
            for tensor in config.kv_cache_tensors
        ]
        groups = [group_dict(group) for group in config.kv_cache_groups]
        workers.append(
            worker
            | {
                "num_blocks": config.num_blocks,
                "layers": layers,
                "groups": groups,
                "tensors": tensors,
            }
        )
    return {"layout": plan.config.kv_cache_layout, "specs": specs, "workers": workers}


def read_placement(data: bytes, source: str) -> Checkable:
    """Read a plan's JSON. Raises BadInput, which names the place in the file."""
    if len(data) > MAX_FILE_BYTES:
        raise BadInput(f"{source} is larger than {MAX_FILE_BYTES >> 20} MiB, the limit for a plan")
    try:
        file = msgspec.json.decode(data, type=PlanFile)
    except msgspec.ValidationError as error:
        raise BadInput(
            f"{source} has no placement to check: {error}. 'kvplan plan --json' writes one"
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadInput(f"{source} is not JSON: {error}") from None
    placement = file.placement
    specs = []
    for index, fields in enumerate(placement.specs):
        try:
            specs.append(native.from_dict(fields))
        except (ValueError, TypeError, KeyError, AssertionError, NotImplementedError) as error:
            raise BadInput(f"{source}: $.placement.specs[{index}]: {error}") from None
    configs: list[Any] = []
    layers: list[dict[str, Any]] = []
    for index, worker in enumerate(placement.workers):
        where = f"{source}: $.placement.workers[{index}]"
        if worker.same_as is not None:
            if worker.same_as >= index:
                raise BadInput(f"{where}.same_as: {worker.same_as} is no worker before this one")
            configs.append(configs[worker.same_as])
            layers.append(layers[worker.same_as])
            continue
        configs.append(_config(worker, specs, where))
        layers.append(dict.fromkeys(worker.layers))
    memory = [worker.available_memory for worker in placement.workers]
    return Checkable(placement.layout, configs, layers, memory)


def _config(worker: WorkerEntry, specs: list[Any], where: str) -> Any:
    groups = []
    for index, group in enumerate(worker.groups):
        here = f"{where}.groups[{index}]"
        for number in group.specs:
            if number >= len(specs):
                raise BadInput(f"{here}.specs: there is no spec {number}, only {len(specs)}")
        wanted = len(group.layer_names) if group.has_spec_per_layer else 1
        if len(group.specs) != wanted:
            raise BadInput(f"{here}.specs: has {len(group.specs)} specs where {wanted} belong")
        try:
            groups.append(_group(group, [specs[number] for number in group.specs]))
        except (ValueError, AssertionError) as error:
            raise BadInput(f"{here}: {error}") from None
    tensors = [
        native.KVCacheTensor(
            size=tensor.size,
            layers=tensor.layers,
            layer_stride=tensor.layer_stride,
            block_stride=tensor.block_stride,
            offset=tensor.offset,
        )
        for tensor in worker.tensors
    ]
    return native.KVCacheConfig(
        num_blocks=worker.num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups
    )


def _group(group: GroupEntry, specs: list[Any]) -> Any:
    spec: Any
    if not group.has_spec_per_layer:
        spec = specs[0]
    else:
        spec = native.UniformTypeKVCacheSpecs(
            block_size=group.block_size,
            kv_cache_specs=dict(zip(group.layer_names, specs, strict=True)),
        )
    return native.KVCacheGroupSpec(
        layer_names=group.layer_names,
        kv_cache_spec=spec,
        is_eagle_group=group.is_eagle_group,
        slices=group.slices,
    )
