"""``kvplan map`` as an SVG: a bar for each group, as wide as a block, padding hatched."""

from __future__ import annotations

from xml.sax.saxutils import escape

from kvplan.cli.block_map import BlockMap, GroupMap, Page
from kvplan.cli.sizes import format_size

WIDTH = 1200
BAR_LEFT, BAR_WIDTH = 60, 720
TEXT_LEFT = BAR_LEFT + BAR_WIDTH + 16
TOP = 84
#: Letters of a group's kind that fit beside its bar.
MAX_KIND = 42
#: Kinds of cache get these colours, in the order in which they appear.
COLOURS = ("#7fb3d5", "#f5b97f", "#8fcf9f", "#c9a6dc", "#e6a0a0", "#b7c4cf", "#d8cf7e", "#8fd0cd")
STYLE = (
    "text{font-family:Helvetica,Arial,DejaVu Sans,sans-serif;font-size:12px;fill:#222}"
    ".title{font-size:18px;font-weight:bold}.small{font-size:10px;fill:#444}"
    ".page{stroke:#fff;stroke-width:1}.frame{fill:none;stroke:#555;stroke-width:1}"
)


def draw_svg(title: str, subtitle: str, block: BlockMap) -> str:
    """The picture, as tall as its groups need."""
    columns = "layers and what they keep; tokens of a block; blocks of a request"
    many = len(block.groups) > 16
    bar, gap = (15, 4) if many else (26, 10)
    kinds = list(dict.fromkeys(page.kind for group in block.groups for page in group.pages))
    colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    legend_top = TOP + len(block.groups) * (bar + gap) + 36
    height = legend_top + 22 * ((len(kinds) + 1 + 2) // 3) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/>'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="#999" stroke-width="2"/></pattern></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 28, title, "title"),
        _text(16, 50, subtitle),
        _text(16, TOP - 8, "group", "small"),
        _text(TEXT_LEFT, TOP - 8, columns, "small"),
    ]
    for number, group in enumerate(block.groups):
        parts += _bar(group, TOP + number * (bar + gap), bar, block.bytes_per_block, colours)
    parts += _axis(legend_top - 30, block.bytes_per_block)
    parts += _legend(legend_top, colours)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str, hint: str) -> str:
    return (
        f'<rect class="page" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" '
        f'fill="{fill}"><title>{escape(hint)}</title></rect>'
    )


def _bar(
    group: GroupMap, top: int, bar: int, bytes_per_block: int, colours: dict[str, str]
) -> list[str]:
    scale = BAR_WIDTH / bytes_per_block
    middle = top + bar / 2 + 4
    parts = [_text(BAR_LEFT - 10, middle, str(group.index), anchor="end")]
    for page in group.pages:
        parts += _page(page, top, bar, scale, colours[page.kind])
    if group.unused_bytes > 0:
        start = bytes_per_block - group.unused_bytes
        hint = f"padding: {format_size(group.unused_bytes)} hold nothing"
        x, width = BAR_LEFT + start * scale, group.unused_bytes * scale
        parts.append(_rect(x, top, width, bar, "url(#hatch)", hint))
    parts.append(
        f'<rect class="frame" x="{BAR_LEFT}" y="{top}" width="{BAR_WIDTH}" height="{bar}"/>'
    )
    kind = group.kind if len(group.kind) <= MAX_KIND else group.kind[: MAX_KIND - 3] + "..."
    words = f"{len(group.pages)} x {kind}; {group.block_size:,}; {group.blocks:,}"
    parts.append(_text(TEXT_LEFT, middle, words))
    return parts


def _page(page: Page, top: int, bar: int, scale: float, colour: str) -> list[str]:
    x, width = BAR_LEFT + page.start * scale, page.content_bytes * scale
    hint = f"{page.layer}: {page.kind}, {format_size(page.content_bytes)}"
    parts = [_rect(x, top, width, bar, colour, hint)]
    if page.padding_bytes:
        hint = f"{page.layer}: {format_size(page.padding_bytes)} of padding"
        parts.append(_rect(x + width, top, page.padding_bytes * scale, bar, "url(#hatch)", hint))
    if page.label and width >= 6 * len(page.label) + 4:
        parts.append(_text(x + width / 2, top + bar / 2 + 3.5, page.label, "small", "middle"))
    return parts


def _axis(y: float, bytes_per_block: int) -> list[str]:
    parts = []
    for quarter in range(5):
        x = BAR_LEFT + BAR_WIDTH * quarter / 4
        words = "0" if quarter == 0 else format_size(bytes_per_block * quarter / 4)
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
