"""``kvplan map`` as an SVG: a bar for each group, padding hatched, below one another.

The first picture is what a block holds, the second where layers lie in the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from xml.sax.saxutils import escape

from kvplan.offline.cli.map_data import BlockMap, BufferMap, GroupMap, Page, Part
from kvplan.offline.cli.pictures import themed
from kvplan.offline.cli.sizes import format_size

WIDTH = 1200
BAR_LEFT, BAR_WIDTH = 60, 720
TEXT_LEFT = BAR_LEFT + BAR_WIDTH + 16
TOP = 84
#: More groups than this get thinner bars.
MANY_GROUPS = 16
#: Letters of a group's kind that fit beside its bar.
MAX_KIND = 42
#: A kind of cache has the same colour in every picture: Okabe and Ito's, which keep apart under
#: every kind of colour blindness. By the first words of its name.
KIND_COLOURS = {
    "full attention": "#0072B2",
    "sliding window": "#E69F00",
    "MLA": "#009E73",
    "state": "#CC79A7",
    "chunks": "#56B4E9",
    "": "#D55E00",
}
#: The first, second, third and later kind of a colour; text stays readable on all of them.
OPACITIES = (0.6, 0.38, 0.22)
#: What holds nothing: the null block.
NULL_BLOCK = ("currentColor", 0.15)
#: Where numbers of layers do not fit side by side, one of so many pages has its number.
LABEL_STEPS = (2, 5, 10, 20, 50, 100)
#: Pages narrower than this are drawn as one with their like, the padding of all below.
THIN = 4
STYLE = (
    "text{font-family:Helvetica,Arial,DejaVu Sans,sans-serif;font-size:12px;fill:currentColor}"
    ".title{font-size:18px;font-weight:bold}.small{font-size:10px}"
    ".page,.part{stroke:currentColor;stroke-opacity:.5;stroke-width:.5}"
    ".frame{fill:none;stroke:currentColor;stroke-opacity:.7}"
)
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" stroke="currentColor" '
    'stroke-opacity=".5" stroke-width="2"/></pattern></defs>'
)
PADDING = ("url(#hatch)", 1.0)

#: A colour and its opacity.
Fill = tuple[str, float]


def draw_svg(title: str, subtitle: str, block: BlockMap, buffer: BufferMap | None = None) -> str:
    """The pictures, as tall as their groups need; the second only where there is a buffer."""
    kinds = dict.fromkeys(page.kind for group in block.groups for page in group.pages)
    colours = fills(kinds)
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
    ]
    return themed("\n".join([*head, *parts, "</svg>"]) + "\n")


def fills(kinds: Iterable[str]) -> dict[str, Fill]:
    """The colour of each kind, and how strong: several of a colour differ in that."""
    found: dict[str, Fill] = {}
    used = dict.fromkeys(KIND_COLOURS.values(), 0)
    for kind in kinds:
        colour = next(c for word, c in KIND_COLOURS.items() if word in kind.partition(" of ")[0])
        found[kind] = (colour, OPACITIES[min(used[colour], len(OPACITIES) - 1)])
        used[colour] += 1
    return found


def _bar_and_gap(groups: int) -> tuple[int, int]:
    return (15, 4) if groups > MANY_GROUPS else (26, 10)


def _block_picture(
    title: str, subtitle: str, block: BlockMap, colours: dict[str, Fill]
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
    block: BlockMap, buffer: BufferMap, colours: dict[str, Fill], top: int
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
        parts.append(f'<g class="row" data-group="{number}">')
        parts.append(_text(BAR_LEFT - 10, line + bar / 2 + 4, str(number), anchor="end"))
        for start, end in _gaps(row, buffer.window_bytes):
            x, width = BAR_LEFT + start * scale, (end - start) * scale
            parts.append(_rect(x, line, width, bar, PADDING, "no layer's", "rest"))
        for run in _runs(row, scale):
            parts += _pages(run, line, bar, scale, colours, "part")
        parts += _labels(row, line + bar / 2 + 3.5, scale)
        parts.append(_frame(BAR_LEFT, line, BAR_WIDTH, bar))
        parts.append(_text(TEXT_LEFT, line + bar / 2 + 4, _kind(block.groups[number].kind)))
        if not buffer.is_layer_major:
            parts += _boundaries(buffer, scale, line, bar)
        parts.append("</g>")
    bottom = y + len(buffer.rows) * (bar + gap)
    parts += _axis(bottom + 6, buffer.window_bytes)
    return parts, bottom + 36


def _gaps(row: Sequence[Part], window_bytes: int) -> Iterator[tuple[int, int]]:
    """Bytes of the drawn part of the buffer that belong to no layer of a group."""
    at = 0
    for part in row:
        if part.start > at:
            yield at, part.start
        at = max(at, part.start + part.content_bytes + part.padding_bytes)
    if at < window_bytes:
        yield at, window_bytes


def _first_pages(
    buffer: BufferMap, pages: Iterable[Part], colours: dict[str, Fill], y: int
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
            parts.append(_rect(x + width, top, padding, 26, PADDING, hint, "part"))
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
            'stroke="currentColor" stroke-width="1.5"/>'
        )
    return parts


def _blocks_drawn(buffer: BufferMap) -> int:
    return max(1, round(buffer.window_bytes / buffer.bytes_per_block))


def _runs(pages: Sequence[Page], scale: float) -> Iterator[list[Page]]:
    """Pages one by one; those too thin to be seen, together with what is alike beside them."""
    run: list[Page] = []
    for page in pages:
        size = page.content_bytes + page.padding_bytes
        if run and (size * scale >= THIN or not _follows(run[-1], page)):
            yield run
            run = []
        run.append(page)
        if size * scale >= THIN:
            yield run
            run = []
    if run:
        yield run


def _follows(last: Page, page: Page) -> bool:
    """Whether a page begins where one of the same shape ends."""
    end = last.start + last.content_bytes + last.padding_bytes
    return (end, last.kind, last.content_bytes, last.padding_bytes, _is_null(last)) == (
        page.start,
        page.kind,
        page.content_bytes,
        page.padding_bytes,
        _is_null(page),
    )


def _is_null(page: Page) -> bool:
    return isinstance(page, Part) and page.block == 0


def _pages(
    run: Sequence[Page],
    top: float,
    bar: int,
    scale: float,
    colours: dict[str, Fill],
    style: str,
) -> list[str]:
    """The rectangles of one page, padding at its right; of several, padding below them all."""
    first = run[0]
    content = sum(page.content_bytes for page in run)
    padding = sum(page.padding_bytes for page in run)
    what = f"{first.kind}, {format_size(content)}"
    where = f", from byte {first.start:,}" if isinstance(first, Part) else ""
    if isinstance(first, Part):
        where = (", all blocks" if first.block is None else f", block {first.block}") + where
    layers = first.layer if len(run) == 1 else f"{first.layer} to {run[-1].layer}, {len(run)} pages"
    fill = NULL_BLOCK if _is_null(first) else colours[first.kind]
    x = BAR_LEFT + first.start * scale
    whole = content + padding
    hints = f"{layers}: {what}{where}", f"{layers}: {format_size(padding)} of padding"
    if len(run) == 1:
        parts = [_rect(x, top, content * scale, bar, fill, hints[0], style, first.label)]
        if padding:
            right = x + content * scale
            parts.append(_rect(right, top, padding * scale, bar, PADDING, hints[1], style))
        return parts
    height = bar * content / whole
    parts = [_rect(x, top, whole * scale, height, fill, hints[0], style, first.label)]
    if padding:
        below = _rect(x, top + height, whole * scale, bar - height, PADDING, hints[1], style)
        parts.append(below)
    return parts


def _labels(pages: Sequence[Page], baseline: float, scale: float) -> list[str]:
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
    x: float,
    y: float,
    width: float,
    height: float,
    fill: Fill,
    hint: str,
    style: str = "page",
    layer: str = "",
) -> str:
    colour, opacity = fill
    shown = f' fill-opacity="{opacity:g}"' if opacity != 1 else ""
    numbered = f' data-layer="{layer}"' if layer else ""
    return (
        f'<rect class="{style}"{numbered} x="{x:.2f}" y="{y:.4g}" width="{width:.2f}" '
        f'height="{height:.4g}" fill="{colour}"{shown}><title>{escape(hint)}</title></rect>'
    )


def _frame(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _kind(words: str) -> str:
    return words if len(words) <= MAX_KIND else words[: MAX_KIND - 3] + "..."


def _bar(
    group: GroupMap, top: int, bar: int, bytes_per_block: int, colours: dict[str, Fill]
) -> list[str]:
    scale = BAR_WIDTH / bytes_per_block
    middle = top + bar / 2 + 4
    parts = [f'<g class="row" data-group="{group.index}">']
    parts.append(_text(BAR_LEFT - 10, middle, str(group.index), anchor="end"))
    drawn = group if group.slice_bytes * scale >= THIN else _merged(group)
    for number in range(drawn.slices):
        parts += _slice(drawn, number, top, bar, scale, colours)
    parts.append(_frame(BAR_LEFT, top, BAR_WIDTH, bar))
    words = f"{len(group.pages)} x {_kind(group.kind)}; {group.block_size:,}; {group.blocks:,}"
    if group.slices > 1:
        words = f"{group.slices:,} slices of {words}"
    parts.append(_text(TEXT_LEFT, middle, words))
    parts.append("</g>")
    return parts


def _slice(
    group: GroupMap, number: int, top: int, bar: int, scale: float, colours: dict[str, Fill]
) -> list[str]:
    """The pages of one slice and what is left of it; without slices, of the whole block."""
    parts = []
    start = number * group.slice_bytes
    pages = [replace(page, start=start + page.start) for page in group.pages]
    for run in _runs(pages, scale):
        parts += _pages(run, top, bar, scale, colours, "page")
    # Numbers of some layers only would lie across the cuts.
    if group.slices == 1 or _all_fit(pages, scale):
        parts += _labels(pages, top + bar / 2 + 3.5, scale)
    if group.unused_bytes > 0:
        end = start + group.slice_bytes
        hint = f"padding: {format_size(group.unused_bytes)} hold nothing"
        x, width = BAR_LEFT + (end - group.unused_bytes) * scale, group.unused_bytes * scale
        parts.append(_rect(x, top, width, bar, PADDING, hint))
    if number > 0:
        x = BAR_LEFT + start * scale
        parts.append(
            f'<line class="cut" x1="{x:.2f}" x2="{x:.2f}" y1="{top}" y2="{top + bar}" '
            'stroke="currentColor"/>'
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


def _legend(top: float, colours: dict[str, Fill]) -> list[str]:
    parts = []
    for number, (kind, fill) in enumerate([*colours.items(), ("padding", PADDING)]):
        x, y = BAR_LEFT + 360 * (number % 3), top + 22 * (number // 3)
        parts.append(_rect(x, y, 14, 14, fill, kind, "part"))
        parts.append(_text(x + 20, y + 11, kind))
    return parts
