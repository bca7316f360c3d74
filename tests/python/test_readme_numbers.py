"""The figures in the README and the documents are those of the committed run."""

import importlib.util
from pathlib import Path

import pytest

from kvplan.bench import report

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("readme_numbers", ROOT / "scripts/readme_numbers.py")
readme_numbers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(readme_numbers)


@pytest.mark.parametrize("name", readme_numbers.DOCUMENTS)
def test_figures_are_those_of_the_run(name):
    text = (ROOT / name).read_text()
    assert readme_numbers.PLACE.search(text)
    assert readme_numbers.written(text, report.load(readme_numbers.RESULTS)) == text


def test_every_table_has_a_place():
    text = "".join((ROOT / name).read_text() for name in readme_numbers.DOCUMENTS)
    assert {m[2] for m in readme_numbers.PLACE.finditer(text)} == set(readme_numbers.TABLES)


def test_another_run_gives_other_figures():
    run = report.load(readme_numbers.RESULTS)
    slower = [
        report.Row(
            work=row.work,
            name=row.name,
            per=row.per,
            workers=row.workers,
            layers=row.layers,
            seconds={side: 3 * s for side, s in row.seconds.items()},
            peak_bytes=row.peak_bytes,
        )
        for row in run.rows
    ]
    other = report.Report(machine=run.machine, notes=[], rows=slower)
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert readme_numbers.written(text, other) != text
