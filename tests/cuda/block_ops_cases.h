#pragma once

#include <functional>
#include <vector>

/// What is run on a GPU and compared with the CPU implementation; a difference ends the process.
/// `replays` of a captured step, `steps` of random batches.
std::vector<std::function<void()>> block_ops_cases(int replays, int steps);

void run_block_ops_cases(int replays, int steps);
