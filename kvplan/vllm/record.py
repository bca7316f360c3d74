"""The planner's input as a request file (see docs/request.md): layer names, specs and sizes."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan import _core
from kvplan.vllm import grouping, report

if TYPE_CHECKING:
    from kvplan.vllm.flow import Flow


def request_text(
    flow: Flow,
    vllm_config: Any,
    kv_cache_specs: list[dict[str, Any]],
    available_memory: list[int],
    **overrides: Any,
) -> str:
    """The request as JSON, with ``overrides`` of the configuration.

    Raises:
        TypeError, ValueError: a spec or a config value that kvplan does not know.
    """
    chosen = grouping.keywords(flow.options.grouping, vllm_config, kv_cache_specs)
    config = flow.planner.read_config(vllm_config, chosen | overrides)
    native_layers = flow.planner.to_native_layers(kv_cache_specs)
    specs: list[dict[str, Any]] = []
    index_of: dict[Any, int] = {}
    first_with: dict[tuple[Any, ...], int] = {}
    workers: list[dict[str, Any]] = []
    for worker, (layers, memory) in enumerate(zip(native_layers, available_memory, strict=True)):
        pairs = []
        for name, native in layers.items():
            # `is_draft` takes no part in equality, but in the request.
            key = (native, native.is_draft)
            index = index_of.setdefault(key, len(specs))
            if index == len(specs):
                specs.append(native.to_dict())
            pairs.append((name, index))
        entry: dict[str, Any] = {"available_memory": int(memory)}
        first = first_with.setdefault(tuple(pairs), worker)
        if first == worker:
            entry["layers"] = pairs
        else:
            entry["same_layers_as"] = first
        workers.append(entry)
    request = {
        "kvplan_request": 1,
        "config": _config_fields(config),
        "specs": specs,
        "workers": workers,
        "source": f"kvplan {kvplan.__version__}, vLLM {flow.vllm.version}",
    }
    return json.dumps(request, indent=1)


def _config_fields(config: _core.PlanningConfig) -> dict[str, Any]:
    fields = config.to_dict()
    # Unset in vLLM, and a name of at least one character in a request.
    return {name: value for name, value in fields.items() if value != ""}


def record(
    flow: Flow,
    vllm_config: Any,
    kv_cache_specs: list[dict[str, Any]],
    available_memory: list[int],
) -> None:
    """Write the request to ``KVPLAN_RECORD``, ``%p`` in it being the process id.

    Never fails: what goes wrong is a warning.
    """
    path = flow.options.record.replace("%p", str(os.getpid()))
    part = f"{path}.{os.getpid()}.part"
    try:
        text = request_text(flow, vllm_config, kv_cache_specs, available_memory)
        with open(part, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(part, path)
    except Exception as error:
        report.once(
            logging.WARNING,
            f"KVPLAN_RECORD={path}: the planner's input was not recorded: "
            f"{type(error).__name__}: {error}",
        )
    else:
        report.logger.info(
            "The planner's input is in %s; replay it with: kvplan plan --request %s", path, path
        )
