"""Pictures: written as .svg, .html or .png; and charts, drawn by matplotlib.

A chart's colours keep apart under every kind of colour blindness, markers and dashes say the same
again, and an SVG follows its reader's light or dark mode.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.offline.cli.failures import BadInput, counted
from kvplan.offline.cli.sizes import format_size

if TYPE_CHECKING:
    from kvplan import Frontier, SlicedPoint
    from kvplan.offline.cli.log_report import LogReport

SUFFIXES = (".svg", ".html", ".png")
HELP = "a .svg, a .html that needs no network, or (pip install cairosvg) a .png"
CHART_HELP = "a .svg, .html or .png, by matplotlib"
#: Text and ground follow the reader's light or dark mode; a part without a colour is in the text's.
THEME = (
    "svg{color:#222;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#e6e6e6;background:#161616}}"
)


def check_picture(path: Path, *, by_matplotlib: bool = False) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput(f"{path}: the name of a picture must end in {', '.join(SUFFIXES)}")
    if suffix == ".png" and not by_matplotlib:
        _cairosvg(path)
    if not path.parent.is_dir():
        raise BadInput(f"{path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{path}: cannot be written")


def themed(svg: str) -> str:
    """An SVG without colours of text and ground, with those of the reader's mode."""
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}<style>{THEME}</style>{svg[end:]}"


def write_svg(path: Path, title: str, svg: str, script: str = "") -> None:
    """Write an SVG in the format that the file's name says.

    Args:
        path: The file.
        title: What a page is called.
        svg: The picture.
        script: What stands below it on a page of its own.

    Raises:
        BadInput: If the format is unknown, or its package is not installed.
    """
    check_picture(path)
    suffix = path.suffix.lower()
    if suffix == ".svg":
        path.write_text(svg, encoding="utf-8")
    elif suffix == ".html":
        path.write_text(_html(title, svg, script), encoding="utf-8")
    else:
        # cairo knows no mode, and no text colour of a reader.
        light = svg.replace("currentColor", "#222").replace(THEME, "svg{background:#fff}")
        made = _cairosvg(path).svg2png(bytestring=light.encode(), scale=2, background_color="#fff")
        path.write_bytes(made)


def _html(title: str, svg: str, script: str) -> str:
    """One file that needs nothing else."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>"
        "<style>body{margin:16px;font-family:sans-serif}svg{max-width:100%;height:auto}</style>"
        f"</head>\n<body>\n{svg}{script}</body></html>\n"
    )


def _cairosvg(path: Path) -> Any:
    try:
        import cairosvg
    except (ImportError, OSError) as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({' '.join(str(error).split())})"
        raise BadInput(
            f"{path}: a .png needs the package cairosvg and the library cairo{why}: pip install "
            "cairosvg; a .svg or .html needs nothing"
        ) from None
    return cairosvg


#: Okabe and Ito's colours, but for yellow and black, which one of the two modes would hide.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P")
DASHES = ("-", "--", ":", "-.")
MAX_LINES = len(COLOURS) * len(DASHES)
#: Stands for the reader's text colour until the SVG is written.
INK = "#010203"
#: A chart whose values differ more than this is drawn on a logarithmic axis.
_WIDE_RANGE = 8


@dataclass(frozen=True)
class Axis:
    """A numeric axis.

    Attributes:
        name: What it counts.
        words: A value as text.
        is_binary: Whether round values are powers of two (bytes, tokens of a context).
    """

    name: str
    words: Callable[[float], str] = "{:,.10g}".format
    is_binary: bool = False


@dataclass(frozen=True)
class Line:
    """A named line; None where there is no value."""

    name: str
    points: Sequence[tuple[float, float | None]]


def check_chart(path: Path) -> None:
    """Refuse a chart that could not be drawn or written, before anything is computed."""
    check_picture(path, by_matplotlib=True)
    _figure_class(path)


def write_chart(path: Path, title: str, figure: Any) -> None:
    """Write a figure in the format that the file's name says. Raises `BadInput`."""
    check_chart(path)
    if path.suffix.lower() == ".png":
        figure.savefig(path, dpi=200, facecolor="white")
        return
    import matplotlib

    out = io.StringIO()
    # The same chart is the same text everywhere.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvplan"}):
        figure.savefig(
            out, format="svg", facecolor="none", metadata={"Date": None, "Creator": None}
        )
    text = out.getvalue()
    write_svg(path, title, themed(text[text.index("<svg") :].replace(INK, "currentColor")))


