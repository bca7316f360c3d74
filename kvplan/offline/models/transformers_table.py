"""What planning knows of transformers: ``transformers.json``, written by a script of this project.

vLLM reads a config through transformers' config classes and names the language model of a text
config by transformers' table; importing transformers takes seconds and can import torch.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def _table() -> dict[str, Any]:
    file = resources.files("kvplan.offline.models") / "transformers.json"
    return json.loads(file.read_text())


def class_defaults(model_type: str) -> dict[str, Any]:
    """Defaults of the config class of a model type, of the keys that planning reads."""
    return _table()["defaults"].get(model_type, {})


def causal_language_model(model_type: str) -> str | None:
    """The architecture that generates text with a config of this model type, or None."""
    return _table()["causal_lm"].get(model_type)


def is_model_type(model_type: str) -> bool:
    """Whether transformers has a config class with a vocabulary for this model type."""
    return model_type in _table()["defaults"]
