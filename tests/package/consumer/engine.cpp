#include "kvplan/block_pool.h"

/// What the engine has of kvplan.
int engine_blocks() { return static_cast<int>(kvplan::BlockPool(8).num_free_blocks()); }
