"""Writing a picture: .svg as it is, .html as one file that needs nothing else, .png by cairosvg."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any

from kvplan.offline.cli.failures import BadInput

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
