"""kvplan inside vLLM: vLLM's objects in, vLLM's objects out, or vLLM's own functions.

With kvplan installed next to vLLM, the plugin entry point calls :func:`install` in every process.
Importing this package does not import vLLM.

Environment: ``KVPLAN_DISABLE=1`` turns the plugin off, ``KVPLAN_VLLM_FLOW=0`` leaves the planning
flow to vLLM and only supplies the builder, ``KVPLAN_VERIFY=1`` plans with both and uses vLLM's
result where they differ, ``KVPLAN_RECORD=file.json`` writes the planner's input,
``KVPLAN_GROUPING=compact`` and ``KVPLAN_MAX_GROUPS=N`` choose another grouping,
``KVPLAN_GROUPING=sliced`` is an experiment (docs/sliced.md), and ``KVPLAN_BLOCK_POOL=0`` leaves the
block pool to vLLM.
"""

from __future__ import annotations

from typing import Any

__all__ = ["install", "is_installed", "stats", "uninstall"]


def install() -> bool:
    """Make the vLLM of this process plan with kvplan; whether it does afterwards.

    Can be called at any time and more than once. Where this vLLM is not one that kvplan can stand
    in for, nothing changes, and one warning says why.

    Raises:
        ImportError: there is no vLLM.
    """
    from kvplan.vllm import installation

    return installation.install()


def uninstall() -> None:
    """Undo :func:`install`, also in modules that vLLM has imported since."""
    from kvplan.vllm import installation

    installation.uninstall()


def is_installed() -> bool:
    """Whether the vLLM of this process plans with kvplan."""
    import sys

    module = sys.modules.get("kvplan.vllm.installation")
    return module is not None and module.current is not None


def stats() -> dict[str, Any]:
    """What happened in this process so far.

    ``native`` and ``errors`` count calls by function: those that kvplan answered, and those where
    vLLM's function raised. ``fallback`` counts by reason the calls that vLLM answered instead.
    ``verified`` counts comparisons, ``mismatches`` those that differed.
    """
    from kvplan.vllm import report

    return report.stats()
