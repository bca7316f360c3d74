"""Putting kvplan into a vLLM process and taking it out again."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kvplan import _core
from kvplan.vllm import conversion, report
from kvplan.vllm.guard import Guard
from kvplan.vllm.sliced import gate
from kvplan.vllm.subclasses import Subclasses

TESTED_VERSIONS = ("0.32.0", "0.33.0")

PLANNING_033 = "vllm.v1.core.kv_cache_planning"
PLANNING_032 = "vllm.v1.core.kv_cache_utils"


@dataclass
class Installation:
    """What is known of the vLLM of this process, and what was changed in it."""

    version: str
    planning: ModuleType
    before_033: bool
    planner: _core.VllmPlanner
    guard: Guard
    subclasses: Subclasses
    verify: bool
    originals: dict[str, Callable[..., Any]]
    record: str = ""
    builders: tuple[type, ...] = ()
    replacements: dict[str, Callable[..., Any]] = field(default_factory=dict)
    grouping: dict[str, Any] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)


current: Installation | None = None

_stock: contextvars.ContextVar[bool] = contextvars.ContextVar("kvplan_stock", default=False)


@contextlib.contextmanager
def stock_mode() -> Iterator[None]:
    """Leave everything inside to vLLM's own functions, what kvplan's builder does included."""
    token = _stock.set(True)
    try:
        yield
    finally:
        _stock.reset(token)


def active() -> Installation | None:
    """The installation, unless vLLM's own plan is asked for."""
    return None if _stock.get() else current


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name, "")
    return default if value == "" else value != "0"


def _ignored_grouping(grouping: str, version: str) -> str | None:
    """Why a grouping that was asked for cannot be used, if so."""
    if grouping not in ("compact", "sliced"):
        return "vLLM can run 'vllm', 'compact' and, as an experiment, 'sliced'"
    if not _flag("KVPLAN_VLLM_FLOW", default=True):
        return (
            "KVPLAN_VLLM_FLOW=0 leaves planning to vLLM, whose builder is not told which layers "
            "share a pipeline stage"
        )
    return gate.version_reason(version) if grouping == "sliced" else None


def _read_grouping(version: str) -> dict[str, Any]:
    """``KVPLAN_GROUPING`` and ``KVPLAN_MAX_GROUPS``; what cannot be used is said and left out."""
    grouping = os.environ.get("KVPLAN_GROUPING", "vllm") or "vllm"
    if grouping == "vllm":
        return {}
    reason = _ignored_grouping(grouping, version)
    if reason is not None:
        report.once(logging.WARNING, f"KVPLAN_GROUPING={grouping!r} is ignored: {reason}")
        return {}
    chosen: dict[str, Any] = {"grouping": grouping}
    if grouping == "sliced":
        return chosen
    most = os.environ.get("KVPLAN_MAX_GROUPS", "")
    if most:
        try:
            chosen["max_groups"] = int(most)
            _core.PlanningConfig(max_model_len=1, **chosen)
        except ValueError:
            report.once(
                logging.WARNING, f"KVPLAN_MAX_GROUPS={most!r} is ignored: not a number of groups"
            )
            chosen.pop("max_groups", None)
    return chosen


def replace_everywhere(name: str, old: Any, new: Any) -> None:
    """Put ``new`` where a module other than kvplan's has ``old`` under its name."""
    for path, module in list(sys.modules.items()):
        if path.startswith("kvplan.") or not isinstance(module, ModuleType):
            continue
        if vars(module).get(name) is old:
            setattr(module, name, new)


def _unsupported(reason: str) -> bool:
    report.fallback(reason)
    return False


def install() -> bool:
    """See :func:`kvplan.vllm.install`."""
    global current
    if current is not None:
        return True
    import vllm

    version = vllm.__version__.partition("+")[0]
    before_033 = False
    try:
        planning = importlib.import_module(PLANNING_033)
    except ModuleNotFoundError:
        before_033 = True
        planning = importlib.import_module(PLANNING_032)
    names: tuple[str, ...] = ("get_kv_cache_configs",)
    if not before_033:
        names += ("get_global_kv_cache_groups",)
    missing = [name for name in names if not hasattr(planning, name)]
    if missing:
        return _unsupported(f"vLLM {version} has no {planning.__name__}.{missing[0]}")
    from kvplan.vllm import flow

    originals = {}
    for name in names:
        held = getattr(planning, name)
        originals[name] = flow.original_of(name, held)
        # Another plugin may have put kvplan's back after kvplan was out.
        replace_everywhere(name, held, originals[name])

    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    try:
        guard = Guard(planning, interface, names)
        subclasses = Subclasses(interface)
        planner = _core.VllmPlanner(
            conversion.describe(interface, subclasses.class_above, before_033=before_033)
        )
    except (conversion.UnknownClassError, AttributeError, ImportError) as error:
        return _unsupported(f"vLLM {version} is not one that kvplan knows: {error}")

    verify = _flag("KVPLAN_VERIFY", default=version not in TESTED_VERSIONS)
    installed = Installation(
        version,
        planning,
        before_033,
        planner,
        guard,
        subclasses,
        verify,
        originals,
        record=os.environ.get("KVPLAN_RECORD", ""),
        grouping=_read_grouping(version),
    )
    if before_033 and not _flag("KVPLAN_VLLM_FLOW", default=True):
        return _unsupported("KVPLAN_VLLM_FLOW=0, and vLLM before 0.33 has no builder")
    current = installed
    if not before_033:
        from kvplan.vllm import builder

        if not builder.install(installed):
            current = None
            return False
    if _flag("KVPLAN_VLLM_FLOW", default=True):
        flow.install(installed)
    if installed.grouping.get("grouping") == "sliced":
        from kvplan.vllm.sliced import patches

        patches.install(installed)
    _install_block_pool(installed)
    return True


def _install_block_pool(installed: Installation) -> None:
    from kvplan.vllm import block_pool

    if block_pool.install():
        installed.undo.append(block_pool.uninstall)


def uninstall() -> None:
    """See :func:`kvplan.vllm.uninstall`."""
    global current
    if current is None:
        return
    for undo in reversed(current.undo):
        undo()
    current = None
