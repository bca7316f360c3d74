"""Find and read a model's ``config.json``."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kvplan.offline.models.config_view import json_type
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.hub import FileNotOnHub, HubModel, hub_model

#: A config.json is a few kilobytes; anything larger is some other file.
MAX_CONFIG_BYTES = 16 << 20

#: Where ModelOpt before 0.31 put what config.json calls quantization_config.
_QUANTIZATION_FILE = "hf_quant_config.json"

_GGUF_HELP = "GGUF metadata is not read. Give the original model's config.json"


#: An error names at most this many built-in models; 'kvplan models' lists them all.
_MAX_SUGGESTIONS = 8


def builtin_models() -> list[str]:
    """Names of the models whose published configs come with kvplan, 8b before 70b."""
    return list(_builtin_names())


@cache
def _builtin_names() -> tuple[str, ...]:
    files = resources.files("kvplan.offline.models") / "configs"
    names = (entry.name for entry in files.iterdir())
    models = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return tuple(sorted(models, key=_natural))


def _natural(name: str) -> list[str | int]:
    """Sorts numbers within names by value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def read_config(model: str | Path) -> tuple[dict[str, Any], str]:
    """The parsed config of a built-in name, a ``config.json``, a directory or a Hub id.

    Returns:
        The config and a text that says where it came from.

    Raises:
        ModelError: If there is no such model or its file is not a model config.
    """
    name = str(model)
    if not name.strip():
        raise ModelError(
            "the model is an empty string; give a built-in name, a config.json, a directory that "
            "holds one, or a Hub id (org/name)"
        )
    if isinstance(model, str) and name in builtin_models():
        text = (resources.files("kvplan.offline.models") / "configs" / f"{name}.json").read_text()
        return _parse(text, name), name
    path = Path(name)
    on_hub = model_on_hub(model)
    if on_hub is not None:
        values = _parse(_text_of(_config_on_hub(on_hub)), name)
        if values.get("quantization_config") is None:
            extra = on_hub.download_if_there(_QUANTIZATION_FILE)
            _add_quantization(values, extra)
        return values, name
    if path.is_dir():
        path = _config_in_directory(path)
    if not path.exists():
        raise ModelError(_not_found(name))
    values = _parse(_text_of(path), str(path))
    beside = path.with_name(_QUANTIZATION_FILE)
    _add_quantization(values, beside if beside.exists() else None)
    return values, str(path)


def _add_quantization(values: dict[str, Any], path: Path | None) -> None:
    """Take a quantization config of its own file, unless ``config.json`` has one.

    Mirrors vllm/transformers_utils/config.py::get_config (0.33).
    """
    if path is not None and values.get("quantization_config") is None:
        values["quantization_config"] = _parse(_text_of(path), str(path))


def model_on_hub(model: str | Path) -> HubModel | None:
    """The Hub model that is meant, or None: built-in names, files and directories come first."""
    if isinstance(model, Path) or model in builtin_models() or Path(model).exists():
        return None
    return hub_model(model)


def _config_on_hub(model: HubModel) -> Path:
    try:
        return model.download("config.json", MAX_CONFIG_BYTES)
    except FileNotOnHub as error:
        raise ModelError(
            f"{error}; kvplan reads no other format (GGUF files, Mistral's params.json)"
        ) from None


def _text_of(path: Path) -> str:
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file")
    if path.suffix == ".gguf":
        raise ModelError(f"{path} is a GGUF file; {_GGUF_HELP}")
    size = path.stat().st_size
    if size > MAX_CONFIG_BYTES:
        raise ModelError(
            f"{path} is {size:,} bytes; a model config is at most {MAX_CONFIG_BYTES:,} bytes, so "
            "this is some other file"
        )
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not a JSON text file") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None


def _config_in_directory(directory: Path) -> Path:
    directory = snapshot_directory(directory)
    path = directory / "config.json"
    if path.exists():
        return path
    if any(directory.glob("*.gguf")):
        raise ModelError(f"{directory} holds GGUF files and no config.json; {_GGUF_HELP}")
    if (directory / "params.json").exists():
        raise ModelError(
            f"{directory} holds a params.json (Mistral format) and no config.json; give the "
            "model's Hugging Face config.json"
        )
    raise ModelError(f"the directory {directory} holds no config.json")


def snapshot_directory(directory: Path) -> Path:
    """The files of a model: a directory itself, or the main snapshot of a Hub cache's folder."""
    main = directory / "refs" / "main"
    if not (directory / "snapshots").is_dir() or not main.is_file():
        return directory
    return directory / "snapshots" / main.read_text().strip()


def _not_found(name: str) -> str:
    known = _builtin_names()
    return (
        f"no such model {name!r}: neither a file or directory nor a built-in name nor a Hub id "
        f"(org/name).{_suggestion(name.lower(), known)} 'kvplan models' lists the {len(known)} "
        "built-in names"
    )


def _suggestion(typed: str, known: tuple[str, ...]) -> str:
    """What to append: the names that hold what was typed, or begin it, or are spelled like it."""
    near = [name for name in known if name == typed] or [name for name in known if typed in name]
    if not near:
        near = sorted((name for name in known if typed.startswith(name)), key=len)[-1:]
    if not near:
        near = difflib.get_close_matches(typed, known, n=1)
    if not near:
        return ""
    more = ", ..." if len(near) > _MAX_SUGGESTIONS else ""
    which = "one of " if len(near) > 1 else ""
    return f" Did you mean {which}{', '.join(near[:_MAX_SUGGESTIONS])}{more}?"


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ModelError(f"{source} is not valid JSON{where}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{source} holds {json_type(config)}, not an object")
    return config
