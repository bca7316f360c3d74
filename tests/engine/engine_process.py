"""Runs one of the scripts beside it as a process of its own: an engine leaves global state."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kvplan

#: OpenMP reads it as it is loaded, which a preloaded one is before Python: vLLM preloads it in the
#: processes that it starts, and a test before in this one may have made vLLM set that up.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

HERE = Path(__file__).parent
PACKAGES = Path(kvplan.__file__).parents[1]  # of the kvplan under test


def run(script, *arguments, **environment):
    """What the script printed as its result, and its log.

    The plugin stays out, so that vLLM is vLLM alone, unless `environment` says otherwise.
    """
    path = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path), "KVPLAN_DISABLE": "1"}
    env |= ONE_THREAD | environment
    done = subprocess.run(
        [sys.executable, HERE / script, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-6000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, log[-6000:]
    return json.loads(lines[-1].removeprefix("RESULT ")), log
