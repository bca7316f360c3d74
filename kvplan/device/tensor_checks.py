"""Checks of tensors before anything is launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from kvplan._core import InvalidArgument

INT32_END = 2**31
INT64_END = 2**63

Ids: TypeAlias = torch.Tensor | Sequence[int]


def checked_tensor(
    name: str,
    tensor: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    at_least: bool = False,
) -> torch.Tensor:
    """``tensor``, if its last axis is contiguous and it is what the names say."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name}: needs a torch tensor, got {type(tensor).__name__}")
    if tensor.device != device:
        raise InvalidArgument(f"{name}: is on {tensor.device}, needs to be on {device}")
    if tensor.dtype != dtype:
        raise InvalidArgument(f"{name}: has dtype {tensor.dtype}, needs {dtype}")

    def fits(size: int, wanted: int | None) -> bool:
        return wanted is None or size == wanted or (at_least and size > wanted)

    if tensor.dim() != len(shape) or not all(map(fits, tensor.shape, shape)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InvalidArgument(
            f"{name}: has shape {tuple(tensor.shape)}, needs "
            f"{'at least ' if at_least else ''}({wanted})"
        )
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise InvalidArgument(f"{name}: has strides {tensor.stride()}, the last must be 1")
    return tensor


def check_host_values(name: str, tensor: torch.Tensor, low: int, high: int) -> None:
    """Checks values in ``[low, high)`` where the host has them."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return
    smallest, largest = int(tensor.min()), int(tensor.max())
    if smallest < low or largest >= high:
        value = smallest if smallest < low else largest
        raise InvalidArgument(f"{name}: {value} is out of range, needs to be in [{low}, {high})")


def checked_ids(
    name: str,
    ids: Ids,
    device: torch.device,
    num_blocks: int,
    first: int = 1,
) -> torch.Tensor:
    """Block ids as an int32 tensor on the device; ids that the host has are checked.

    They are 0 or in ``[first, num_blocks)``.
    """
    return uploaded(checked_where_they_are(name, ids, device, num_blocks, first), device)


def checked_where_they_are(
    name: str,
    ids: Ids,
    device: torch.device,
    num_blocks: int,
    first: int = 1,
) -> torch.Tensor:
    """The same, not uploaded: a list stays on the host, where its caller can check more."""
    if isinstance(ids, torch.Tensor):
        checked_tensor(name, ids, device, torch.int32, (None,))
        _check_host_ids(name, ids, num_blocks, first)
        return ids
    try:
        # The type is found, not given: torch would cut fractions off.
        ids = torch.as_tensor(ids)
        if not ids.numel():  # of no type
            ids = ids.to(torch.int64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{name}: needs block ids ({error})") from error
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidArgument(
            f"{name}: has shape {tuple(ids.shape)} and dtype {ids.dtype}, needs a list of integers"
        )
    ids = ids.to(torch.int64)
    _check_host_ids(name, ids, num_blocks, first)
    return ids.to(torch.int32)


def checked_pairs(
    source_ids: Ids, target_ids: Ids, device: torch.device, num_blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As many sources as targets, where they are."""
    sources = checked_where_they_are("source_ids", source_ids, device, num_blocks)
    targets = checked_where_they_are("target_ids", target_ids, device, num_blocks)
    if sources.shape != targets.shape:
        raise InvalidArgument(
            f"target_ids: has {targets.shape[0]} ids, source_ids has {sources.shape[0]}"
        )
    return sources, targets


def uploaded(ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``ids`` on the device, without waiting for it: a copy from pinned memory is asynchronous."""
    if ids.device == device:
        return ids
    return (ids.pin_memory() if device.type == "cuda" else ids).to(device, non_blocking=True)


def _check_host_ids(name: str, ids: torch.Tensor, num_blocks: int, first: int) -> None:
    check_host_values(name, ids, 0, num_blocks)
    if first > 1 and ids.device.type == "cpu":
        for id in ids[(ids > 0) & (ids < first)].tolist()[:1]:
            raise InvalidArgument(
                f"{name}: {id} is a slice of the null block; needs to be 0 or in "
                f"[{first}, {num_blocks})"
            )


def address_of(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
