"""What a line means to kvplan's commands: their parameters, and what is not planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.offline.serve_line.errors import ServeLineError
from kvplan.offline.serve_line.line import ServeLine
from kvplan.offline.serve_line.option_table import VLLM_VERSION, option_table

#: Fields of vLLM that kvplan's parameters name differently.
_PARAMETERS = {
    "kv_cache_memory_bytes": "memory",
    "data_parallel_size": "replicas",
    "VLLM_PP_LAYER_PARTITION": "pipeline_layer_partition",
    "VLLM_KV_CACHE_LAYOUT": "layout",
}
#: Fields that are read together with another one, below.
_COMBINED = ("model", "revision", "attention_config", "spec_method", "spec_model", "spec_tokens")
#: Keys of --speculative-config that have an option of their own.
_SPECULATIVE = {
    "spec_method": ("method", str),
    "spec_model": ("model", str),
    "spec_tokens": ("num_speculative_tokens", int),
}


@dataclass(frozen=True)
class Deployment:
    """A line in kvplan's terms.

    Attributes:
        values: Text or flags by the names of the commands' parameters, e.g. ``memory``.
        not_planned: Option as it is spelled, to what it would do to memory.
        notes: Anything else that a reader should know, in whole sentences.
    """

    values: Mapping[str, Any]
    not_planned: Mapping[str, str]
    notes: tuple[str, ...]


def deployment_values(line: ServeLine) -> Deployment:
    """A line in kvplan's terms.

    Raises:
        ServeLineError: The line has no model, or a value that only a shell could know.
    """
    given = line.values()
    values: dict[str, Any] = {"model": _model(line, given)}
    planned = {a.option.dest for a in line.arguments if a.option.is_planned} - set(_COMBINED)
    for dest, value in (given | _planned_environment(line)).items():
        if dest in planned or dest.isupper():
            values[_PARAMETERS.get(dest, dest)] = _as_text(dest, value)
    backend = _json(given, "attention_config").get("backend")
    if backend is not None:
        values.setdefault("attention_backend", str(backend))
    speculative = _speculative_config(given)
    if speculative:
        values["speculative_config"] = speculative
    return Deployment(values, _not_planned(line, given), _notes(line))


def _planned_environment(line: ServeLine) -> dict[str, str]:
    known = option_table().environment
    return {n: v for n, v in line.environment.items() if n in known and known[n].is_planned}


def _model(line: ServeLine, given: Mapping[str, Any]) -> str:
    if line.model is None:
        raise ServeLineError("the line names no model; give e.g. vllm serve ORG/MODEL ...")
    model = _known("the model", line.model)
    revision = given.get("revision")
    return f"{model}@{_known('--revision', revision)}" if revision else model


def _known(what: str, text: str) -> str:
    """The text, unless it is one that a shell fills in; JSON may hold what it likes."""
    if "$" in text and not text.startswith("{"):
        raise ServeLineError(
            f"{what} is {text!r}, which a shell or a template would fill in; write its value"
        )
    return text


def _as_text(dest: str, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    name = dest if dest.isupper() else f"--{dest.replace('_', '-')}"
    if isinstance(value, list):
        return ",".join(_known(name, item) for item in value)
    return json.dumps(value) if isinstance(value, dict) else _known(name, str(value))


def _json(given: Mapping[str, Any], dest: str) -> dict[str, Any]:
    """An option that is a JSON object, empty where it is not given."""
    value = given.get(dest, {})
    name = f"--{dest.replace('_', '-')}"
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ServeLineError(f"{name} is not JSON: {value!r}") from None
    if not isinstance(value, dict):
        raise ServeLineError(f"{name} is no JSON object: {value!r}")
    return value


def _speculative_config(given: Mapping[str, Any]) -> str:
    config = dict(_json(given, "speculative_config"))
    for dest, (key, kind) in _SPECULATIVE.items():
        if given.get(dest) is not None:
            config[key] = _converted(f"--{dest.replace('_', '-')}", given[dest], kind)
    return json.dumps(config) if config else ""


def _converted(name: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(_known(name, text))
    except ServeLineError:
        raise
    except ValueError:
        raise ServeLineError(f"{name} is no number: {text!r}") from None


def _not_planned(line: ServeLine, given: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for argument in line.arguments:
        effect = argument.option.unplanned_effect(given[argument.option.dest])
        if effect is not None:
            found[argument.name] = effect
    extra = sorted(set(_json(given, "attention_config")) - {"backend"})
    if extra:
        found[f"--attention-config ({', '.join(extra)})"] = "kernels may want another layout"
    known = option_table().environment
    for name, value in line.environment.items():
        effect = known[name].unplanned_effect(value) if name in known else None
        if effect is not None:
            found[name] = effect
    return found


def _notes(line: ServeLine) -> tuple[str, ...]:
    """Variables that look like vLLM's and are none."""
    import difflib

    notes = []
    known = option_table().environment
    for name in line.environment:
        if name.startswith("VLLM_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            notes.append(f"vLLM {VLLM_VERSION} does not read the variable {name}{hint}")
    return tuple(notes)
