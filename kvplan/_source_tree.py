"""For a source tree, which has no compiled module: that of the installed package."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path


def installed_core(package: Path) -> Path | None:
    """The folder of the installed package with the version of the source tree around ``package``.

    None where ``package`` is in no source tree, or nothing of that version is installed.
    """
    try:
        project = (package.parent / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    for distribution in importlib.metadata.distributions(name="kvplan"):
        folder = Path(str(distribution.locate_file("kvplan")))
        if (
            version is not None
            and distribution.version == version[1]
            and folder != package
            and any(folder.glob("_core*"))
        ):
            return folder
    return None
