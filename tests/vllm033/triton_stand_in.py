"""Enough of Triton's language, over torch on the CPU, to run vLLM's block table kernels.

A pointer is a flat tensor and an index (a number or a tensor); a masked-out lane is neither read
nor written.
"""

from __future__ import annotations

import torch


class Pointer:
    """Elements of a tensor's memory, counted from its first."""

    def __init__(self, tensor: torch.Tensor, index: torch.Tensor | int = 0) -> None:
        self.tensor = tensor
        self.index = index

    def __add__(self, offset: torch.Tensor | int) -> Pointer:
        return Pointer(self.tensor, self.index + offset)

    def flat(self) -> torch.Tensor:
        storage = torch.empty(0, dtype=self.tensor.dtype)
        return storage.set_(self.tensor.untyped_storage())[self.tensor.storage_offset() :]


class Language:
    """Stands for ``triton.language`` while one program of a grid runs."""

    int32 = torch.int32
    int64 = torch.int64
    constexpr = object

    def __init__(self, grid: tuple[int, ...]) -> None:
        self.grid = grid
        self.program: tuple[int, ...] = (0,) * len(grid)

    def program_id(self, axis: int) -> int:
        return self.program[axis]

    def num_programs(self, axis: int) -> int:
        return self.grid[axis]

    @staticmethod
    def arange(start: int, end: int) -> torch.Tensor:
        return torch.arange(start, end)

    @staticmethod
    def range(*bounds: int) -> range:
        return range(*(int(b) for b in bounds))

    @staticmethod
    def maximum(a: torch.Tensor, b: int) -> torch.Tensor:
        return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))

    @staticmethod
    def where(condition: object, a: object, b: object) -> torch.Tensor:
        return torch.where(*(torch.as_tensor(x) for x in (condition, a, b)))

    @staticmethod
    def load(pointer: Pointer, mask: object = None, other: int = 0) -> torch.Tensor:
        flat = pointer.flat()
        index = torch.as_tensor(pointer.index)
        if mask is None:
            return flat[index]
        mask, index = torch.broadcast_tensors(torch.as_tensor(mask), index)
        values = torch.full(index.shape, other, dtype=flat.dtype)
        values[mask] = flat[index[mask]]
        return values

    @staticmethod
    def store(pointer: Pointer, value: object, mask: object = None) -> None:
        index = torch.as_tensor(pointer.index)
        mask = torch.as_tensor(True if mask is None else mask)
        mask, index, value = torch.broadcast_tensors(mask, index, torch.as_tensor(value))
        flat = pointer.flat()
        flat[index[mask]] = value[mask].to(flat.dtype)


def run(kernel, grid, module, monkeypatch, *args, **constants):
    """Runs a ``triton.jit`` function of ``module`` on a grid; tensors become pointers."""
    function = getattr(kernel, "fn", kernel)
    language = Language(grid)
    monkeypatch.setattr(module, "tl", language)
    monkeypatch.setattr(module, "_load_ptr", lambda pointer, dtype: pointer, raising=False)
    pointers = [
        Pointer(a) if isinstance(a, torch.Tensor) else Tables(a) if isinstance(a, list) else a
        for a in args
    ]
    for first in range(grid[0]):
        for second in range(grid[1]):
            language.program = (first, second)
            function(*pointers, **constants)


class Tables:
    """An array of pointers."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def __add__(self, index: int) -> Pointer:
        return Pointer(self.tensors[int(index)])
