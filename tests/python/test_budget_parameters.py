"""Weights from the config alone against what is published of models that are not built in."""

import json
from pathlib import Path

import pytest

from kvplan.offline.budget.weights import weights_on_ranks
from kvplan.offline.models import ModelOptions
from kvplan.offline.models.plan_input import ModelConfig

SIZES = Path(__file__).parents[1] / "data" / "budget" / "published_sizes.jsonl"
PUBLISHED = [json.loads(line) for line in SIZES.read_text().splitlines()]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_published_size(row):
    """Billions of parameters of two bytes; rotary tables, below 0.3 %, are not among them."""
    model = ModelConfig(row["config"], row["name"])
    held = weights_on_ranks(model, ModelOptions()).by_stage[0]
    assert held / 2 / 1e9 == pytest.approx(row["billions"], rel=0.01)
