#pragma once

#include <map>
#include <string>

/// Kernels of one array of 64, by what is wrong with them.
const std::map<std::string, void (*)(int*)>& fault_kernels();
