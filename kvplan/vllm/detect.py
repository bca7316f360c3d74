"""Which vLLM is in this process."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Vllm:
    """A vLLM, and where its planner is."""

    version: str
    """Without a local part."""
    planning: ModuleType
    """The module of ``get_kv_cache_configs``."""
    interface: ModuleType
    """The module of the spec classes."""
    before_033: bool
    """Its ``get_kv_cache_configs`` groups the layers itself, and no platform has a builder."""

    @property
    def flow(self) -> tuple[str, ...]:
        """The functions of :attr:`planning` that the engine core calls, in their order."""
        if self.before_033:
            return ("get_kv_cache_configs",)
        return ("get_global_kv_cache_groups", "get_kv_cache_configs")


def detect() -> Vllm:
    """The vLLM of this process, which is imported as far as planning needs it.

    Raises:
        ImportError: there is none.
    """
    import vllm

    try:
        planning, before_033 = importlib.import_module("vllm.v1.core.kv_cache_planning"), False
    except ModuleNotFoundError:
        planning, before_033 = importlib.import_module("vllm.v1.core.kv_cache_utils"), True
    return Vllm(
        vllm.__version__.partition("+")[0],
        planning,
        importlib.import_module("vllm.v1.kv_cache_interface"),
        before_033,
    )
