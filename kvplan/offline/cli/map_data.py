"""What a block holds, and where layers lie in the buffer: the data behind ``kvplan map``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import kvplan
from kvplan.kv_cache_config import layer_spec
from kvplan.offline.cli.plan_facts import group_words, spec_words
from kvplan.specs import KVCacheLayout


@dataclass(frozen=True)
class Page:
    """One layer's page in a block of its group.

    Attributes:
        layer: The layer's name.
        label: Its number, or "" if it has none.
        kind: What it keeps.
        start: First byte, in the block or in the buffer.
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


#: Blocks of the pool that are drawn where blocks are the outermost axis.
DRAWN_BLOCKS = 2
#: Pages that are drawn of one layer's part where layers are the outermost axis.
DRAWN_PAGES = 8


@dataclass(frozen=True)
class Part(Page):
    """Consecutive bytes of the buffer that belong to one layer; all content where it spans blocks.

    Attributes:
        block: The pool's block that it belongs to; None where it spans all blocks.
    """

    block: int | None = None


@dataclass(frozen=True)
class BufferMap:
    """The buffer of the limiting worker.

    Attributes:
        size_bytes: Bytes of the buffer.
        num_blocks: Blocks of the pool, the null block among them.
        bytes_per_block: Bytes of a block over all layers.
        layout: The KV cache layout.
        is_layer_major: Whether a layer's pages of all blocks lie together; else a block's pages do.
        window_bytes: How much of the buffer the rows show.
        rows: Parts of each group, in order of their first byte.
        first_pages: The first pages of one layer's part; empty where blocks are outermost.
        page_stride: Bytes from one of them to the next.
    """

    size_bytes: int
    num_blocks: int
    bytes_per_block: int
    layout: str
    is_layer_major: bool
    window_bytes: int
    rows: list[list[Part]]
    first_pages: list[Part]
    page_stride: int


def buffer_map(plan: kvplan.Plan) -> BufferMap:
    """The map of a plan's limiting worker."""
    config = plan.kv_cache_configs[plan.limiting_worker]
    layout = plan.config.kv_cache_layout
    is_layer_major = layout.startswith("L")
    size = max(tensor.size for tensor in config.kv_cache_tensors)
    placed = {
        name: (tensor, index)
        for tensor in config.kv_cache_tensors
        for index, name in enumerate(tensor.layers)
    }
    rows: list[list[Part]] = []
    first_pages: list[Part] = []
    page_stride = 0
    for group in config.kv_cache_groups:
        row: list[Part] = []
        for name in group.layer_names:
            spec = layer_spec(group.kv_cache_spec, name)
            page = _Page(name, spec, *placed[name], layout, plan.num_blocks, group.slices)
            if is_layer_major:
                row.append(page.whole_part())
                if not first_pages:
                    page_stride = page.tensor.block_stride
                    first_pages = [page.pieces(b)[0] for b in range(page.drawn(DRAWN_PAGES))]
            else:
                ids = min(plan.num_blocks, DRAWN_BLOCKS) * group.slices
                row += [part for block in range(ids) for part in page.parts_of(block)]
        rows.append(sorted(row, key=lambda part: part.start))
    window = size if is_layer_major else min(size, DRAWN_BLOCKS * plan.bytes_per_block)
    return BufferMap(
        size_bytes=size,
        num_blocks=plan.num_blocks,
        bytes_per_block=plan.bytes_per_block,
        layout=layout,
        is_layer_major=is_layer_major,
        window_bytes=window,
        rows=rows,
        first_pages=first_pages,
        page_stride=page_stride,
    )


class _Page:
    """A layer's pages, by the strides of its tensor."""

    def __init__(
        self, name: str, spec: Any, tensor: Any, index: int, layout: str, blocks: int, slices: int
    ) -> None:
        self.name, self.kind, self.tensor = name, spec_words(spec), tensor
        self.ids, self.slices = blocks * slices, slices
        self.start = tensor.offset + index * tensor.layer_stride
        apart = not KVCacheLayout[layout].is_block_compact
        self.heads = heads = getattr(spec, "num_kv_heads", 1) if apart else 1
        # Heads apart leave no room for padding between them.
        content = content_bytes(spec) if heads == 1 else spec.page_size_bytes
        self.content = content // heads
        self.padding = spec.page_size_bytes // heads - self.content
        self.head_stride = (
            tensor.block_stride * self.ids
            if layout == "LHBNC"
            else tensor.layer_stride * len(tensor.layers)
        )

    def drawn(self, most: int) -> int:
        """Pages to draw, of at most so many."""
        return min(self.ids, most)

    def pieces(self, block: int) -> list[Part]:
        """The page of one block id: one piece, or one for each head."""
        return [
            Part(
                layer=self.name,
                label=layer_label(self.name),
                kind=self.kind,
                block=block // self.slices,
                start=self.start + block * self.tensor.block_stride + head * self.head_stride,
                content_bytes=self.content,
                padding_bytes=self.padding,
            )
            for head in range(self.heads)
        ]

    def parts_of(self, block: int) -> list[Part]:
        """What is drawn of a page where blocks are outermost.

        Where heads are apart, those of a tensor's layers take turns in pieces too small to draw;
        its first layer stands for all of them.
        """
        pieces = self.pieces(block)
        if self.heads == 1:
            return pieces
        layers = len(self.tensor.layers)
        if self.name != self.tensor.layers[0]:
            return []
        return [
            replace(
                pieces[0],
                layer=f"{layers} layers in turn, head by head",
                label=f"{layers} layers in turn, head by head",
                content_bytes=self.head_stride * self.heads,
            )
        ]

    def whole_part(self) -> Part:
        """From the first byte of the first block to the last byte of the last."""
        last = self.pieces(self.ids - 1)[-1]
        end = last.start + last.content_bytes + last.padding_bytes
        label = layer_label(self.name)
        return Part(self.name, label, self.kind, self.start, end - self.start, 0)
