#pragma once

/// The operations on pool and tables, step by step, for a team of threads.
///
/// A team is one CUDA thread block, or one CPU thread. `for_each(n, f)` runs f(0) .. f(n - 1) in
/// any order and at once; `scan(n, value, store)` calls `store(i, sum of value(j) for j < i,
/// value(i))` for each i and returns the sum of all; `once(f)` runs f in one thread. Each ends with
/// a barrier: what a step wrote, the next one reads. Within a step no item depends on another;
/// tests run the items of a step in random order. `for_each_tile(n, f)` has f(t) run by the whole
/// team, with steps of its own, for every tile.
///
/// All thread blocks of a grid can be one team: then `for_each` and `for_each_tile` are shared out
/// among them, and nothing orders one `for_each` and the next; what was written, the next kernel
/// reads.
#include "device/append_steps.h"
#include "device/pool_steps.h"
#include "device/sliced_pool_steps.h"
#include "device/sliced_take_steps.h"
#include "device/table_steps.h"
