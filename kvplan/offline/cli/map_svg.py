"""``kvplan map`` as an SVG: a bar for each group, padding hatched, below one another.

The first picture is what a block holds, the second where layers lie in the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from xml.sax.saxutils import escape

from kvplan.offline.cli.block_map import BlockMap, GroupMap, Page
from kvplan.offline.cli.buffer_map import BufferMap, Part
from kvplan.offline.cli.sizes import format_size

WIDTH = 1200
BAR_LEFT, BAR_WIDTH = 60, 720
TEXT_LEFT = BAR_LEFT + BAR_WIDTH + 16
TOP = 84
#: More groups than this get thinner bars.
MANY_GROUPS = 16
#: Letters of a group's kind that fit beside its bar.
MAX_KIND = 42
#: Slices of a block that can be told apart.
MAX_SLICES = 120
#: Kinds of cache get these colours, in the order in which they appear.
COLOURS = ("#7fb3d5", "#f5b97f", "#8fcf9f", "#c9a6dc", "#e6a0a0", "#b7c4cf", "#d8cf7e", "#8fd0cd")
NULL_BLOCK = "#dddddd"
#: Where numbers of layers do not fit side by side, one of so many pages has its number.
LABEL_STEPS = (2, 5, 10, 20, 50, 100)
#: Pages narrower than this are drawn without an edge, which would hide them.
THIN = 4
STYLE = (
    "text{font-family:Helvetica,Arial,DejaVu Sans,sans-serif;font-size:12px;fill:#222}"
    ".title{font-size:18px;font-weight:bold}.small{font-size:10px;fill:#444}"
    ".page,.part{stroke:#fff;stroke-width:1}.thin{stroke:none}.frame{fill:none;stroke:#555;stroke-width:1}"
)
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/>'
    '<line x1="0" y1="0" x2="0" y2="6" stroke="#999" stroke-width="2"/></pattern></defs>'
)


def draw_svg(title: str, subtitle: str, block: BlockMap, buffer: BufferMap | None = None) -> str:
    """The pictures, as tall as their groups need; the second only where there is a buffer."""
    kinds = dict.fromkeys(page.kind for group in block.groups for page in group.pages)
    colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    parts, bottom = _block_picture(title, subtitle, block, colours)
    if buffer is not None:
        more, bottom = _buffer_picture(block, buffer, colours, bottom + 24)
        parts += more
    parts += _legend(bottom, colours)
    height = bottom + 22 * ((len(colours) + 1 + 2) // 3) + 8
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        HATCH,
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _bar_and_gap(groups: int) -> tuple[int, int]:
    return (15, 4) if groups > MANY_GROUPS else (26, 10)


def _block_picture(
    title: str, subtitle: str, block: BlockMap, colours: dict[str, str]
) -> tuple[list[str], int]:
    """What a block holds; its lines and where it ends."""
    columns = "layers and what they keep; tokens of a block; blocks of a request"
    bar, gap = _bar_and_gap(len(block.groups))
    parts = [
        _text(16, 28, title, "title"),
        _text(16, 50, subtitle),
        _text(16, TOP - 8, "group", "small"),
        _text(TEXT_LEFT, TOP - 8, columns, "small"),
    ]
    for number, group in enumerate(block.groups):
        parts += _bar(group, TOP + number * (bar + gap), bar, block.bytes_per_block, colours)
    bottom = TOP + len(block.groups) * (bar + gap)
    parts += _axis(bottom + 6, block.bytes_per_block)
    return parts, bottom + 36


def _buffer_picture(
    block: BlockMap, buffer: BufferMap, colours: dict[str, str], top: int
) -> tuple[list[str], int]:
    """Where layers lie in the buffer; its lines and where it ends."""
    bar, gap = _bar_and_gap(len(buffer.rows))
    scale = BAR_WIDTH / buffer.window_bytes
    last = f"{buffer.num_blocks - 1:,}"
    parts = [_text(16, top + 28, "Where layers lie in the buffer", "title")]
    if buffer.is_layer_major:
        words = (
            f"A buffer of {format_size(buffer.size_bytes)}, layout {buffer.layout}: each layer's "
            f"part holds its pages of blocks 0 to {last}. All groups share the buffer."
        )
    else:
        words = (
            f"A buffer of {format_size(buffer.size_bytes)}, layout {buffer.layout}: blocks 0 to "
            f"{last}, each with the pages of its layers; the first are drawn."
        )
    parts.append(_text(16, top + 50, words))
    y = top + TOP
    for parts_of_row in [buffer.first_pages] if buffer.is_layer_major else []:
        parts += _first_pages(buffer, parts_of_row, colours, y - 8)
        y += 26 + 34
    parts.append(_text(16, y - 8, "group", "small"))
    if not buffer.is_layer_major:
        parts += _block_numbers(buffer, scale, y - 8)
    for number, row in enumerate(buffer.rows):
        line = y + number * (bar + gap)
        parts.append(_text(BAR_LEFT - 10, line + bar / 2 + 4, str(number), anchor="end"))
        parts.append(_rect(BAR_LEFT, line, BAR_WIDTH, bar, "url(#hatch)", "no layer's", "rest"))
        for part in row:
            parts += _part(part, line, bar, scale, colours)
        parts += _labels(row, line + bar / 2 + 3.5, scale)
        parts.append(_frame(BAR_LEFT, line, BAR_WIDTH, bar))
        parts.append(_text(TEXT_LEFT, line + bar / 2 + 4, _kind(block.groups[number].kind)))
        if not buffer.is_layer_major:
            parts += _boundaries(buffer, scale, line, bar)
    bottom = y + len(buffer.rows) * (bar + gap)
    parts += _axis(bottom + 6, buffer.window_bytes)
    return parts, bottom + 36


def _first_pages(
    buffer: BufferMap, pages: Iterable[Part], colours: dict[str, str], y: int
) -> list[str]:
    """One layer's part from its beginning: page after page, block 0 being the null block."""
    pages = list(pages)
    scale = BAR_WIDTH / (buffer.page_stride * len(pages))
    first = pages[0]
    words = f"the first pages of layer {first.label or first.layer}, by block"
    words += " (its first head)" if buffer.layout == "LHBNC" else ""
    parts = [_text(BAR_LEFT, y, words, "small")]
    for page in pages:
        x, top = BAR_LEFT + (page.start - first.start) * scale, y + 6
        is_null = page.block == 0
        fill = NULL_BLOCK if is_null else colours[page.kind]
        width = page.content_bytes * scale
        what = "null block" if is_null else page.kind
        hint = f"block {page.block}: {what}, {format_size(page.content_bytes)}"
        parts.append(_rect(x, top, width, 26, fill, hint, "part"))
        if page.padding_bytes:
            hint = f"{format_size(page.padding_bytes)} of padding"
            padding = page.padding_bytes * scale
            parts.append(_rect(x + width, top, padding, 26, "url(#hatch)", hint, "part"))
        label = "0: null" if is_null else f"{page.block:,}"
        parts.append(_text(x + width / 2, top + 17, label, "small", "middle"))
    parts.append(_frame(BAR_LEFT, y + 6, BAR_WIDTH, 26))
    rest = f"... to block {buffer.num_blocks - 1:,}, {format_size(buffer.page_stride)} each"
    parts.append(_text(TEXT_LEFT, y + 23, rest))
    return parts


