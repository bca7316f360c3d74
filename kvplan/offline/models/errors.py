"""What can be wrong with a model, each as one clear message."""

from __future__ import annotations

from kvplan import PlanningError


class ModelError(PlanningError, ValueError):
    """A model cannot be planned; the message names the value and what would help."""


class UnknownArchitecture(ModelError):
    """No family of kvplan knows this architecture.

    Attributes:
        architecture: The name in the config.
        suggestion: The nearest known name, or None.
    """

    def __init__(
        self, architecture: str, suggestion: str | None, num_known: int, reason: str = ""
    ) -> None:
        self.architecture = architecture
        self.suggestion = suggestion
        hint = f" Did you mean {suggestion}?" if suggestion and not reason else ""
        if reason:
            reason = f" {reason}"
        kind = "architecture" if reason else "unknown architecture"
        super().__init__(
            f"{kind} {architecture!r} is not planned.{hint}{reason} Its KV cache is not guessed; "
            f"'kvplan models --architectures' lists the {num_known} that are known"
        )


class MissingKey(ModelError):
    """The config lacks a key that the KV cache depends on.

    Attributes:
        key: Name of the key.
    """

    def __init__(self, key: str, where: str, model_type: str) -> None:
        self.key = key
        if model_type:
            why = f"transformers has no default for model type {model_type!r} either"
        else:
            why = "it names no model_type either, whose default could be used"
        super().__init__(f"{where} has no {key!r}, which the KV cache depends on; {why}")
