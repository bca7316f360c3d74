"""The planner's configuration, and how it is read off anything shaped like a ``VllmConfig``."""

from __future__ import annotations

from typing import Any

from kvplan import _core
from kvplan._core import PlanningConfig

__all__ = ["PlanningConfig", "as_planning_config"]


def as_planning_config(vllm_config: Any, **overrides: Any) -> PlanningConfig:
    """Read a :class:`PlanningConfig` off a ``VllmConfig`` or an object of its shape.

    Only the attributes that vLLM's own planner reads are touched, and none is changed. An attribute
    that is missing keeps its default, except ``model_config.max_model_len``. ``overrides`` win.

    Raises:
        ValueError: HiSparse is configured; its planning is vLLM's.
        AttributeError: ``model_config.max_model_len`` is missing.
    """
    if isinstance(vllm_config, PlanningConfig):
        return vllm_config.replace(**overrides) if overrides else vllm_config
    return _core.read_vllm_config(vllm_config, **overrides)