def _block_numbers(buffer: BufferMap, scale: float, y: int) -> list[str]:
    parts = []
    for block in range(_blocks_drawn(buffer)):
        words = "block 0: null, holds nothing" if block == 0 else f"block {block}"
        middle = BAR_LEFT + (block + 0.5) * buffer.bytes_per_block * scale
        parts.append(_text(middle, y, words, "small", "middle"))
    rest = f"... to block {buffer.num_blocks - 1:,}, {format_size(buffer.bytes_per_block)} each"
    parts.append(_text(TEXT_LEFT, y, rest, "small"))
    return parts


def _boundaries(buffer: BufferMap, scale: float, line: float, bar: int) -> list[str]:
    parts = []
    for block in range(1, _blocks_drawn(buffer)):
        x = BAR_LEFT + block * buffer.bytes_per_block * scale
        parts.append(
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{line - 2}" y2="{line + bar + 2}" '
            'stroke="#222" stroke-width="1.5"/>'
        )
    return parts


def _blocks_drawn(buffer: BufferMap) -> int:
    return max(1, round(buffer.window_bytes / buffer.bytes_per_block))


def _part(part: Part, line: float, bar: int, scale: float, colours: dict[str, str]) -> list[str]:
    x, width = BAR_LEFT + part.start * scale, part.content_bytes * scale
    where = "all blocks" if part.block is None else f"block {part.block}"
    hint = f"{part.layer}, {where}: {part.kind}, from byte {part.start:,}"
    fill = NULL_BLOCK if part.block == 0 else colours[part.kind]
    parts = [_rect(x, line, width, bar, fill, hint, "part")]
    if part.padding_bytes:
        hint = f"{part.layer}: {format_size(part.padding_bytes)} of padding"
        padding = part.padding_bytes * scale
        parts.append(_rect(x + width, line, padding, bar, "url(#hatch)", hint, "part"))
    return parts


def _labels(pages: Sequence[Page | Part], baseline: float, scale: float) -> list[str]:
    """Numbers of layers on their pages: where they fit, or else of every second, fifth, ... one."""
    widest = max((page.content_bytes for page in pages), default=0)
    longest = max((len(page.label) for page in pages), default=0)
    step = 1
    if widest * scale < _label_width(longest):
        # Among the wide pages only; the others would be covered by the numbers.
        pages = [page for page in pages if 2 * page.content_bytes > widest]
        wanted = _label_width(longest) + 4
        step = next((n for n in LABEL_STEPS if n * widest * scale >= wanted), len(pages) + 1)
    parts = []
    for number, page in enumerate(pages):
        width = page.content_bytes * scale
        fits = width >= _label_width(len(page.label)) if step == 1 else number % step == 0
        if page.label and fits:
            x = BAR_LEFT + page.start * scale + width / 2
            parts.append(_text(x, baseline, page.label, "small", "middle"))
    return parts


