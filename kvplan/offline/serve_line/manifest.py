"""The server that a YAML file describes: a Kubernetes manifest, a compose file, a vLLM config."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.offline.serve_line.errors import ServeLineError
from kvplan.offline.serve_line.option_table import option_table

#: A manifest is a few kilobytes.
MAX_FILE_BYTES = 4 << 20
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _Container(NamedTuple):
    """A container, and the keys of what it runs: the two kinds of file name them differently."""

    name: str
    node: dict[str, Any]
    entrypoint_key: str
    arguments_key: str


def words_in_file(path: Path, container: str | None = None) -> tuple[dict[str, str], list[str]]:
    """The environment and arguments of the server in a YAML file.

    Args:
        path: The file.
        container: The container that is meant, by its name, where there are several.

    Raises:
        ServeLineError: The file cannot be read, or holds no or several vLLM containers.
    """
    documents = _load(path)
    containers = [c for document in documents for c in _containers(document, set(), "")]
    if not containers:
        if len(documents) == 1 and _is_config(documents[0]):
            return {}, _config_words(documents[0])
        raise ServeLineError(
            f"{path} holds neither a container with an image and arguments (a Kubernetes "
            "manifest, a compose file) nor options of vllm serve"
        )
    servers = {}
    for found in containers:
        try:
            servers[found.name] = _container_words(found)
        except ServeLineError as error:
            reason = error
    if container is not None:
        if container not in servers:
            known = ", ".join(servers) or "none"
            raise ServeLineError(f"{path} has no vLLM container {container!r}; it has: {known}")
        return servers[container]
    if not servers:
        raise ServeLineError(f"{path}: {reason}")
    if len(servers) > 1:
        names = ", ".join(servers)
        raise ServeLineError(
            f"{path} has {len(servers)} vLLM containers ({names}); say which, e.g. "
            f"{path}#{next(iter(servers))}"
        )
    return next(iter(servers.values()))


def words_of_config(path: Path) -> list[str]:
    """The options of a vLLM config file, for ``--config``. Raises ServeLineError."""
    documents = _load(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ServeLineError(f"{path} is no config of vLLM: it is no mapping of options")
    return _config_words(documents[0])


def _load(path: Path) -> list[Any]:
    try:
        import yaml
    except ImportError:
        raise ServeLineError(
            f"{path}: reading YAML needs the package PyYAML: pip install pyyaml"
        ) from None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ServeLineError(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; it is no manifest"
            )
        text = path.read_text(encoding="utf-8")
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except OSError as error:
        raise ServeLineError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ServeLineError(
            f"{path} is not valid YAML{where}; a template has to be rendered first"
        ) from None


def _containers(node: Any, seen: set[int], key: str) -> Iterator[_Container]:
    """Every mapping with an image: services of a compose file, containers of a manifest."""
    if not isinstance(node, (dict, list)) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, dict) and isinstance(node.get("services"), dict):
        for name, service in node["services"].items():
            if isinstance(service, dict) and isinstance(service.get("image"), str):
                yield _Container(str(name), service, "entrypoint", "command")
        return
    if isinstance(node, dict) and isinstance(node.get("image"), str):
        yield _Container(str(node.get("name", key)), node, "command", "args")
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for name, child in children:
        yield from _containers(child, seen, str(name))


def _container_words(container: _Container) -> tuple[dict[str, str], list[str]]:
    from kvplan.offline.serve_line.line import container_arguments

    node = container.node
    environment = _environment(node)
    entrypoint, arguments = (
        [_expanded(word, environment) for word in _words(node.get(key))]
        for key in (container.entrypoint_key, container.arguments_key)
    )
    return container_arguments(node["image"], entrypoint, arguments, environment)


def _environment(node: dict[str, Any]) -> dict[str, str]:
    entries = node.get("env") or node.get("environment") or []
    if isinstance(entries, dict):
        return {str(name): _text(value) for name, value in entries.items() if value is not None}
    found = {}
    for entry in entries:
        if isinstance(entry, dict) and "value" in entry and "name" in entry:
            found[str(entry["name"])] = _text(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            found[name] = value
    return found


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value, comments=True)
    return [_text(item) for item in value] if isinstance(value, list) else []


def _expanded(word: str, environment: dict[str, str]) -> str:
    """References to the container's own variables replaced; others stay as they are."""
    return _REFERENCE.sub(lambda m: environment.get(m[1] or m[2], m[0]), word)


def _is_config(document: Any) -> bool:
    known = option_table().by_name
    return isinstance(document, dict) and any(
        f"--{str(key).replace('_', '-')}" in known for key in document
    )


def _config_words(document: dict[str, Any]) -> list[str]:
    """Mirrors vllm/utils/argparse_utils.py::FlexibleArgumentParser.load_config_file (0.33)."""
    words: list[str] = []
    for key, value in document.items():
        name = f"--{key}"
        if isinstance(value, bool):
            off = f"--no-{str(key).replace('_', '-')}"
            if value:
                words.append(name)
            elif off in option_table().by_name:
                words.append(off)
        elif isinstance(value, list):
            words += [name, *map(str, value)] if value else []
        elif isinstance(value, dict):
            words += [name, json.dumps(value)]
        else:
            words += [name, str(value)]
    return words


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
