"""Planning a request with vLLM's functions, with and without kvplan in them."""

import contextlib
import copy
import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import oracle
import vllm.logger

from kvplan.vllm import verify
from kvplan.vllm.flow import stock_mode

LOGGER = logging.getLogger(oracle.kv_cache_planning.__name__)


class _Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


@contextlib.contextmanager
def logged():
    """The lines of vLLM's planner, those that it logs once per process included."""
    handler = _Messages()
    level, propagate = LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    vllm.logger._print_info_once.cache_clear()
    try:
        yield handler.lines
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagate


@contextlib.contextmanager
def builder(instance):
    """The builder that the platform would select."""
    module = oracle.kv_cache_config_builder
    before = module.get_kv_cache_config_builder
    module.get_kv_cache_config_builder = lambda vllm_config: instance
    try:
        yield
    finally:
        module.get_kv_cache_config_builder = before


def plain(value: Any) -> Any:
    """A config tree as data; functions by nothing but their presence."""
    if isinstance(value, SimpleNamespace):
        return {name: plain(v) for name, v in vars(value).items()}
    return "function" if callable(value) and not isinstance(value, type) else value


@dataclasses.dataclass
class Outcome:
    """Everything that a caller of the two functions can see."""

    groups: Any = None
    configs: Any = None
    error: tuple[str, str] | None = None
    config: Any = None
    inputs: Any = None
    log: Any = None
    aliases: Any = None


def shared_objects(*roots: Any) -> list[int]:
    """Which of the mutable objects in the results are one and the same, in order of a walk."""
    index: dict[int, int] = {}
    seen: list[int] = []
    keep = []

    def note(value):
        keep.append(value)
        seen.append(index.setdefault(id(value), len(index)))

    def walk(value):
        if isinstance(value, list):
            note(value)
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            note(value)
        elif type(value).__name__ in ("KVCacheGroupSpec", "KVCacheConfig", "KVCacheTensor"):
            note(value)
            for field in dataclasses.fields(value):
                walk(getattr(value, field.name))
        elif type(value).__name__ == "UniformTypeKVCacheSpecs":
            walk(value.kv_cache_specs)

    for root in roots:
        walk(root)
    return seen


def plan(request: dict[str, Any], *, stock: bool = False, functions: Any = None) -> Outcome:
    """What the engine core calls, in a row."""
    planning = functions or oracle.kv_cache_planning
    config, specs, memory = oracle.inputs(request)
    outcome = Outcome()
    with logged() as lines, stock_mode() if stock else contextlib.nullcontext():
        try:
            arguments = (config, specs, memory)
            if hasattr(planning, "get_global_kv_cache_groups"):  # before 0.33, one step
                outcome.groups = planning.get_global_kv_cache_groups(config, specs)
                arguments = (*arguments, outcome.groups)
            outcome.configs = planning.get_kv_cache_configs(*arguments)
        except Exception as error:
            outcome.error = (type(error).__name__, str(error))
    outcome.config = plain(config)
    outcome.inputs = copy.deepcopy((specs, memory))
    outcome.log = lines
    outcome.aliases = shared_objects(outcome.groups, outcome.configs)
    return outcome


def difference(request: dict[str, Any], functions: Any = None) -> str | None:
    """The first thing that a caller would see changed by kvplan."""
    try:
        oracle.inputs(request)
    except Exception:
        return None  # vLLM's classes refuse the specs
    return verify.difference(
        plan(request, functions=functions), plan(request, stock=True), "outcome"
    )
