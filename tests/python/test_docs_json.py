"""docs/json.md names the fields of ``kvplan plan --json``: each of them, and no other."""

import json
import re
from pathlib import Path

from cli_runner import run

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def documented(heading):
    part = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", part, re.M)


def test_fields_of_a_plan():
    answer = json.loads(run("plan", "gemma-3-27b", "--memory", "30GiB", "--json").stdout)
    assert sorted(documented("The plan")) == sorted(answer)
    assert sorted(documented("Groups")) == sorted(answer["groups"][0])
    assert sorted(documented("Workers")) == sorted(answer["workers"][0])
    assert sorted(documented("Knobs")) == sorted(answer["knobs"][0])


def test_fields_of_a_plan_that_does_not_fit():
    answer = json.loads(run("plan", "gemma-3-27b", "--memory", "3GiB", "--json").stdout)
    assert sorted(documented("What does not fit")) == sorted(answer["error"])
    named = {"kvplan_plan", "fits", "model", "facts", "budget", "config", "knobs", "error"}
    assert set(answer) == named
    assert all(f"`{field}`" in PAGE.read_text() for field in answer)
