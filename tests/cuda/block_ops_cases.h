#pragma once

/// Every CUDA operation against the CPU's, and `replays` of a captured step. `steps`: of random
/// batches. Ends the program with a message where something differs.
void run_block_ops_cases(int replays, int steps);
