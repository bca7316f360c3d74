"""What the model runner allocates before any step: neither weights nor activations."""

from __future__ import annotations

from kvplan.offline.budget.activation import ModelShape, has_v2_runner

#: Bytes for a vocabulary's entry and sequence: how often it was produced, and whether it was in the
#: prompt and may come next by a grammar (a bit each).
_BYTES_PER_ENTRY = 4 + 1 / 8 + 1 / 8
#: Bytes of the other tables for a sequence.
_BYTES_PER_SEQUENCE = 18 << 10


def runner_buffers(
    shape: ModelShape,
    *,
    tokens: int,
    sequences: int,
    itemsize: int = 2,
    is_first_stage: bool = True,
    is_last_stage: bool = True,
    version: tuple[int, int] = (0, 33),
) -> int:
    """Bytes of a runner's own buffers.

    The V2 runner keeps the sampler's tables for all sequences from the start.
    Mirrors vllm/v1/worker/gpu/sample/penalties.py::PenaltiesState and
    vllm/v1/worker/gpu/structured_outputs.py (0.33).

    Args:
        shape: The model's sizes.
        tokens: Tokens of a step.
        sequences: Sequences of a step.
        itemsize: Bytes of an element of the model's dtype.
        is_first_stage: Whether the rank embeds tokens.
        is_last_stage: Whether the rank samples.
        version: vLLM's version.
    """
    states = tokens * shape.hidden * itemsize
    # Embeddings, or the hidden states and residuals of the stage before.
    inputs = (states if shape.is_multimodal else 0) if is_first_stage else 2 * states
    if not is_last_stage:
        return inputs
    if not has_v2_runner(shape, version):
        return inputs + sequences * (_BYTES_PER_SEQUENCE + shape.vocabulary // 8)
    return inputs + int(sequences * (shape.vocabulary * _BYTES_PER_ENTRY + _BYTES_PER_SEQUENCE))
