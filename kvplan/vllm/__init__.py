"""kvplan inside vLLM: vLLM's objects in, vLLM's objects out, or vLLM's own functions.

With kvplan installed next to vLLM, the plugin entry point calls :func:`install` in every process.
Importing this package does not import vLLM.

Environment: ``KVPLAN_DISABLE=1`` turns the plugin off, ``KVPLAN_VLLM_FLOW=0`` leaves the planning
flow to vLLM and only supplies the builder, ``KVPLAN_VERIFY=1`` plans with both and uses vLLM's
result where they differ, ``KVPLAN_RECORD=file.json`` writes the planner's input,
``KVPLAN_GROUPING=compact`` and ``KVPLAN_MAX_GROUPS=N`` choose another grouping,
``KVPLAN_GROUPING=sliced`` is an experiment (docs/sliced.md), ``KVPLAN_CACHE_MANAGER=0`` leaves the
KV cache manager to vLLM, and ``KVPLAN_BLOCK_POOL=0`` manager and block pool.

In the order of reading: ``detect`` (which vLLM is here), ``options`` (what the user asks for),
``flow`` (its planning functions on kvplan), ``decide`` (whether kvplan may answer), ``builder``,
``block_pool``, ``cache_manager`` and ``block_hasher`` (what else is replaced), ``patch`` (how).
``conversion`` describes vLLM's classes to the native planner; ``record``, ``verify``,
``verified_cache_manager`` and ``report`` look on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.vllm.flow import Flow
    from kvplan.vllm.patch import Applied

__all__ = ["install", "installed_flow", "is_installed", "stats", "uninstall"]

_applied: tuple[Flow, Applied] | None = None


def install() -> bool:
    """Make the vLLM of this process plan with kvplan; whether it does afterwards.

    Can be called at any time and more than once. Where this vLLM is not one that kvplan can stand
    in for, nothing changes, and one warning says why.

    Raises:
        ImportError: there is no vLLM.
    """
    global _applied
    if _applied is not None:
        return True
    from kvplan.vllm import conversion, options, report
    from kvplan.vllm.detect import detect
    from kvplan.vllm.flow import Flow
    from kvplan.vllm.patch import Applied

    vllm = detect()
    chosen = options.read(vllm)
    if vllm.before_033 and not chosen.flow:
        report.fallback("KVPLAN_VLLM_FLOW=0, and vLLM before 0.33 has no builder")
        return False
    try:
        flow = Flow(vllm, chosen)
        patches = _patches(flow)
    except (conversion.UnknownClassError, AttributeError, ImportError) as error:
        report.fallback(f"vLLM {vllm.version} is not one that kvplan knows: {error}")
        return False
    _applied = flow, Applied(patches)
    return True


def _patches(flow: Flow) -> list[Any]:
    """Everything that is put into this vLLM."""
    patches = []
    if not flow.vllm.before_033:
        from kvplan.vllm import builder

        patches += builder.patches(flow)
    if flow.options.flow:
        patches += flow.patches()
    if flow.options.grouping.get("grouping") == "sliced":
        from kvplan.vllm.sliced import config as sliced

        patches += sliced.patches(flow)
    if flow.options.block_pool:
        from kvplan.vllm import block_pool

        pool = block_pool.patches(flow.vllm)
        patches += pool
        if pool and flow.options.cache_manager:
            from kvplan.vllm import cache_manager

            patches += cache_manager.patches(flow)
    from kvplan.vllm import block_hasher

    return patches + block_hasher.patches()


def uninstall() -> None:
    """Undo :func:`install`, also in modules that vLLM has imported since."""
    global _applied
    if _applied is None:
        return
    flow, applied = _applied
    _applied = None
    applied.undo()
    flow.close()


def is_installed() -> bool:
    """Whether the vLLM of this process plans with kvplan."""
    return _applied is not None


def installed_flow() -> Flow | None:
    """What plans in the place of vLLM's planner, if :func:`install` has put it there."""
    return _applied[0] if _applied is not None else None


def stats() -> dict[str, Any]:
    """What happened in this process so far.

    ``native`` and ``errors`` count calls by function: those that kvplan answered, and those where
    vLLM's function raised. ``fallback`` counts by reason the calls that vLLM answered instead.
    ``verified`` counts comparisons, ``mismatches`` those that differed. ``cache_manager`` counts KV
    cache managers, kvplan's and vLLM's by reason, and comparisons of their calls.
    """
    from kvplan.vllm import report

    return report.stats()
