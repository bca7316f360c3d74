"""The request file: a planner's whole input as JSON, to record, replay and send around.

A request holds the planning config, the distinct KV cache specs, and per worker its memory and
which spec each of its layers has. `docs/request.md` describes the format, version 1, and
`json_schema()` is its JSON schema. Reading one needs neither torch nor vLLM.
"""

import functools
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

import kvplan
from kvplan import _core
from kvplan import specs as native

VERSION = 1
MAX_FILE_BYTES = 64 << 20
MAX_WORKERS = 16384
MAX_SPECS = 100_000
MAX_LAYERS_PER_WORKER = 1_000_000
MAX_LAYERS = 5_000_000  # over all workers, `same_layers_as` counted like a list of its own
MAX_NAME_LENGTH = 1024

INT64_MAX = 2**63 - 1
Bytes = Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Index = Annotated[int, Meta(ge=0, le=MAX_LAYERS)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
Text = Annotated[str, Meta(max_length=4096)]
Fraction = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,9}/[1-9][0-9]{0,9}$")]
Layer = tuple[Name, Index]


class RequestError(kvplan.InvalidArgument):
    """A request that cannot be read; the message names the place in the JSON."""


class MultipleOf(Struct, frozen=True, forbid_unknown_fields=True):
    """Whole kernel blocks of up to `multiple_of` tokens."""

    multiple_of: Positive


class Spec(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag=str
):
    """What every KV cache spec has; the classes below are vLLM's, field by field."""

    block_size: Positive
    dcp_sharded: bool | UnsetType = UNSET
    block_stride_alignment: Positive | MultipleOf | UnsetType | None = UNSET
    is_draft: bool | UnsetType = UNSET


class CustomDemand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many pages one request holds, for a plugin's own spec class."""

    cap_tokens: Count | UnsetType | None = UNSET
    cap_includes_in_flight: bool | UnsetType = UNSET
    extra_pages: Count | UnsetType = UNSET


_TYPES: dict[str, Any] = {
    "bool": bool,
    "str": Name,
    "dtype": Name,
    "dtypes": Annotated[tuple[Name, ...], Meta(max_length=64)],
    "block_stride_alignment": Positive | MultipleOf | None,
    "kernel_block_sizes": Annotated[tuple[Positive | MultipleOf, ...], Meta(max_length=64)],
    "demand": CustomDemand,
}


def _type_of(field: dict[str, Any]) -> Any:
    """The JSON of a row of the native field table."""
    number = Annotated[int, Meta(ge=field["least"], le=field["most"])]
    if field["type"] == "int":
        kind: Any = number
    elif field["type"] == "tokens_per_state":
        kind = number | Fraction
    elif field["type"] == "shapes":
        shape = Annotated[tuple[number, ...], Meta(max_length=16)]
        kind = Annotated[tuple[shape, ...], Meta(max_length=64)]
    elif field["type"] == "choice":
        kind = Literal[tuple(field["choices"])]
    else:
        kind = _TYPES[field["type"]]
    if field["name"] == "uniform_type_base":  # the one name that may be empty
        kind = Text
    # `model_type` is the one name that is null where there is none.
    return kind | None if field["optional"] or field["name"] == "model_type" else kind


def _struct(name: str, base: type[Struct], doc: str, **options: Any) -> Any:
    """A class with the fields that the native table lists under this name."""
    fields = [
        (field["name"], _type_of(field))
        if field["required"]
        else (field["name"], _type_of(field) | UnsetType, UNSET)
        for field in _core.field_table()[name]
        if field["name"] not in base.__struct_fields__
    ]
    return msgspec.defstruct(
        name,
        fields,
        bases=(base,),
        module=__name__,
        namespace={"__doc__": doc},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        **options,
    )


Config = _struct(
    "PlanningConfig",
    Struct,
    "The keywords of `kvplan.PlanningConfig`; what is absent has its default there.",
)
_SPECS = {
    name: _struct(name, Spec, (getattr(native, name).__doc__ or name).partition("\n")[0], tag=name)
    for name in _core.field_table()
    if name != "PlanningConfig"
}
AnySpec: Any = functools.reduce(operator.or_, _SPECS.values())


