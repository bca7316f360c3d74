"""Defaults of transformers' config classes, read from their source without importing it.

Importing transformers can import torch and takes seconds; its config classes are plain source
files, and their defaults are literals.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _models_directory() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(next(iter(spec.submodule_search_locations))) / "models"
    return directory if directory.is_dir() else None


def transformers_installed() -> bool:
    """Whether transformers' sources can be read."""
    return _models_directory() is not None


def _candidate_files(models: Path, model_type: str) -> list[Path]:
    """Sources that can define a model type: its own folder, or that of a longer name's stem."""
    parts = model_type.replace("-", "_").split("_")
    for length in range(len(parts), 0, -1):
        files = sorted((models / "_".join(parts[:length])).glob("configuration_*.py"))
        if files:
            return files
    return []


def _literal(node: ast.expr | None) -> tuple[bool, Any]:
    if node is None:
        return False, None
    try:
        return True, ast.literal_eval(node)
    except ValueError:
        return False, None


def _class_defaults(node: ast.ClassDef) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            known, value = _literal(statement.value)
            if known:
                defaults[statement.target.id] = value
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known, value = _literal(statement.value)
            if known:
                defaults[statement.targets[0].id] = value
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            arguments = statement.args.args[
                -len(statement.args.defaults) or len(statement.args.args) :
            ]
            for argument, default in zip(arguments, statement.args.defaults, strict=False):
                known, value = _literal(default)
                if known:
                    defaults[argument.arg] = value
    return defaults


@cache
def class_defaults(model_type: str) -> dict[str, Any]:
    """Attribute defaults of the config class of a model type; empty if there is none."""
    models = _models_directory()
    if models is None or not model_type or "/" in model_type or ".." in model_type:
        return {}
    for path in _candidate_files(models, model_type):
        try:
            tree = ast.parse(path.read_text())
        except (OSError, SyntaxError):
            continue
        classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        for node in classes.values():
            defaults = _class_defaults(node)
            if defaults.get("model_type") == model_type:
                for base in node.bases:
                    if isinstance(base, ast.Name) and base.id in classes:
                        defaults = {**_class_defaults(classes[base.id]), **defaults}
                return defaults
    return {}
