"""Where the time of each start went, as bars of phases: matplotlib's."""

from __future__ import annotations

import io
from collections.abc import Sequence

from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.log_report import LogReport
from kvplan.offline.startup_log import PHASES


def starts_svg(reports: Sequence[LogReport]) -> str:
    """One bar a start: the seconds by phase of the rank that tells the most.

    Raises:
        BadInput: matplotlib is not installed, or no log tells a time.
    """
    try:
        import matplotlib
    except ImportError:
        raise BadInput("--plot needs the package matplotlib: pip install matplotlib") from None
    from matplotlib.figure import Figure

    bars = [report.telling_phases for report in reports]
    if not any(bars):
        raise BadInput("no log tells when anything happened; there is nothing to draw")
    matplotlib.rcParams["svg.hashsalt"] = "kvplan"  # the same picture for the same logs
    figure = Figure(figsize=(9, 1.4 + 0.5 * len(bars)), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["cividis"]
    names = [report.name.rpartition("/")[2] for report in reports]
    places = range(len(bars))
    left = [0.0] * len(bars)
    for i, phase in enumerate(PHASES):
        widths = [bar.get(phase, 0.0) for bar in bars]
        if any(widths):
            colour = colours(i / (len(PHASES) - 1))
            axes.barh(places, widths, left=left, label=phase, color=colour, edgecolor="white")
        left = [at + width for at, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
