"""Running the command line in tests: in this process, and as the real executable."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import kvplan
from kvplan.offline.cli.app import app
from kvplan.offline.cli.failures import FITS


def run(*args: str, **kwargs) -> Result:
    """Run the command in this process; the result has exit_code, stdout and stderr."""
    return CliRunner().invoke(app, [str(arg) for arg in args], **kwargs)


def answer_to(*args: str) -> Any:
    """The JSON that a command prints that succeeds."""
    result = run(*args, "--json")
    assert result.exit_code == FITS, result.stderr
    return json.loads(result.stdout)


def execute(
    *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own, with stdout and stderr on pipes."""
    return subprocess.run(
        [sys.executable, "-m", "kvplan.offline.cli", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **surroundings(env, cwd),
    )


def execute_line(*args: str) -> str:
    """The same as a line for a shell."""
    return shlex.join([sys.executable, "-m", "kvplan.offline.cli", *map(str, args)])


def surroundings(env: Mapping[str, str] | None = None, cwd: Path | None = None) -> dict[str, Any]:
    """Environment and folder of a process that is to find the kvplan that these tests import."""
    paths = [str(Path(kvplan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        variables.pop(name, None)
    return {"env": {**variables, **(env or {})}, "cwd": cwd or Path(__file__).parent}
