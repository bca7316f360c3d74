"""What a block holds, group by group: the data behind ``kvplan map``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kvplan
from kvplan.kv_cache_config import layer_spec
from kvplan.offline.cli.spec_words import group_words, spec_words


@dataclass(frozen=True)
class Page:
    """One layer's page in a block of its group.

    Attributes:
        layer: The layer's name.
        label: Its number, or "" if it has none.
        kind: What it keeps.
        start: First byte in the block.
        content_bytes: Bytes that hold states.
        padding_bytes: Bytes behind them that hold nothing.
    """

    layer: str
    label: str
    kind: str
    start: int
    content_bytes: int
    padding_bytes: int


@dataclass(frozen=True)
class GroupMap:
    """A block of one group.

    Attributes:
        index: The group's number.
        kind: What its layers keep.
        block_size: Tokens of a block.
        pages: Its layers' pages, side by side from byte 0.
        slices: Blocks of the group in a block of the pool.
        slice_bytes: Bytes of a block of the group.
        unused_bytes: Bytes behind the last page that hold nothing.
        blocks: Blocks that one request holds of this group.
    """

    index: int
    kind: str
    block_size: int
    pages: list[Page]
    slices: int
    slice_bytes: int
    unused_bytes: int
    blocks: int


@dataclass(frozen=True)
class BlockMap:
    """A block of the pool as each group uses it; the worker is the limiting one."""

    bytes_per_block: int
    layout: str
    groups: list[GroupMap]


def block_map(plan: kvplan.Plan) -> BlockMap:
    """The map of a plan's limiting worker."""
    config = plan.kv_cache_configs[plan.limiting_worker]
    groups = []
    for index, group in enumerate(config.kv_cache_groups):
        pages: list[Page] = []
        start = 0
        for name in _in_order(group.layer_names, config, plan.config.kv_cache_layout):
            spec = layer_spec(group.kv_cache_spec, name)
            page, content = spec.page_size_bytes, content_bytes(spec)
            pages.append(
                Page(name, layer_label(name), spec_words(spec), start, content, page - content)
            )
            start += page
        groups.append(
            GroupMap(
                index=index,
                kind=group_words(group.kv_cache_spec) if group.layer_names else "no layer here",
                block_size=group.kv_cache_spec.block_size,
                pages=pages,
                slices=plan.groups[index].slices,
                slice_bytes=plan.groups[index].slice_bytes,
                unused_bytes=plan.groups[index].slice_bytes - start,
                blocks=plan.groups[index].pages_per_request,
            )
        )
    return BlockMap(plan.bytes_per_block, plan.config.kv_cache_layout, groups)


def _in_order(names: Sequence[str], config: Any, layout: str) -> list[str]:
    """Layers as their pages follow each other in a block; as they are named where none has one."""
    if not layout.startswith("B"):
        return list(names)
    first = {
        name: tensor.offset + index * tensor.layer_stride
        for tensor in config.kv_cache_tensors
        for index, name in enumerate(tensor.layers)
    }
    return sorted(names, key=first.__getitem__)


def content_bytes(spec: Any) -> int:
    """Bytes of a page that hold states."""
    if isinstance(spec, kvplan.specs.MambaSpec):
        return spec.replace(page_size_padded=None).page_size_bytes
    return getattr(spec, "unpadded_page_size_bytes", spec.page_size_bytes)


def layer_label(name: str) -> str:
    """A layer's number in its name, or ""."""
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return match.group(1) if match else ""
