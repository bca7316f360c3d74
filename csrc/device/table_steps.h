#pragma once

#include <cstdint>

#include "device/step.h"
#include "kvplan/device/block_ops.h"

// What rows of block tables have and need.
namespace kvplan::cuda {

/// The tables of one request: what the steps below ask again and again.
struct RequestView {
  int32_t row;
  int64_t context_len;
  int64_t new_tokens;
  int64_t reserved;  ///< tokens that get blocks, those of the context among them
};

struct EntryRange {
  int64_t begin;
  int64_t end;
  KVPLAN_STEP int64_t size() const { return end > begin ? end - begin : 0; }
};

KVPLAN_STEP inline int32_t* table_row(const GroupTable& g, int32_t row) {
  return g.table + row * g.row_stride;
}

/// Entries of a row in use; a damaged number cannot lead outside the row.
KVPLAN_STEP inline int64_t entries_in_use(const GroupTable& g, int32_t row) {
  const int32_t n = g.num_entries[row];
  return n < 0 ? 0 : (n > g.width ? g.width : n);
}

KVPLAN_STEP inline int64_t entry_tokens(const GroupTable& g, const ContextParallel& cp) {
  return tokens_per_entry(g.block_size, g.dcp_sharded, cp);
}

KVPLAN_STEP inline int64_t required(const GroupTable& g, const ContextParallel& cp,
                                    const RequestView& q) {
  return required_entries(q.reserved, entry_tokens(g, cp), g.extra_entries);
}

KVPLAN_STEP inline int64_t null_entries(const GroupTable& g, const ContextParallel& cp,
                                        int64_t context_len) {
  return leading_null_entries(g.window, context_len, entry_tokens(g, cp));
}

/// The blocks before entry `end` that the row still holds: what lies below them is null already.
/// Mostly there is one or none, after a chunk of tokens there are many: the steps down get wider.
KVPLAN_STEP inline EntryRange dropped_entries(const GroupTable& g, int32_t row, int64_t end) {
  const int32_t* entries = table_row(g, row);
  int64_t begin = end;  // all from here on are held
  int64_t low = 0;      // all below are null
  for (int64_t distance = 1; low < begin; distance *= 2) {
    const int64_t probe = begin > distance ? begin - distance : 0;
    if (entries[probe] == kNullEntry) {
      low = probe + 1;
      break;
    }
    begin = probe;
  }
  while (low < begin) {
    const int64_t middle = (low + begin) / 2;
    if (entries[middle] == kNullEntry) {
      low = middle + 1;
    } else {
      begin = middle;
    }
  }
  return {begin, end};
}

/// The entries that get a new block. Between those in use and these lie null ones.
KVPLAN_STEP inline EntryRange new_entries(const GroupTable& g, const ContextParallel& cp,
                                          const RequestView& q, int64_t in_use, int64_t nulls) {
  return {in_use > nulls ? in_use : nulls, required(g, cp, q)};
}

/// A row as it is gathered: its first `count` entries, null below `nulls`.
struct GatheredRow {
  const int32_t* entries;
  int64_t count;
  int64_t nulls;

  KVPLAN_STEP int32_t entry(int64_t j, int32_t block) const {
    return j < nulls ? kNullEntry : block;
  }
};

KVPLAN_STEP inline GatheredRow gathered_row(const GatherTables& a, int32_t group, int64_t r) {
  const GroupTable& g = a.groups[group];
  const int32_t row = a.rows[r];
  if (row < 0 || row >= a.num_rows) return {g.table, g.width, g.width};
  return {table_row(g, row), entries_in_use(g, row),
          a.context_lens != nullptr ? null_entries(g, a.cp, a.context_lens[r]) : int64_t{0}};
}

/// What an entry becomes after moves of blocks.
KVPLAN_STEP inline int32_t remapped(const RemapBlocks& a, int32_t block) {
  int64_t low = 0;
  int64_t high = a.num_moves;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (a.sources[middle] < block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < a.num_moves && a.sources[low] == block ? a.targets[low] : block;
}

}  // namespace kvplan::cuda