def _all_fit(pages: Sequence[Page], scale: float) -> bool:
    widest = max((page.content_bytes for page in pages), default=0)
    return widest * scale >= _label_width(max((len(page.label) for page in pages), default=0))


def _label_width(letters: int) -> int:
    return 6 * letters + 3


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def _rect(
    x: float, y: float, width: float, height: float, fill: str, hint: str, style: str = "page"
) -> str:
    style += " thin" if width < THIN else ""
    return (
        f'<rect class="{style}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" '
        f'fill="{fill}"><title>{escape(hint)}</title></rect>'
    )


def _frame(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _kind(words: str) -> str:
    return words if len(words) <= MAX_KIND else words[: MAX_KIND - 3] + "..."


def _bar(
    group: GroupMap, top: int, bar: int, bytes_per_block: int, colours: dict[str, str]
) -> list[str]:
    scale = BAR_WIDTH / bytes_per_block
    middle = top + bar / 2 + 4
    parts = [_text(BAR_LEFT - 10, middle, str(group.index), anchor="end")]
    drawn = group if group.slices <= MAX_SLICES else _merged(group)
    for number in range(drawn.slices):
        parts += _slice(drawn, number, top, bar, scale, colours)
    parts.append(_frame(BAR_LEFT, top, BAR_WIDTH, bar))
    words = f"{len(group.pages)} x {_kind(group.kind)}; {group.block_size:,}; {group.blocks:,}"
    if group.slices > 1:
        words = f"{group.slices:,} slices of {words}"
    parts.append(_text(TEXT_LEFT, middle, words))
    return parts


def _slice(
    group: GroupMap, number: int, top: int, bar: int, scale: float, colours: dict[str, str]
) -> list[str]:
    """The pages of one slice and what is left of it; without slices, of the whole block."""
    parts = []
    start = number * group.slice_bytes
    pages = [replace(page, start=start + page.start) for page in group.pages]
    for page in pages:
        x, width = BAR_LEFT + page.start * scale, page.content_bytes * scale
        hint = f"{page.layer}: {page.kind}, {format_size(page.content_bytes)}"
        parts.append(_rect(x, top, width, bar, colours[page.kind], hint))
        if page.padding_bytes:
            hint = f"{page.layer}: {format_size(page.padding_bytes)} of padding"
            padding = page.padding_bytes * scale
            parts.append(_rect(x + width, top, padding, bar, "url(#hatch)", hint))
    # Numbers of every so-manieth layer would lie across the cuts.
    if group.slices == 1 or _all_fit(pages, scale):
        parts += _labels(pages, top + bar / 2 + 3.5, scale)
    if group.unused_bytes > 0:
        end = start + group.slice_bytes
        hint = f"padding: {format_size(group.unused_bytes)} hold nothing"
        x, width = BAR_LEFT + (end - group.unused_bytes) * scale, group.unused_bytes * scale
        parts.append(_rect(x, top, width, bar, "url(#hatch)", hint))
    if number > 0:
        x = BAR_LEFT + start * scale
        parts.append(
            f'<line class="cut" x1="{x:.2f}" x2="{x:.2f}" y1="{top}" y2="{top + bar}" '
            'stroke="#222"/>'
        )
    return parts


def _merged(group: GroupMap) -> GroupMap:
    """Slices too narrow to be told apart as one, each layer's pages in one piece."""
    start = 0
    pages = []
    for page in group.pages:
        content, padding = page.content_bytes * group.slices, page.padding_bytes * group.slices
        pages.append(replace(page, start=start, content_bytes=content, padding_bytes=padding))
        start += content + padding
    size, unused = group.slice_bytes * group.slices, group.unused_bytes * group.slices
    return replace(group, slices=1, slice_bytes=size, pages=pages, unused_bytes=unused)


def _axis(y: float, total_bytes: int) -> list[str]:
    parts = []
    for quarter in range(5):
        x = BAR_LEFT + BAR_WIDTH * quarter / 4
        words = "0" if quarter == 0 else format_size(total_bytes * quarter / 4)
        anchor = {0: "start", 4: "end"}.get(quarter, "middle")
        parts.append(_text(x, y + 8, words, "small", anchor))
    return parts


def _legend(top: float, colours: dict[str, str]) -> list[str]:
    parts = []
    for number, (kind, fill) in enumerate([*colours.items(), ("padding", "url(#hatch)")]):
        x, y = BAR_LEFT + 360 * (number % 3), top + 22 * (number // 3)
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{fill}" stroke="#888"/>')
        parts.append(_text(x + 20, y + 11, kind))
    return parts
