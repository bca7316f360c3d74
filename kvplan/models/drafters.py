"""Layers that a speculative decoding drafter adds."""

from __future__ import annotations

from kvplan.models.families.context import FamilyContext
from kvplan.models.layers import ModelLayers


def with_drafter(context: FamilyContext, model: ModelLayers) -> ModelLayers:
    """The model's layers with those of its drafter behind them."""
    return model
