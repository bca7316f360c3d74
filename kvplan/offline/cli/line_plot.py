"""Lines over a numeric axis as an SVG: what ``kvplan sweep --plot`` draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, PLOT_HEIGHT = 960, 440
LEFT, RIGHT, TOP, BOTTOM = 90, 40, 88, 56
LEGEND_LINE = 20
#: Lines get these colours, the second time dashed, the third time dotted.
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#d62728", "#8c564b", "#17becf", "#7f7f7f")
DASHES = ("", "7 4", "2 3")
#: Letters of a line's name with which two stand side by side in the legend.
MAX_HALF = 56
MAX_LINES = len(COLOURS) * len(DASHES)


@dataclass(frozen=True)
class Axis:
    """A numeric axis from zero.

    Attributes:
        name: What it counts.
        words: A value as text.
        is_binary: Whether round values are powers of two (bytes, tokens of a context).
    """

    name: str
    words: Callable[[float], str]
    is_binary: bool = False

    def ticks(self, largest: float) -> list[float]:
        """Four to eight round values from zero to a little beyond the largest."""
        if largest <= 0:
            return [0, 1]
        base = 2.0 if self.is_binary else 10.0
        step = base ** math.floor(math.log(largest / 4, base))
        factors = (1, 2) if self.is_binary else (1, 2, 2.5, 5, 10)
        step *= next(f for f in (*factors, 4, 8, 16) if largest / (step * f) <= 8)
        return [step * i for i in range(math.ceil(largest / step - 1e-9) + 1)]


@dataclass(frozen=True)
class Line:
    """A named line; None where there is no value."""

    name: str
    points: Sequence[tuple[float, float | None]]


def draw_lines(title: str, subtitle: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Line]) -> str:
    """The plot with its legend below."""
    xs = x_axis.ticks(max((x for line in lines for x, _ in line.points), default=0))
    known = [y for line in lines for _, y in line.points if y is not None]
    ys = y_axis.ticks(max(known, default=0))
    columns = 2 if len(lines) > 1 and max(len(line.name) for line in lines) < MAX_HALF else 1
    height = PLOT_HEIGHT + LEGEND_LINE * math.ceil(len(lines) / columns) + 12

    def at_x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / xs[-1]

    def at_y(value: float) -> float:
        return PLOT_HEIGHT - BOTTOM - (PLOT_HEIGHT - TOP - BOTTOM) * value / ys[-1]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="Helvetica,Arial,DejaVu Sans,sans-serif" '
        'font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 24, title, size=16),
        _text(16, 44, subtitle),
        _text((LEFT + WIDTH - RIGHT) / 2, PLOT_HEIGHT - 14, x_axis.name, "middle"),
        _text(16, TOP - 18, y_axis.name),
    ]
    for value in ys:
        height_of_value = at_y(value)
        parts.append(f'<path d="M{LEFT} {height_of_value:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, height_of_value + 4, y_axis.words(value), "end"))
    for value in xs:
        parts.append(_text(at_x(value), PLOT_HEIGHT - BOTTOM + 18, x_axis.words(value), "middle"))
    parts.append(
        f'<path d="M{LEFT} {TOP}V{PLOT_HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#222" '
        'fill="none"/>'
    )
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        style = f'stroke="{colour}" fill="none" stroke-width="2"'
        style += f' stroke-dasharray="{dash}"' if dash else ""
        for run in _runs(line):
            path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in run)
            parts.append(f'<path class="line" d="M{path}" {style}/>')
            for x, y in run:
                hint = f"{line.name}: {x_axis.words(x)}, {y_axis.words(y)}"
                parts.append(
                    f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}">'
                    f"<title>{escape(hint)}</title></circle>"
                )
        column, row = number % columns, number // columns
        left = LEFT + column * (WIDTH - LEFT - RIGHT) / columns
        top = PLOT_HEIGHT + 8 + row * LEGEND_LINE
        parts.append(f'<path d="M{left:.1f} {top}h28" {style}/>')
        parts.append(_text(left + 36, top + 4, line.name))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _runs(line: Line) -> list[list[tuple[float, float]]]:
    """Stretches of a line without a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    style = f' text-anchor="{anchor}"' if anchor != "start" else ""
    style += f' font-size="{size}" font-weight="bold"' if size != 12 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#222"{style}>{escape(words)}</text>'
