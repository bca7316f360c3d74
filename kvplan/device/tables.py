"""Block tables in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvplan import _core
from kvplan._core import InvalidArgument, Plan, PlanningConfig, Unsupported
from kvplan.arguments import in_range
from kvplan.device.operations import ops_for, resolved_device
from kvplan.device.status import WindowKind
from kvplan.device.tensor_checks import INT32_END, check_host_values, checked_tensor
from kvplan.kv_cache_config import iter_layer_specs
from kvplan.placed_cache import worker_config


@dataclass(frozen=True)
class TableGroup:
    """The block table of one KV cache group.

    ``block_size``: tokens. ``width``: entries of a row. ``window_tokens``: readable tokens below
    the next one (SLIDING: vLLM's ``num_retained_tokens``) or tokens of a chunk.
    ``extra_entries``: blocks beyond those of the tokens. ``dcp_sharded``: context parallelism deals
    the tokens of an entry to the ranks. ``slot_mapping``: whether tokens have slots. ``slices``: of
    a large block, where the blocks come from a ``SlicedDeviceBlockPool``.
    """

    block_size: int
    width: int
    window_kind: WindowKind = WindowKind.NONE
    window_tokens: int = 0
    extra_entries: int = 0
    dcp_sharded: bool = True
    slot_mapping: bool = True
    slices: int = 1


def _check_group(name: str, group: TableGroup, cp_interleave: int) -> None:
    if not isinstance(group, TableGroup):
        raise InvalidArgument(f"{name}: needs a TableGroup, got {type(group).__name__}")
    in_range(f"{name}.width", group.width, 1, INT32_END)
    in_range(f"{name}.block_size", group.block_size, 1, INT32_END)
    in_range(f"{name}.extra_entries", group.extra_entries, 0, INT32_END)
    in_range(f"{name}.slices", group.slices, 1, INT32_END)
    in_range(f"{name}.window_kind", group.window_kind, 0, len(WindowKind))
    smallest = 1 if group.window_kind == WindowKind.CHUNKED else 0
    in_range(f"{name}.window_tokens", group.window_tokens, smallest, INT32_END)
    if group.dcp_sharded and group.block_size % cp_interleave:
        raise InvalidArgument(
            f"{name}.block_size: {group.block_size} is no multiple of cp_interleave={cp_interleave}"
        )


def _table_group(index: int, group: Any, config: PlanningConfig, max_model_len: int) -> TableGroup:
    """A group's table, or Unsupported with its spec's name."""
    spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
    window = (WindowKind.NONE, 0)
    extra = 0
    if isinstance(spec, _core.SlidingWindowSpec):
        window = (WindowKind.SLIDING, spec.num_retained_tokens)
    elif isinstance(spec, _core.ChunkedLocalAttentionSpec):
        window = (WindowKind.CHUNKED, spec.attention_chunk_size)
    elif isinstance(spec, _core.MambaSpec) and config.mamba_cache_mode == "none":
        extra = spec.num_speculative_blocks
    elif not isinstance(spec, _core.FullAttentionSpec) or isinstance(spec, _core.RSWASpec):
        raise Unsupported(
            f"group {index}: append_slots has no rule for the blocks of {type(spec).__name__}"
        )
    width = group.kv_cache_spec.max_num_blocks_per_req(config, max_model_len)
    return TableGroup(
        spec.block_size,
        width,
        *window,
        extra_entries=extra,
        dcp_sharded=spec.dcp_sharded,
        slot_mapping=spec.uses_slot_mapping and not isinstance(spec, _core.MambaSpec),
        slices=group.slices,
    )


class BlockTables:
    """The block tables of all groups: one row a request.

    ``tables[g]``: int32 ``[max_num_reqs, width]``; ``num_entries``: int32
    ``[num_groups, max_num_reqs]``. ``max_batch``: the most requests of one call.
    """

    def __init__(
        self,
        groups: Sequence[TableGroup],
        max_num_reqs: int,
        device: torch.device | str = "cuda",
        *,
        max_batch: int | None = None,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
    ) -> None:
        self.groups = tuple(groups)
        self.max_num_reqs = in_range("max_num_reqs", max_num_reqs, 1, INT32_END)
        if max_batch is None:
            max_batch = max_num_reqs
        self.max_batch = in_range("max_batch", max_batch, 1, INT32_END)
        in_range("cp_size", cp_size, 1, INT32_END)
        in_range("cp_rank", cp_rank, 0, cp_size)
        in_range("cp_interleave", cp_interleave, 1, INT32_END)
        self._ops = ops_for(torch.device(device).type)
        self.device = resolved_device(device)
        for i, g in enumerate(self.groups):
            _check_group(f"groups[{i}]", g, cp_interleave if cp_size > 1 else 1)
        self.tables = [
            torch.zeros(max_num_reqs, g.width, dtype=torch.int32, device=self.device)
            for g in self.groups
        ]
        self.num_entries = torch.zeros(
            len(self.groups), max_num_reqs, dtype=torch.int32, device=self.device
        )
        self._workspace = torch.zeros(
            _core.append_slots_workspace(self.max_batch, len(self.groups)),
            dtype=torch.int64,
            device=self.device,
        )
        self._row_claims = torch.zeros(max_num_reqs, dtype=torch.int32, device=self.device)
        rows = [
            (
                table.data_ptr(),
                entries.data_ptr(),
                table.stride(0),
                g.width,
                g.block_size,
                int(g.window_kind),
                g.window_tokens,
                g.extra_entries,
                g.dcp_sharded,
                g.slot_mapping,
            )
            for g, table, entries in zip(self.groups, self.tables, self.num_entries, strict=True)
        ]
        self._native = _core.DeviceTables(
            rows, max_num_reqs, cp_size, cp_rank, cp_interleave, self._row_claims.data_ptr()
        )

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        max_num_reqs: int,
        device: torch.device | str = "cuda",
        *,
        worker: int = 0,
        dcp_rank: int = 0,
        dcp_interleave: int = 1,
        max_batch: int | None = None,
    ) -> BlockTables:
        """Tables for requests of the planned length, for blocks of ``pool_for_plan(plan)``.

        Raises Unsupported where a group's blocks follow other rules than those of full, sliding
        window and chunked attention and of Mamba states in mode ``none``.
        """
        config = plan.config
        groups = [
            _table_group(i, group, config, plan.max_model_len)
            for i, group in enumerate(worker_config(plan, worker).kv_cache_groups)
        ]
        return cls(
            groups,
            max_num_reqs,
            device,
            max_batch=max_batch,
            cp_size=config.decode_context_parallel_size,
            cp_rank=dcp_rank,
            cp_interleave=dcp_interleave,
        )

    def _rows(self, name: str, rows: torch.Tensor, size: int | None = None) -> int:
        checked_tensor(name, rows, self.device, torch.int32, (size,))
        if rows.device.type == "cpu":
            check_host_values(name, rows, -1, self.max_num_reqs)
            used = rows[rows >= 0]
            if used.unique().numel() != used.numel():
                raise InvalidArgument(f"{name}: a row is named twice")
        if not 1 <= rows.shape[0] <= self.max_batch:
            raise InvalidArgument(
                f"{name}: has {rows.shape[0]} requests, needs 1 to max_batch={self.max_batch}"
            )
        return rows.shape[0]


def checked_tables(tables: BlockTables) -> BlockTables:
    """``tables``, if they are that."""
    if not isinstance(tables, BlockTables):
        raise InvalidArgument(f"tables: needs BlockTables, got {type(tables).__name__}")
    return tables