def lines_figure(
    title: str, subtitle: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Line]
) -> Any:
    """Lines over an axis from zero, with their names below."""
    figure, axes = new_figure(f"{title}\n{subtitle}".rstrip(), height=4.4 + 0.2 * len(lines))
    for number, line in enumerate(lines):
        axes.plot(
            [x for x, _ in line.points],
            [math.nan if y is None else y for _, y in line.points],
            DASHES[number // len(COLOURS) % len(DASHES)],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            label=line.name,
        )
    for axis, drawn, low in ((x_axis, axes.xaxis, 0), (y_axis, axes.yaxis, 1)):
        values = [p[low] or 0 for line in lines for p in line.points]
        _scale(drawn, axis, max(values, default=0) or 1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_axis.name)
    axes.set_ylabel(y_axis.name)
    add_legend(figure)
    return figure


def frontier_figure(title: str, curve: Frontier, sliced: SlicedPoint | None = None) -> Any:
    """Bytes of a request against groups: vLLM's point, the chosen one, and the lower bound."""
    figure, axes = new_figure(f"{title}: one request of {curve.reference_model_len:,} tokens")
    groups = [point.num_groups for point in curve.points]
    sizes = [point.request_bytes for point in curve.points]
    # A step: with a few groups more, nothing changes until the next point.
    axes.step(groups, sizes, where="post", color=COLOURS[0], marker="o", label="best groupings")
    chosen = curve.chosen
    marked = [
        ("compact", chosen, "o", COLOURS[0], 11),
        ("vLLM", curve.vllm, "s", COLOURS[1], 8),
        ("sliced", sliced, "D", COLOURS[2], 8),
    ]
    for name, point, marker, colour, size in marked:
        if point is not None:
            axes.plot(
                point.num_groups,
                point.request_bytes,
                marker,
                color=colour,
                markersize=size,
                fillstyle="none" if name == "compact" else "full",
                label=f"{name}: {counted(point.num_groups, 'group')}, "
                f"{format_size(point.request_bytes)}",
            )
    axes.axhline(
        curve.lower_bound_bytes,
        color=INK,
        linestyle="--",
        linewidth=1,
        label=f"no padding: {format_size(curve.lower_bound_bytes)}",
    )
    every = [*sizes, *(point.request_bytes for _, point, *_ in marked if point is not None)]
    _scale(axes.xaxis, Axis("groups"), max(groups))
    if max(every) > _WIDE_RANGE * curve.lower_bound_bytes:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(worded(format_size))
    else:
        _scale(axes.yaxis, Axis("bytes", format_size, True), max(every))
        axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("groups")
    axes.set_ylabel("bytes of a request")
    add_legend(figure)
    return figure


def starts_figure(reports: Sequence[LogReport]) -> Any:
    """Where the time of each start went: a bar of phases, by the rank that tells the most."""
    from matplotlib import colormaps

    from kvplan.offline.startup_log import PHASES

    bars = [report.telling_phases for report in reports]
    if not any(bars):
        raise BadInput("no log tells when anything happened; there is nothing to draw")
    figure, axes = new_figure("Where the time of each start went", height=1.8 + 0.5 * len(bars))
    colours = colormaps["cividis"]  # in order, and alike to all eyes
    left = [0.0] * len(bars)
    for i, phase in enumerate(PHASES):
        widths = [bar.get(phase, 0.0) for bar in bars]
        if any(widths):
            colour = colours(i / (len(PHASES) - 1))
            axes.barh(range(len(bars)), widths, left=left, label=phase, color=colour)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), [report.name.rpartition("/")[2] for report in reports])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    add_legend(figure)
    return figure


def _figure_class(path: Path) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput(f"{path}: charts are drawn by matplotlib: pip install matplotlib") from None
    return Figure


def new_figure(title: str, height: float = 4.4) -> tuple[Any, Any]:
    """A figure and its axes, in the colours of the reader's text."""
    figure = _figure_class(Path(title))(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, color=INK, fontsize=11)
    axes.set_facecolor("none")
    axes.tick_params(colors=INK, which="both")
    for spine in axes.spines.values():
        spine.set_color(INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(axis="y", color="#888888", alpha=0.35)
    return figure, axes


def add_legend(figure: Any) -> None:
    """Below the chart, where no name covers a point."""
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)


def _scale(drawn: Any, axis: Axis, largest: float) -> None:
    """Four to eight round values, as text."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    step = 2.0 ** math.ceil(math.log2(largest / 8)) if axis.is_binary else 0
    whole = largest >= 4
    locator = MultipleLocator(step) if step else MaxNLocator(8, integer=whole)
    drawn.set_major_locator(locator)
    drawn.set_major_formatter(worded(lambda value: axis.words(value) if value else "0"))


def worded(words: Callable[[float], str]) -> Any:
    """A formatter of an axis's values."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: words(value))
