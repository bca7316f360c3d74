"""The request file: a planner's whole input as JSON, to record, replay and send around.

A request holds the planning config, the distinct KV cache specs, and per worker its memory and
which spec each of its layers has. `docs/request.md` describes the format, version 1; the rules are
the core's, whatever reads the JSON. Reading one needs neither torch nor vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import kvplan
from kvplan import _core

VERSION = 1
MAX_FILE_BYTES = 64 << 20
MAX_WORKERS = 16384
MAX_SPECS = 100_000
MAX_LAYERS_PER_WORKER = 1_000_000
MAX_LAYERS = 5_000_000  # over all workers, `same_layers_as` counted like a list of its own
MAX_NAME_LENGTH = 1024


class RequestError(kvplan.InvalidArgument):
    """A request that cannot be read; the message names the place in the JSON."""


@dataclass(frozen=True)
class Request:
    """A request, version 1, which is checked as it is made.

    Attributes:
        document: The file's JSON as dictionaries and lists.

    Raises:
        RequestError: It breaks a rule; the message names the place in the JSON.
    """

    document: dict[str, Any]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_read", _core.read_request(self.document))
        except ValueError as e:
            raise RequestError(str(e)) from e

    @property
    def model(self) -> str | None:
        """The model's name, if the file has one."""
        return self.document.get("model")

    @property
    def source(self) -> str | None:
        """What wrote the file, if it says so."""
        return self.document.get("source")

    def planning_config(self) -> kvplan.PlanningConfig:
        """The `PlanningConfig` to plan with."""
        return self._read[0]  # type: ignore[attr-defined]

    def kv_cache_specs(self) -> list[dict[str, Any]]:
        """Per worker, the spec of each of its layers by name, in the file's order.

        Equal specs are one object, and workers with the same layers share one dict.
        """
        read = self._read[1]  # type: ignore[attr-defined]
        copies = {id(layers): dict(layers) for layers in read}
        return [copies[id(layers)] for layers in read]

    def available_memory(self) -> list[int]:
        """Bytes per worker."""
        return list(self._read[2])  # type: ignore[attr-defined]


def loads(data: bytes | str, source: str = "request") -> Request:
    """Read and check a request; `source` names it in errors.

    Raises `RequestError`, a `ValueError`, with one paragraph that names the place in the JSON.
    """
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            f"{source}: larger than {MAX_FILE_BYTES >> 20} MiB, the limit for a request"
        )
    try:
        return Request(msgspec.json.decode(data))
    except RequestError as e:
        raise RequestError(f"{source}: {e}") from e
    except (msgspec.DecodeError, UnicodeError) as e:
        raise RequestError(f"{source}: not a JSON request: {e}") from e
    except RecursionError as e:
        raise RequestError(f"{source}: not a JSON request: nested too deeply") from e


def load(path: str | os.PathLike[str]) -> Request:
    """Read and check a request file. Raises `RequestError`, or `OSError` if it cannot be opened."""
    with open(path, "rb") as file:
        return loads(file.read(MAX_FILE_BYTES + 1), os.fspath(path))


def from_objects(
    config: kvplan.PlanningConfig,
    kv_cache_specs: Sequence[dict[str, Any]],
    available_memory: Sequence[int],
    model: str | None = None,
) -> Request:
    """The request that plans these objects: specs per worker by layer name, memory in bytes.

    Raises `RequestError` where they do not fit the format, e.g. specs of an unknown class.
    """
    if len(kv_cache_specs) != len(available_memory):
        raise RequestError(
            f"{len(kv_cache_specs)} workers have specs but {len(available_memory)} have memory"
        )
    specs: list[dict[str, Any]] = []
    index_of_object: dict[int, int] = {}
    index_of_value: dict[bytes, int] = {}
    workers: list[dict[str, Any]] = []
    worker_of_layers: dict[tuple[tuple[str, int], ...], int] = {}
    worker_of_dict: dict[int, int] = {}
    for i, (layers, memory) in enumerate(zip(kv_cache_specs, available_memory, strict=True)):
        if id(layers) in worker_of_dict:
            first = worker_of_dict[id(layers)]
            workers.append({"available_memory": memory, "same_layers_as": first})
            continue
        for spec in layers.values():
            if id(spec) not in index_of_object:
                described = spec.to_dict()
                # By value with every field: `==` of specs leaves out `is_draft`.
                index = index_of_value.setdefault(msgspec.json.encode(described), len(specs))
                if index == len(specs):
                    specs.append(described)
                index_of_object[id(spec)] = index
        rows = tuple((name, index_of_object[id(spec)]) for name, spec in layers.items())
        first = worker_of_dict[id(layers)] = worker_of_layers.setdefault(rows, i)
        own: dict[str, Any] = {"layers": [list(row) for row in rows]}
        workers.append(
            {"available_memory": memory, **(own if first == i else {"same_layers_as": first})}
        )
    document = {
        "kvplan_request": VERSION,
        "config": config.to_dict(),
        "specs": specs,
        "workers": workers,
        **({} if model is None else {"model": model}),
        "source": f"kvplan {kvplan.__version__}",
    }
    try:
        return Request(document)
    except RequestError as e:
        raise RequestError(f"cannot be written as a request: {e}") from e


