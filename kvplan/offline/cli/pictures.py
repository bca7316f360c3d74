"""Writing a picture: .svg as it is, .html as one file that needs nothing else, .png by cairosvg."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from kvplan.offline.cli.failures import BadInput

SUFFIXES = (".svg", ".html", ".png")
HELP = "a .svg, a .html that needs no network, or (pip install 'kvplan[png]') a .png"


def check_picture(path: Path) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput(f"{path}: the name of a picture must end in {', '.join(SUFFIXES)}")
    if suffix == ".png":
        _cairosvg(path)
    check_folder(path)


def check_folder(path: Path) -> None:
    """Refuse a file whose folder is none, or cannot be written to."""
    if not path.parent.is_dir():
        raise BadInput(f"{path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{path}: cannot be written")


def write_picture(path: Path, title: str, svg: str) -> None:
    """Write an SVG in the format that the file's name says.

    Raises:
        BadInput: If the format is unknown, or its package is not installed.
    """
    check_picture(path)
    suffix = path.suffix.lower()
    if suffix == ".svg":
        path.write_text(svg, encoding="utf-8")
    elif suffix == ".html":
        path.write_text(_html(title, svg), encoding="utf-8")
    else:
        path.write_bytes(_cairosvg(path).svg2png(bytestring=svg.encode(), scale=2))


def _html(title: str, svg: str) -> str:
    """One file that needs nothing else; hints show when the pointer is on a part."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>"
        "<style>body{margin:16px}svg{max-width:100%;height:auto}</style></head>\n"
        f"<body>\n{svg}</body></html>\n"
    )


def _cairosvg(path: Path):  # type: ignore[no-untyped-def]
    try:
        import cairosvg  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except (ImportError, OSError) as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({' '.join(str(error).split())})"
        raise BadInput(
            f"{path}: a .png needs the package cairosvg and the library cairo{why}: pip install "
            "'kvplan[png]'; a .svg or .html needs nothing"
        ) from None
    return cairosvg
