#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "kvplan/kvplan.h"

// Plans every request file in the folder that KVPLAN_BENCH_REQUESTS names, which is how
// `kvplan bench --cpp` has the C++ library plan its own scenarios.

namespace {

using namespace kvplan;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void plan_request(benchmark::State& state, const std::filesystem::path& path) {
  const JsonRequest read = read_json_request(text_of(path));
  for (auto _ : state) benchmark::DoNotOptimize(plan(read.request, read.config));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const char* folder = std::getenv("KVPLAN_BENCH_REQUESTS");
  if (folder == nullptr) {
    std::cerr << "KVPLAN_BENCH_REQUESTS names no folder with request files\n";
    return 1;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::filesystem::path& path : paths) {
    benchmark::RegisterBenchmark(path.filename().c_str(), plan_request, path);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