def dumps(request: Request) -> bytes:
    """The request as JSON text: one line per spec and per worker, so that files compare well."""
    encode = msgspec.json.encode
    lines = []
    for key, value in request.document.items():
        text = encode(value)
        if key in ("specs", "workers") and value:
            text = b"[\n    " + b",\n    ".join(map(encode, value)) + b"\n  ]"
        lines.append(b"  " + encode(key) + b": " + text)
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def write(request: Request, path: str | os.PathLike[str]) -> None:
    """Write the request file; a reader never sees half of it."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(dumps(request))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a request file: the core's table of fields as types and ranges."""
    config, *specs = (
        _object(
            {field["name"]: _schema(field) for field in fields}
            | ({} if name == "PlanningConfig" else {"kind": {"const": name}}),
            [field["name"] for field in fields if field["required"]]
            + ([] if name == "PlanningConfig" else ["kind"]),
        )
        for name, fields in _core.field_table().items()
    )
    index = {"type": "integer", "minimum": 0, "maximum": MAX_LAYERS}
    name = _text(1, MAX_NAME_LENGTH)
    layer = {"type": "array", "prefixItems": [name, index], "minItems": 2, "items": False}
    most = 2**63 - 1
    worker = {
        "available_memory": {"type": "integer", "minimum": -most, "maximum": most},
        "layers": _list(layer, MAX_LAYERS_PER_WORKER),
        "same_layers_as": index,
    }
    request = {
        "kvplan_request": {"const": VERSION},
        "config": config,
        "specs": _list({"oneOf": specs}, MAX_SPECS),
        "workers": _list(_object(worker, ["available_memory"]), MAX_WORKERS) | {"minItems": 1},
        "model": _or_null(_text(0, 4096)),
        "source": _or_null(_text(0, 4096)),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_object(request, ["kvplan_request", "config", "specs", "workers"]),
    }


def _schema(field: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a row of the core's table."""
    number = {"type": "integer", "minimum": field["least"], "maximum": field["most"]}
    multiple = _object({"multiple_of": number}, ["multiple_of"])
    count = {"type": "integer", "minimum": 0}
    found: dict[str, Any] = {
        "int": number,
        "bool": {"type": "boolean"},
        "str": _text(1, MAX_NAME_LENGTH),
        "dtype": _text(1, MAX_NAME_LENGTH),
        "dtypes": _list(_text(1, MAX_NAME_LENGTH), 64),
        "choice": {"enum": field.get("choices")},
        "tokens_per_state": {
            "anyOf": [
                number,
                {"type": "string", "pattern": "^[1-9][0-9]{0,9}/[1-9][0-9]{0,9}$"},
            ]
        },
        "shapes": _list(_list(number, 16), 64),
        "block_stride_alignment": {"anyOf": [number, multiple, {"type": "null"}]},
        "kernel_block_sizes": _list({"anyOf": [number, multiple]}, 64),
        "demand": _object(
            {
                "cap_tokens": _or_null(count),
                "cap_includes_in_flight": {"type": "boolean"},
                "extra_pages": count,
            },
            [],
        ),
    }[field["type"]]
    if field["name"] == "uniform_type_base":  # the one name that may be empty
        found = _text(0, 4096)
    # `model_type` is the one name that is null where there is none.
    return _or_null(found) if field["optional"] or field["name"] == "model_type" else found


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _list(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


def _text(shortest: int, longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
