#!/usr/bin/env python3
"""Write kvplan/offline/models/transformers.json: what planning needs to know of transformers.

Run it where the version of transformers is installed that the pinned vLLM takes. The table holds
the causal language model of each model type, and the defaults of its config class for the keys
that kvplan's model code names; the classes' sources are read, since instances compute some values.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[1] / "kvplan" / "offline" / "models"
TABLE = MODELS / "transformers.json"


def named_keys() -> set[str]:
    """Every string in kvplan's model code: of those, the ones that are config keys are kept."""
    return {
        node.value
        for path in MODELS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def class_literals(node: ast.ClassDef) -> dict[str, Any]:
    """Attributes of a class, and defaults of its ``__init__``, that are written as literals."""
    found: list[tuple[str, ast.expr | None]] = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.append((statement.target.id, statement.value))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found.append((statement.targets[0].id, statement.value))
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            defaults = statement.args.defaults
            names = [argument.arg for argument in statement.args.args]
            found += zip(names[len(names) - len(defaults) :], defaults, strict=True)
    literals = {}
    for name, value in found:
        try:
            literals[name] = ast.literal_eval(value) if value is not None else ...
        except ValueError:
            continue
    return {name: value for name, value in literals.items() if value is not ...}


def defaults(models: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each model type with the defaults of its config class, bases in the same file included."""
    keys = named_keys() - {"model_type"}
    for path in sorted(models.glob("*/configuration_*.py")):
        classes = {
            n.name: n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)
        }
        for node in classes.values():
            literals = class_literals(node)
            model_type = literals.get("model_type")
            if not isinstance(model_type, str):
                continue
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in classes:
                    literals = {**class_literals(classes[base.id]), **literals}
            yield model_type, {k: literals[k] for k in sorted(literals.keys() & keys)}


def table() -> dict[str, Any]:
    """The whole table."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("transformers is not installed here")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    models = Path(next(iter(spec.submodule_search_locations))) / "models"
    causal_lm = {
        model_type: name
        for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
        if isinstance(name, str)
    }
    found = {
        model_type: {k: v for k, v in values.items() if v is not None}
        for model_type, values in defaults(models)
        if "vocab_size" in values
    }
    return {
        "transformers": version("transformers"),
        "causal_lm": dict(sorted(causal_lm.items())),
        "defaults": dict(sorted(found.items())),
    }


def as_text(content: dict[str, Any]) -> str:
    """The table as JSON with a model type a line."""
    parts = [f'"transformers": {json.dumps(content["transformers"])}']
    for name in ("causal_lm", "defaults"):
        rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in content[name].items())
        parts.append(f'"{name}": {{\n{rows}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write the table, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the file would change")
    text = as_text(table())
    if not parser.parse_args().check:
        TABLE.write_text(text)
    elif TABLE.read_text() != text:
        raise SystemExit(f"{TABLE} is not what scripts/{Path(__file__).name} writes")


if __name__ == "__main__":
    main()
