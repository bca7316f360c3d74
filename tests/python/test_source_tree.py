"""In a checkout, where a newcomer stands after `pip install .`, `import kvplan` works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvplan
from kvplan import _core

PACKAGE = Path(kvplan.__file__).parent


def write_distribution(site, version):
    """An installed kvplan of which only the compiled module matters here."""
    (site / "kvplan").mkdir(parents=True)
    core = Path(_core.__file__)
    (site / "kvplan" / core.name).symlink_to(core)
    info = site / f"kvplan-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvplan\nVersion: {version}\n")


def import_in_checkout(tmp_path, version, *flags, project=True):
    checkout = tmp_path / "checkout"
    (checkout / "kvplan").mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if not entry.name.startswith("_core.") and entry.name != "__pycache__":
            (checkout / "kvplan" / entry.name).symlink_to(entry)
    if project:
        text = f'[project]\nname = "kvplan"\nversion = "{kvplan.__version__}"\n'
        (checkout / "pyproject.toml").write_text(text)
    write_distribution(tmp_path / "site", version)
    return subprocess.run(
        [
            sys.executable,
            *flags,
            "-c",
            "import kvplan; print(kvplan.__file__, kvplan._core.__file__)",
        ],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), str(tmp_path / "site")])},
        capture_output=True,
        text=True,
    )


def test_the_source_tree_finds_the_installed_module(tmp_path):
    done = import_in_checkout(tmp_path, kvplan.__version__)
    assert done.returncode == 0, done.stderr
    package, core = done.stdout.split()
    assert "checkout" in package
    assert str(tmp_path / "site") in core


@pytest.mark.parametrize(("version", "project"), [("0.0.9", True), (kvplan.__version__, False)])
def test_no_other_module_will_do(tmp_path, version, project):
    """Not of another version, and not for a package that is in no source tree."""
    # Without site-packages (-S), where kvplan itself may be installed.
    done = import_in_checkout(tmp_path, version, "-S", project=project)
    assert done.returncode != 0
    assert re.search(r"compiled module kvplan\._core is missing.*pip install \.", done.stderr)
