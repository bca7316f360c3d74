"""The recordings of tests/data/budget are what vLLM 0.33.0 allocates: one of them, made again."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = json.loads((HERE.parent / "data" / "budget" / "recorded.json").read_text())
AGAIN = "qwen3-0.6b"


def test_recording():
    (row,) = (row for row in RECORDED if row["case"]["model"] == AGAIN)
    done = subprocess.run(
        [sys.executable, HERE / "record_budget.py", "--case", json.dumps(row["case"])],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == {key: value for key, value in row.items() if key != "case"}
