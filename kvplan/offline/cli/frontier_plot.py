"""Draws the curve of groups against bytes of a request as an SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from kvplan.offline.cli.line_plot import Axis

if TYPE_CHECKING:
    from kvplan import Frontier, GroupingPoint, SlicedPoint

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
GIB = 1 << 30
GROUPS_AXIS = Axis("groups", "{:.0f}".format)
BYTES_AXIS = Axis("GiB", "{:g}".format)


def svg(title: str, curve: Frontier, sliced: SlicedPoint | None = None) -> str:
    """The curve as an SVG document, the sliced point beside it."""
    points: list[GroupingPoint | SlicedPoint] = [*_all_points(curve)]
    if sliced is not None:
        points.append(sliced)
    most_groups = max(p.num_groups for p in points)
    sizes = [p.request_bytes / GIB for p in points]
    bound = curve.lower_bound_bytes / GIB
    # The curve starts steeply; what lies far above the other points would flatten them.
    top = min(max(sizes), 4 * min(sizes)) * 1.05

    def x(groups: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * groups / (most_groups * 1.05)

    def y(gib: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(gib, top) / top

    def text(px: float, py: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    def label(px: float, py: float, words: str) -> str:
        is_right = px > WIDTH * 0.8
        return text(px - 8 if is_right else px + 8, py - 8, words, "end" if is_right else "start")

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 20, f"{title}: one request of {curve.reference_model_len:,} tokens"),
        text(WIDTH / 2, HEIGHT - 12, GROUPS_AXIS.name),
        text(LEFT - 8, TOP - 8, BYTES_AXIS.name, "end"),
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="black" fill="none"/>',
    ]
    for gib in BYTES_AXIS.ticks(top):
        if gib <= top:
            parts.append(text(LEFT - 8, y(gib) + 4, BYTES_AXIS.words(gib), "end"))
    for groups in GROUPS_AXIS.ticks(most_groups):
        if groups <= most_groups and groups == int(groups):
            parts.append(text(x(groups), HEIGHT - BOTTOM + 16, GROUPS_AXIS.words(groups)))
    parts.append(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(bound):.1f}" y2="{y(bound):.1f}" '
        'stroke="grey" stroke-dasharray="4 4"/>'
    )
    parts.append(text(LEFT + 6, y(bound) + 14, "no padding", "start"))
    # A step for each point: with a few groups more, nothing changes until the next.
    steps = ""
    for p in curve.points:
        px, py = x(p.num_groups), y(p.request_bytes / GIB)
        steps += f"H{px:.1f}V{py:.1f}" if steps else f"M{px:.1f} {py:.1f}"
    parts.append(f'<path d="{steps}H{WIDTH - RIGHT}" stroke="steelblue" fill="none"/>')
    for p in curve.points:
        parts.append(
            f'<circle cx="{x(p.num_groups):.1f}" cy="{y(p.request_bytes / GIB):.1f}" r="3.5" '
            'fill="steelblue"/>'
        )
    chosen = curve.chosen
    if curve.vllm is not None:
        px, py = x(curve.vllm.num_groups), y(curve.vllm.request_bytes / GIB)
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="darkorange"/>')
        words = "vLLM, compact" if chosen.is_vllm else "vLLM"
        parts.append(label(px, py, words))
    if sliced is not None:
        px, py = x(sliced.num_groups), y(sliced.request_bytes / GIB)
        parts.append(
            f'<rect x="{px - 5:.1f}" y="{py - 5:.1f}" width="10" height="10" fill="seagreen" '
            f'transform="rotate(45 {px:.1f} {py:.1f})"/>'
        )
        # Below the point, since the curve's own points lie above it.
        parts.append(text(px, py + 22, "sliced"))
    px, py = x(chosen.num_groups), y(chosen.request_bytes / GIB)
    parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="7" stroke="steelblue" fill="none"/>')
    if not chosen.is_vllm:
        parts.append(label(px, py, "compact"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _all_points(curve: Frontier) -> list[GroupingPoint]:
    return [*curve.points, *([curve.vllm] if curve.vllm is not None else [])]
