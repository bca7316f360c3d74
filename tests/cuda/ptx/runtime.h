#pragma once

#include <string>
#include <vector>

#include "machine.h"

/// What tests ask the runtime beyond CUDA's own interface.
namespace ptx {

/// The PTX of the linked kernels for an architecture, "80"; by default `KVPLAN_PTX_ARCH`, else 90.
Program& program();

/// Launches work again after a fault.
void forget_fault();

/// Where launches add up their costs from now on; null: nowhere.
void count_costs(Costs* costs);

/// Kernels of `program()` that were not launched.
std::vector<std::string> not_launched();

}  // namespace ptx
