"""``kvplan check``: is a placement correct, whoever made it?

The file is a plan's JSON, of which the placement is read; docs/cli.md has the format.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta, Struct

from kvplan import specs as native
from kvplan.check import check_kv_cache_configs
from kvplan.offline.cli.failures import FITS, BadInput, counted, say_on_stderr
from kvplan.offline.cli.files import refuse_other_kind
from kvplan.offline.cli.param_types import FILE
from kvplan.offline.cli.terminal import print_json

BROKEN = 1
MAX_FILE_BYTES = 256 << 20

EPILOG = """\b
Examples:
  kvplan plan gemma-3-27b --memory 30GiB --json > plan.json
  kvplan check plan.json

Exit codes: 0 correct, 1 a rule is broken, 2 the input is wrong.
"""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Stride = Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class Group(Struct, forbid_unknown_fields=True):
    """A group: its layers, and the index of the one spec, or of each layer's."""

    layer_names: list[Name]
    specs: list[Count]
    block_size: Count
    has_spec_per_layer: bool = False
    is_eagle_group: bool = False
    slices: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class Tensor(Struct, forbid_unknown_fields=True):
    """Pages of layers of one shape, in bytes; see `kvplan.specs.KVCacheTensor`."""

    size: Count
    layers: list[Name]
    layer_stride: Stride
    block_stride: Stride
    offset: Stride = 0


class Worker(Struct, forbid_unknown_fields=True):
    """A worker: its placement, or the index of a worker before it with the same."""

    available_memory: Count
    same_as: Count | None = None
    num_blocks: Count = 0
    layers: list[Name] = []
    groups: list[Group] = []
    tensors: list[Tensor] = []


class Placement(Struct, forbid_unknown_fields=True):
    """The whole placement."""

    layout: Name
    specs: list[dict[str, Any]]
    workers: Annotated[list[Worker], Meta(min_length=1, max_length=16384)]


class PlanFile(Struct):
    """What of a plan's JSON is checked; other fields may be there."""

    placement: Placement


@click.command("check", epilog=EPILOG)
@click.argument("plan_file", metavar="PLAN.json", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the broken rules as JSON.")
def command(plan_file: Path, as_json: bool) -> int:
    """Check the placement in PLAN.json, as 'kvplan plan --json' writes it.

    The checker shares no code with the planner: every layer of a worker in one group and one
    tensor, no byte that two pages need at the same time, every page inside the buffer, strides
    aligned, nothing left unused but alignment, all workers agreed.
    """
    refuse_other_kind(plan_file, "plan")
    with plan_file.open("rb") as file:
        placement = _read(file.read(MAX_FILE_BYTES + 1), str(plan_file))
    configs, layers = _configs(placement, str(plan_file))
    memory = [worker.available_memory for worker in placement.workers]
    violations = check_kv_cache_configs(configs, layers, placement.layout, available_memory=memory)
    if as_json:
        print_json([violation._asdict() for violation in violations])
    elif not violations:
        workers = counted(len(configs), "worker")
        blocks = counted(configs[0].num_blocks, "block")
        click.echo(f"{plan_file}: correct: {workers}, {blocks}, layout {placement.layout}")
    for violation in violations:
        say_on_stderr(f"kvplan: worker {violation.worker}: {violation.rule}: {violation.message}")
    return BROKEN if violations else FITS


def _read(data: bytes, source: str) -> Placement:
    """Read a plan's JSON. Raises BadInput, which names the place in the file."""
    if len(data) > MAX_FILE_BYTES:
        raise BadInput(f"{source} is larger than {MAX_FILE_BYTES >> 20} MiB, the limit for a plan")
    try:
        return msgspec.json.decode(data, type=PlanFile).placement
    except msgspec.ValidationError as error:
        raise BadInput(
            f"{source} has no placement to check: {error}. 'kvplan plan --json' writes one"
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadInput(f"{source} is not JSON: {error}") from None


def _configs(placement: Placement, source: str) -> tuple[list[Any], list[dict[str, Any]]]:
    """The config of each worker and its layers. Raises BadInput."""
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
        groups = [
            _group(group, specs, f"{where}.groups[{number}]")
            for number, group in enumerate(worker.groups)
        ]
        tensors: list[Any] = [*worker.tensors]
        configs.append(native.KVCacheConfig(worker.num_blocks, tensors, groups))
        layers.append(dict.fromkeys(worker.layers))
        if len(layers[-1]) < len(worker.layers):
            twice = Counter(worker.layers).most_common(1)[0][0]
            raise BadInput(f"{where}.layers: the layer {twice!r} is there more than once")
    return configs, layers


def _group(group: Group, specs: list[Any], where: str) -> native.KVCacheGroupSpec:
    for number in group.specs:
        if number >= len(specs):
            raise BadInput(f"{where}.specs: there is no spec {number}, only {len(specs)}")
    wanted = len(group.layer_names) if group.has_spec_per_layer else 1
    if len(group.specs) != wanted:
        raise BadInput(f"{where}.specs: has {len(group.specs)} specs where {wanted} belong")
    used: dict[str, Any] | None = None
    if group.has_spec_per_layer:
        used = {name: specs[n] for name, n in zip(group.layer_names, group.specs, strict=True)}
    try:
        spec = (
            specs[group.specs[0]]
            if used is None
            else native.UniformTypeKVCacheSpecs(block_size=group.block_size, kv_cache_specs=used)
        )
    except (ValueError, AssertionError) as error:
        raise BadInput(f"{where}: {error}") from None
    if group.block_size != spec.block_size:
        raise BadInput(
            f"{where}.block_size: {group.block_size} tokens, where its spec has {spec.block_size}"
        )
    return native.KVCacheGroupSpec(
        group.layer_names, spec, is_eagle_group=group.is_eagle_group, slices=group.slices
    )
