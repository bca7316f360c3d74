"""Draws planning time against workers: an SVG of its own making, or a PNG with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from kvplan.bench.measure import show_seconds
from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.pictures import check_folder

if TYPE_CHECKING:
    from kvplan.bench import Report

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 40, 50
COLOURS = {"vllm": "darkorange", "drop_in": "seagreen", "native": "steelblue", "cpp": "black"}
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")
TITLE = "Planning an engine: CPU time against workers"

Curve = tuple[str, str, list[tuple[int, float]]]


def check(path: Path, works: Collection[str]) -> None:
    """Refuse a drawing that could not be made, before anything is measured. Raises `BadInput`."""
    if path.suffix not in (".svg", ".png"):
        raise BadInput(
            f"--plot draws .svg and .png files, not {path.suffix or 'one without suffix'}"
        )
    if path.suffix == ".png":
        _figure_class()
    check_folder(path)
    if "planning" not in works:
        raise BadInput("--plot draws planning times; there are none")


def draw(path: Path, report: Report) -> None:
    """Write the drawing into `path`, whose suffix says how. Raises `BadInput`."""
    check(path, {row.work for row in report.rows})
    curves = curves_of(report)
    if not curves:
        raise BadInput("--plot draws planning times; there are none")
    if path.suffix == ".svg":
        path.write_text(svg(curves), encoding="utf-8")
    else:
        _png(path, curves)


def curves_of(report: Report) -> list[Curve]:
    """(scenario, side, points of workers and seconds) of the sides that have a colour."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in report.rows:
        if row.work == "planning" and row.workers is not None:
            for side in COLOURS:
                if side in row.seconds:
                    point = (row.workers, row.seconds[side])
                    curves.setdefault((row.name, side), []).append(point)
    return [(name, side, sorted(points)) for (name, side), points in curves.items()]


def svg(curves: list[Curve]) -> str:
    """Both axes are logarithmic; a colour for each side, a dash for each scenario."""
    workers = [n for _, _, points in curves for n, _ in points]
    times = [s for _, _, points in curves for _, s in points]
    low_x, high_x = _decades(workers, 2)
    low_y, high_y = _decades(times, 10)

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(n) - low_x) / (high_x - low_x)

    def y(s: float) -> float:
        return (
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(s) - low_y) / (high_y - low_y)
        )

    def text(px: float, py: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 20, TITLE),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "workers"),
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="black" fill="none"/>',
    ]
    for exponent in range(low_y, high_y + 1):
        py = y(10.0**exponent)
        parts.append(text(LEFT - 8, py + 4, show_seconds(10.0**exponent), "end"))
        parts.append(f'<path d="M{LEFT} {py:.1f}H{WIDTH - RIGHT}" stroke="gainsboro"/>')
    for n in sorted(set(workers)):
        parts.append(text(x(n), HEIGHT - BOTTOM + 16, f"{n:,}"))
    names = list(dict.fromkeys(name for name, _, _ in curves))
    for name, side, points in curves:
        path = "L".join(f"{x(n):.1f} {y(s):.1f}" for n, s in points)
        dash = DASHES[names.index(name) % len(DASHES)]
        parts.append(
            f'<path d="M{path}" stroke="{COLOURS[side]}" fill="none" stroke-dasharray="{dash}"/>'
        )
        parts += [
            f'<circle cx="{x(n):.1f}" cy="{y(s):.1f}" r="3" fill="{COLOURS[side]}"/>'
            for n, s in points
        ]
    begin = WIDTH - RIGHT + 16
    legend = [(side, COLOURS[side], "") for side in COLOURS if any(c[1] == side for c in curves)]
    legend += [(name, "grey", DASHES[i % len(DASHES)]) for i, name in enumerate(names)]
    for i, (words, colour, dash) in enumerate(legend):
        py = TOP + 18 * i
        parts.append(
            f'<path d="M{begin} {py}h26" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        parts.append(text(begin + 32, py + 4, words, "start"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _decades(values: list[int] | list[float], base: int) -> tuple[int, int]:
    """The powers of `base` around the values, at least one apart."""
    low = math.floor(math.log(min(values), base))
    high = math.ceil(math.log(max(values), base))
    return low, max(high, low + 1)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found]
    except ImportError:
        raise BadInput("--plot needs matplotlib for .png files; .svg needs nothing") from None
    return Figure


def _png(path: Path, curves: list[Curve]) -> None:
    figure = _figure_class()(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    styles = ("-", "--", ":", "-.")
    names = list(dict.fromkeys(name for name, _, _ in curves))
    for name, side, points in curves:
        axes.loglog(
            *zip(*points, strict=True),
            styles[names.index(name) % len(styles)],
            color=COLOURS[side],
            marker=".",
            label=f"{name}, {side}",
        )
    axes.set_xlabel("workers")
    axes.set_ylabel("seconds")
    axes.set_title(TITLE)
    axes.legend(fontsize="x-small")
    figure.savefig(path)