class Worker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker: its memory in bytes, and its layers or the worker that has the same ones."""

    available_memory: Bytes
    layers: Annotated[tuple[Layer, ...], Meta(max_length=MAX_LAYERS_PER_WORKER)] | UnsetType = UNSET
    same_layers_as: Index | UnsetType = UNSET


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request file, version 1. Made by `loads`, `load` or `from_objects`, which check it."""

    kvplan_request: Literal[1]
    config: Config  # type: ignore[valid-type]
    specs: Annotated[tuple[AnySpec, ...], Meta(max_length=MAX_SPECS)]
    workers: Annotated[tuple[Worker, ...], Meta(min_length=1, max_length=MAX_WORKERS)]
    model: Text | UnsetType | None = UNSET
    source: Text | UnsetType | None = UNSET

    decoder: ClassVar[msgspec.json.Decoder]

    def planning_config(self) -> kvplan.PlanningConfig:
        """The `PlanningConfig` to plan with."""
        fields = msgspec.to_builtins(self.config)
        if fields.get("model_type", "") is None:
            del fields["model_type"]
        try:
            return kvplan.PlanningConfig(**fields)
        except ValueError as e:
            raise RequestError(f"$.config: {e}") from e

    def available_memory(self) -> list[int]:
        """Bytes per worker."""
        return [worker.available_memory for worker in self.workers]

    def kv_cache_specs(self) -> list[dict[str, Any]]:
        """Per worker, the spec of each of its layers by name, in the file's order.

        Equal specs are one object, and workers with the same layers share one dict.
        """
        specs = []
        for i, spec in enumerate(self.specs):
            try:
                specs.append(native.from_dict(msgspec.to_builtins(spec)))
            except (ValueError, NotImplementedError) as e:
                raise RequestError(f"$.specs[{i}]: {e}") from e
        per_worker: list[dict[str, Any]] = [
            {}
            if isinstance(worker.layers, UnsetType)
            else {name: specs[index] for name, index in worker.layers}
            for worker in self.workers
        ]
        for i, worker in enumerate(self.workers):
            if not isinstance(worker.same_layers_as, UnsetType):
                per_worker[i] = per_worker[worker.same_layers_as]
        return per_worker


Request.decoder = msgspec.json.Decoder(Request)


def _check(request: Request) -> None:
    """Everything that types alone cannot say."""
    total = 0
    for i, worker in enumerate(request.workers):
        where = f"$.workers[{i}]"
        if isinstance(worker.layers, UnsetType) == isinstance(worker.same_layers_as, UnsetType):
            raise RequestError(f"{where}: needs either `layers` or `same_layers_as`")
        layers = worker.layers
        if isinstance(layers, UnsetType):
            other = cast(int, worker.same_layers_as)  # set, or the check above had failed
            where = f"{where}.same_layers_as"
            if other >= len(request.workers):
                raise RequestError(
                    f"{where}: there is no worker {other}, only {len(request.workers)} workers"
                )
            layers = request.workers[other].layers
            if isinstance(layers, UnsetType):
                raise RequestError(
                    f"{where}: worker {other} lists no layers itself; name a worker that does"
                )
        else:
            _check_layers(layers, len(request.specs), f"{where}.layers")
        total += len(layers)
        if total > MAX_LAYERS:
            raise RequestError(f"{where}: more than {MAX_LAYERS} layers over all workers")


def _check_layers(layers: tuple[Layer, ...], num_specs: int, where: str) -> None:
    seen: dict[str, int] = {}
    for i, (name, index) in enumerate(layers):
        if index >= num_specs:
            raise RequestError(f"{where}[{i}]: there is no spec {index}, only {num_specs} specs")
        first = seen.setdefault(name, i)
        if first != i:
            raise RequestError(f"{where}[{i}]: the layer {name!r} is already at [{first}]")


def _explain(error: str) -> str:
    """The place, then msgspec's message, with what would be right where it says too little."""
    message, _, place = error.partition(" - at `")
    place = place.rstrip("`") or "$"
    if place == "$.kvplan_request":
        message = f"this kvplan reads version {VERSION} of the request file"
    elif place.endswith(".kind"):
        kinds = sorted(_SPECS)
        message = f"{message}; known kinds are {', '.join(kinds)}"
    return f"{place}: {message}"


def loads(data: bytes | str, source: str = "request") -> Request:
    """Read and check a request; `source` names it in errors.

    Raises `RequestError`, a `ValueError`, with one paragraph that names the place in the JSON.
    """
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            f"{source}: larger than {MAX_FILE_BYTES >> 20} MiB, the limit for a request"
        )
    try:
        request = Request.decoder.decode(data)
        _check(request)
    except msgspec.ValidationError as e:
        raise RequestError(f"{source}: {_explain(str(e))}") from e
    except RequestError as e:
        raise RequestError(f"{source}: {e}") from e
    except (msgspec.DecodeError, UnicodeError) as e:
        raise RequestError(f"{source}: not a JSON request: {e}") from e
    except RecursionError as e:
        raise RequestError(f"{source}: not a JSON request: nested too deeply") from e
    return request


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
        where = {"layers": rows} if first == i else {"same_layers_as": first}
        workers.append({"available_memory": memory, **where})
    described_request: dict[str, Any] = {
        "kvplan_request": VERSION,
        "config": config.to_dict(),
        "specs": specs,
        "workers": workers,
        "source": f"kvplan {kvplan.__version__}",
    }
    if model is not None:
        described_request["model"] = model
    try:
        request = msgspec.convert(described_request, Request)
    except msgspec.ValidationError as e:
        raise RequestError(f"cannot be written as a request: {_explain(str(e))}") from e
    _check(request)
    return request


def dumps(request: Request) -> bytes:
    """The request as JSON text: one line per spec and per worker, so that files compare well."""
    fields = msgspec.to_builtins(request)
    encode = msgspec.json.encode
    lines = []
    for key, value in fields.items():
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
    """The JSON schema of a request file."""
    schema = msgspec.json.schema(Request)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
