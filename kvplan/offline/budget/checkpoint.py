"""The tensors of a checkpoint, from the headers of its safetensors files.

Of a model on the Hub only its index and the headers of its files are fetched.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.offline.budget.parameters import Parameter
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.hub import FileNotOnHub, HubModel

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
#: An index lists tensor names, and so does a header; none is near this.
MAX_INDEX_BYTES = 256 << 20
#: Headers that are fetched at once.
_AT_ONCE = 8
_BITS = {"F64": 64, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16, "F4": 4}
#: Dtypes that loading casts to the model's; the tensors below keep theirs.
_CAST = ("F32", "F16", "BF16")
_UNCAST = re.compile(r"A_log$|dt_bias$|\.D$|correction_bias$|scale(_inv)?$|_scales?$")


def checkpoint_tensors(directory: Path) -> list[Parameter] | None:
    """Every tensor of a directory's safetensors files, or None where there are none.

    An index names the files that count; without one, those of Hugging Face's format come before
    ``consolidated.safetensors``, which holds the same once more.

    Raises:
        ModelError: A file is missing or is not what its name says.
    """
    files = _files(directory)
    if not files:
        return None
    return [parameter for file in files for parameter in _tensors(file)]


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.is_file():
        names = set(_read_index(index).get("weight_map", {}).values())
        files = [directory / name for name in sorted(names)]
        missing = [file.name for file in files if not file.is_file()]
        if missing and len(missing) < len(files):
            raise ModelError(f"{index} names {missing[0]}, which is not there")
        return [] if missing else files
    files = sorted(directory.glob("*.safetensors"))
    sharded = [file for file in files if not file.name.startswith("consolidated")]
    return sharded or files


def indexed_bytes(index: Path) -> int:
    """The total size that an index states.

    Raises:
        ModelError: It states none.
    """
    metadata = _read_index(index).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if not isinstance(total, int) or isinstance(total, bool) or total <= 0:
        raise ModelError(f"{index} has no metadata.total_size")
    return total


@cache
def hub_tensors(model: HubModel) -> list[Parameter] | None:
    """Every tensor of a Hub model's safetensors files, or None where it has none.

    Only headers are fetched, several at once and once a process; what the cache has is read there.

    Raises:
        ModelError: They cannot be had.
    """
    try:
        index = _read_index(model.download(INDEX, MAX_INDEX_BYTES))
        files = sorted(set(index.get("weight_map", {}).values()))
    except FileNotOnHub:
        files = [SINGLE_FILE]

    def of_file(name: str) -> list[Parameter]:
        cached = model.cached(name)
        if cached is not None:
            return _tensors(cached)
        return [_parameter(*tensor) for tensor in model.tensors(name)]

    if not files:
        return None
    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return [parameter for found in threads.map(of_file, files) for parameter in found]
    except FileNotOnHub:
        return None


def hub_bytes(model: HubModel) -> int | None:
    """The size of a Hub model's weights by its index, or None where it has none.

    Raises:
        ModelError: It cannot be had.
    """
    try:
        return indexed_bytes(model.download(INDEX, MAX_INDEX_BYTES))
    except FileNotOnHub:
        return None


def _read_index(index: Path) -> dict[str, Any]:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise ModelError(f"{index} is larger than {MAX_INDEX_BYTES >> 20} MiB; that is no index")
    try:
        value = json.loads(index.read_bytes())
    except (ValueError, RecursionError):
        value = None
    names = value.get("weight_map", {}) if isinstance(value, dict) else None
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise ModelError(f"{index} is no index of safetensors files")
    for name in names.values():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelError(f"{index} names {name!r}, which is not beside it")
    return value


def _tensors(file: Path) -> list[Parameter]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(size - 8, MAX_INDEX_BYTES):
            raise ModelError(f"{file} is not a safetensors file")
        header = stream.read(length)
    try:
        entries = json.loads(header)
        found = [
            _parameter(name, entry["shape"], entry["dtype"])
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
        stored = max((e["data_offsets"][1] for n, e in entries.items() if n[:2] != "__"), default=0)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError):
        raise ModelError(f"{file} has a damaged header") from None
    if 8 + length + stored > size:
        raise ModelError(f"{file} is cut short: its header speaks of {stored:,} bytes of tensors")
    return found


def _parameter(name: str, shape: list[int], dtype: str) -> Parameter:
    if dtype in _CAST and not (dtype == "F32" and _UNCAST.search(name)):
        return Parameter(name, tuple(shape))
    return Parameter(name, tuple(shape), 32 if dtype == "F32" else _BITS.get(dtype, 8))
