"""docs/capacity_changes.md has the figures that its script computes."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    """The script that writes the table."""
    path = ROOT / "scripts" / "capacity_changes.py"
    spec = importlib.util.spec_from_file_location("capacity_changes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_current(script):
    """To mend it: python scripts/capacity_changes.py."""
    text = script.PAGE.read_text()
    assert script.updated(text) == text


def test_figures_that_were_reported(script):
    """Buckets by page size gave DeepSeek-V4-Flash 1.16 % more tokens when they came (0.23)."""
    flash = script.question(*script.MODELS[2])
    assert script.buckets(flash) == "1,051,776 to 1,039,680 bytes a block (+1.2% tokens)"


def test_the_sampler_is_profiled_in_full_again(script):
    """As recorded of Llama 3.1 70B, TP 4: 838,881,792 and 2,027,987,456 bytes."""
    llama = script.question(*script.MODELS[0])
    old, new = (script.parts(llama, version)["peak activation"] for version in ((0, 32), (0, 33)))
    assert new - old == pytest.approx(2027987456 - 838881792, rel=0.05)


def test_tokens_in_flight_cost_windows_only(script):
    llama, gemma, flash = (script.question(*model) for model in script.MODELS)
    assert script.in_flight(llama) == "no change"
    assert "(-" in script.in_flight(gemma)
    assert "(-" in script.in_flight(flash)
