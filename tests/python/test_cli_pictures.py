"""What all pictures have in common: colours for every eye, light and dark, no name over another."""

import itertools

import pytest
from cli_runner import run
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kvplan.offline.cli import pictures
from kvplan.offline.cli.failures import BAD_INPUT, FITS
from kvplan.offline.cli.map_svg import KIND_COLOURS

#: What a red, green or blue cone's absence makes of linear RGB: Machado, Oliveira and Fernandes
#: (2009), "A physiologically-based model for simulation of color vision deficiency", severity 1.
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour):
    values = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def lab(rgb):
    """CIE L*a*b* of linear RGB, by D65."""
    to_xyz = (
        (0.4124, 0.3576, 0.1805),
        (0.2126, 0.7152, 0.0722),
        (0.0193, 0.1192, 0.9505),
    )
    white = (0.9505, 1.0, 1.089)
    xyz = (sum(a * b for a, b in zip(row, rgb, strict=True)) for row in to_xyz)
    x, y, z = (max(v / w, 0) ** (1 / 3) for v, w in zip(xyz, white, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(a, b, blindness):
    seen = [
        lab([sum(m * v for m, v in zip(row, linear(c), strict=True)) for row in blindness])
        for c in (a, b)
    ]
    return sum((x - y) ** 2 for x, y in zip(*seen, strict=True)) ** 0.5


@pytest.mark.parametrize("eyes", BLINDNESS)
@pytest.mark.parametrize(
    "colours", [pictures.COLOURS, tuple(KIND_COLOURS.values())], ids=["charts", "maps"]
)
def test_colours_keep_apart(colours, eyes):
    for a, b in itertools.combinations(colours, 2):
        assert distance(a, b, BLINDNESS[eyes]) > 10, (a, b)
    for colour in colours:
        for ground in ("#ffffff", "#161616"):
            assert distance(colour, ground, BLINDNESS[eyes]) > 20, (colour, ground)


def test_the_distance_can_be_too_small():
    red_and_green = ("#d62728", "#2ca02c")
    assert distance(*red_and_green, BLINDNESS["none"]) > 100
    assert distance(*red_and_green, BLINDNESS["deuteranopia"]) < 35


def overlaps(figure):
    """Texts of a figure that cover each other."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    axes = figure.axes[0]
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label]
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in (*legends, *ticks, *axes.texts)
        if text.get_text()
    ]
    assert len(boxes) > 5
    return [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]


def test_names_do_not_overlap():
    lines = [
        pictures.Line(
            f"line {i} of several with a long name", [(x * 8192, x * i) for x in range(17)]
        )
        for i in range(1, pictures.MAX_LINES + 1)
    ]
    tokens = pictures.Axis("tokens", is_binary=True)
    assert overlaps(pictures.lines_figure("t", "s", tokens, pictures.Axis("y"), lines)) == []


@pytest.mark.parametrize("command", ["frontier", "map"])
def test_light_and_dark(command, tmp_path):
    path = tmp_path / "picture.svg"
    option = "--plot" if command == "frontier" else "-o"
    assert run(command, "gemma-3-27b", option, path).exit_code == FITS
    text = path.read_text()
    assert "prefers-color-scheme:dark" in text
    assert "currentColor" in text
    assert pictures.INK not in text


def test_the_same_chart_is_the_same_text(tmp_path):
    paths = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in paths:
        run("frontier", "gemma-3-27b", "--plot", path)
    assert paths[0].read_text() == paths[1].read_text()


def test_a_picture_that_cannot_be_written_is_refused_first(tmp_path):
    for name, word in (("x.pdf", ".svg"), ("nowhere/x.svg", "there is no folder")):
        result = run("frontier", "gemma-3-27b", "--plot", tmp_path / name)
        assert result.exit_code == BAD_INPUT
        assert word in result.stderr
