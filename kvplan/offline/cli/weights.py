"""Bytes of a model's weights, from the index or the headers of its safetensors files.

Of a model on the Hub only these are fetched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.offline.cli.failures import BadInput

if TYPE_CHECKING:
    from kvplan.offline.models.hub import HubModel

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
#: An index lists tensor names; none is near this.
MAX_INDEX_BYTES = 256 << 20


def weights_bytes(model: str) -> int:
    """Bytes of the weights beside a model's config.json.

    Raises:
        BadInput: There are none, or their index cannot be read.
    """
    from kvplan.offline.models.config_file import model_on_hub, snapshot_directory

    on_hub = model_on_hub(model)
    if on_hub is not None:
        return _on_hub(on_hub)
    path = Path(model)
    directory = snapshot_directory(path) if path.is_dir() else path.parent
    index = directory / INDEX
    if path.exists() and index.is_file():
        return _from_index(index)
    files = sorted(directory.glob("*.safetensors")) if path.exists() else []
    if files:
        return sum(_tensor_bytes(file) for file in files)
    raise BadInput(
        f"--weights auto needs {INDEX} or *.safetensors files beside the config of {model}; give "
        "the size instead, e.g. --weights 140GB"
    )


def _on_hub(model: HubModel) -> int:
    from kvplan.offline.models import ModelError
    from kvplan.offline.models.hub import FileNotOnHub

    try:
        cached = model.cached(SINGLE_FILE)
        if cached is not None:
            return _tensor_bytes(cached)
        try:
            return _from_index(model.download(INDEX, MAX_INDEX_BYTES))
        except FileNotOnHub:
            return model.tensor_bytes(SINGLE_FILE)
    except ModelError as error:
        raise BadInput(
            f"--weights auto: {error}; give the size instead, e.g. --weights 140GB"
        ) from None


def _from_index(index: Path) -> int:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise BadInput(f"{index} is larger than {MAX_INDEX_BYTES >> 20} MiB; that is no index")
    try:
        total = json.loads(index.read_bytes())["metadata"]["total_size"]
    except (ValueError, KeyError, TypeError, RecursionError):
        total = None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if not isinstance(total, int) or isinstance(total, bool) or total <= 0:
        raise BadInput(f"{index} has no metadata.total_size; give the size with --weights")
    return total


def _tensor_bytes(file: Path) -> int:
    """The file without its header, whose length is in the first 8 bytes."""
    with file.open("rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    size = file.stat().st_size - 8 - header
    if size < 0:
        raise BadInput(f"{file} is not a safetensors file; give the size with --weights")
    return size
