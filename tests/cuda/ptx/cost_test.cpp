// What a decode step costs, by the count of issue slots and the model of clock.h, and the limits
// that it must keep. ptx_cost_test [name of one case [lines of source to list]].
#include <vector_types.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "kvplan/device/cuda_block_ops.h"
#include "runtime.h"

namespace {

using namespace kvplan::cuda;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kContext = 4000;
constexpr int32_t kWindow = 1023;
constexpr int32_t kSlicesOfWindowed = 8;

/// Requests with a context of about 4,000 tokens, 3/4 of their groups windowed, and the pool they
/// use.
template <class Args>
class Batch {
  static constexpr bool is_sliced = std::is_same_v<Args, AppendSlices>;

 public:
  /// `before`: tokens of a step before the one that is counted.
  Batch(int32_t requests, int32_t groups, int32_t windowed, int32_t new_tokens, bool is_full,
        int32_t before)
      : width_((kContext + before + new_tokens + 96) / kBlockSize + 4) {
    args_.num_groups = groups;
    args_.num_rows = args_.max_requests = requests;
    args_.workspace = array<int64_t>(append_slots_workspace(requests, groups));
    rows_ = array<int32_t>(requests);
    context_ = array<int32_t>(requests);
    new_tokens_ = array<int32_t>(requests);
    std::iota(rows_, rows_ + requests, 0);
    args_.rows = rows_;
    args_.context_lens = context_;
    args_.new_tokens = new_tokens_;
    args_.status = status_ = array<int32_t>(requests);
    args_.query_starts = array<int32_t>(requests + 1);
    args_.row_claims = array<int32_t>(requests);
    for (int32_t g = 0; g < groups; ++g) {
      args_.groups[g] = {.table = array<int32_t>(int64_t{requests} * width_),
                         .num_entries = array<int32_t>(requests),
                         .row_stride = width_,
                         .width = width_,
                         .block_size = kBlockSize,
                         .window = g < windowed ? Window{WindowKind::kSliding, kWindow} : Window{}};
    }
    make_pool(args_.pool, requests, groups, windowed);
    reset_pool(cpu_block_ops(), args_.pool);
    fill(requests);
    args_.max_tokens = args_.slots_stride = int64_t{requests} * std::max(new_tokens, before);
    args_.slots = array<int64_t>(groups * args_.max_tokens);
    if (before > 0) {
      std::fill_n(new_tokens_, requests, before);
      append_slots(cpu_block_ops(), args_);
      for (int32_t r = 0; r < requests; ++r) context_[r] += before;
    }
    std::fill_n(new_tokens_, requests, new_tokens);
    if (is_full) {
      int32_t& num_free = args_.pool.state[kNumFree];
      // A third of what is needed; of slices, what the groups without a window need.
      const int32_t needed = requests / kBlockSize * (is_sliced ? groups - windowed : groups);
      num_free = std::min(num_free, needed / 3);
    }
  }

  ptx::Costs step(int32_t& refused) {
    ptx::Costs costs;
    ptx::count_costs(&costs);
    append_slots(cuda_block_ops(), args_);
    ptx::count_costs(nullptr);
    refused = static_cast<int32_t>(std::count(status_, status_ + args_.max_requests, kOutOfBlocks));
    return costs;
  }

 private:
  template <class T>
  T* array(int64_t size) {
    memory_.push_back(std::make_unique<int64_t[]>(
        (static_cast<size_t>(size) * sizeof(T) + sizeof(int64_t) - 1) / sizeof(int64_t)));
    return reinterpret_cast<T*>(memory_.back().get());
  }

  void make_pool(Pool& pool, int32_t requests, int32_t groups, int32_t) {
    pool.num_blocks = requests * groups * width_;
    pool.free_ids = array<int32_t>(pool.num_blocks);
    pool.state = array<int32_t>(kPoolStateSize);
  }

  void make_pool(SlicedPool& pool, int32_t requests, int32_t groups, int32_t windowed) {
    pool.num_groups = groups;
    pool.max_slices = kSlicesOfWindowed;
    for (int32_t g = 0; g < groups; ++g) {
      pool.slices[g] = g < windowed ? kSlicesOfWindowed : 1;
      pool.num_large_blocks += requests * width_ / pool.slices[g] + requests;
    }
    pool.free_large = array<int32_t>(pool.num_large_blocks);
    pool.listed = array<int32_t>(pool.num_large_blocks);
    pool.state = array<int32_t>(kPoolStateSize + groups);
    pool.large = array<LargeBlock>(pool.num_large_blocks);
    pool.used_slices = array<int32_t>(pool.num_large_blocks);
  }

  /// The rows as if their requests had come here by chunks of 64 tokens, and then by 20 steps.
  void fill(int32_t requests) {
    constexpr int32_t kChunk = 64;
    Args a = args_;
    a.max_tokens = a.slots_stride = int64_t{requests} * kChunk;
    const auto slots =
        std::make_unique<int64_t[]>(static_cast<size_t>(a.num_groups * a.max_tokens));
    a.slots = slots.get();
    const auto grow = [&](int32_t most, auto length) {
      for (bool more = true; more;) {
        more = false;
        for (int32_t r = 0; r < requests; ++r) {
          new_tokens_[r] = std::min(most, length(r) - context_[r]);
          more = more || new_tokens_[r] > 0;
        }
        append_slots(cpu_block_ops(), a);
        for (int32_t r = 0; r < requests; ++r) context_[r] += new_tokens_[r];
      }
    };
    grow(kChunk, [](int32_t r) { return kContext + r % kBlockSize; });
    grow(1, [](int32_t r) { return kContext + r % kBlockSize + 20; });
  }

  std::vector<std::unique_ptr<int64_t[]>> memory_;
  const int32_t width_;
  int32_t* rows_;
  int32_t* context_;
  int32_t* new_tokens_;
  int32_t* status_;
  Args args_;
};

struct Case {
  const char* name;
  bool is_sliced;
  int32_t requests, groups, windowed, new_tokens;
  bool is_full;
  double limit;        // microseconds
  int32_t before = 0;  // tokens of a step before it, whose blocks the windows drop
};

constexpr Case kCases[] = {
    {"plain 256 x 4", false, 256, 4, 3, 1, false, 11},
    {"plain 256 x 16", false, 256, 16, 12, 1, false, 14},
    {"plain 1024 x 16", false, 1024, 16, 12, 1, false, 14},
    {"plain 1024 x 16, full", false, 1024, 16, 12, 1, true, 25},
    {"sliced 256 x 4", true, 256, 4, 3, 1, false, 20.5},
    {"sliced 256 x 16", true, 256, 16, 12, 1, false, 30},
    {"sliced 1024 x 16", true, 1024, 16, 12, 1, false, 50},
    {"sliced 256 x 4, full", true, 256, 4, 3, 1, true, 40},
    {"sliced 1024 x 16, full", true, 1024, 16, 12, 1, true, 93},
    {"chunk of 32768 x 4", false, 1, 4, 0, 32768, false, 14},
    // One thread block drops 6,144 blocks: far from the 1.5 times of the case above.
    {"chunk of 32768 x 4, windows", false, 1, 4, 3, 32768, false, 60, 32768},
};

ptx::Costs costs_of(const Case& c, int32_t& refused) {
  if (c.is_sliced) {
    return Batch<AppendSlices>(c.requests, c.groups, c.windowed, c.new_tokens, c.is_full, c.before)
        .step(refused);
  }
  return Batch<AppendSlots>(c.requests, c.groups, c.windowed, c.new_tokens, c.is_full, c.before)
      .step(refused);
}

void list_lines(const ptx::Costs& costs, size_t count) {
  for (const auto& [name, cycles] : costs.kernels) {
    std::printf("  %6.1f us %s\n", cycles / ptx::kCyclesPerMicrosecond, name.c_str());
  }
  std::vector<std::pair<double, std::pair<int, int>>> lines;
  for (const auto& [line, slots] : costs.slots_of_line) lines.emplace_back(slots, line);
  std::sort(lines.rbegin(), lines.rend());
  lines.resize(std::min(lines.size(), count));
  for (const auto& [slots, line] : lines) {
    std::printf("  %5.1f %% %s:%d\n", 100 * slots / costs.slots,
                ptx::program().files[line.first].c_str(), line.second);
  }
}

/// Whether bytes move faster than by an H200's memory, 4.3 TB/s, in the time that the issue slots
/// take at least: instructions must not be what bounds them.
bool is_bound_by_memory(const char* what, int64_t size, double bytes, const ptx::Costs& costs) {
  const double speed = bytes / ptx::issue_microseconds(costs.slots) / 1e6;
  const bool kept = speed >= 0.8 * 4.3;
  std::printf("%s %5lld bytes: %7.0f slots, at most %5.2f TB/s%s\n", what,
              static_cast<long long>(size), costs.slots, speed, kept ? "" : " (below 80 % of 4.3)");
  return kept;
}

/// Zeroing and copying pages of many layers.
bool pages_are_bound_by_memory(int64_t page, bool copies) {
  constexpr int32_t kBlocks = 64;
  constexpr int32_t kRegions = 32;
  std::vector<BlockRegion> regions;
  for (int64_t r = 0; r < kRegions; ++r) regions.push_back({r * kBlocks * page, page, page});
  const auto buffer =
      std::make_unique<uint4[]>(static_cast<size_t>(kRegions * kBlocks * page / 16));
  std::vector<int32_t> ids(kBlocks / 2), targets(kBlocks / 2);
  std::iota(ids.begin(), ids.end(), 0);
  std::iota(targets.begin(), targets.end(), kBlocks / 2);
  const auto n = static_cast<int64_t>(ids.size());
  ptx::Costs costs;
  ptx::count_costs(&costs);
  if (copies) {
    copy_blocks(cuda_block_ops(), {buffer.get(), buffer.get(), regions.data(), kRegions, page, 16,
                                   kBlocks, n, ids.data(), targets.data()});
  } else {
    zero_blocks(cuda_block_ops(),
                {buffer.get(), regions.data(), kRegions, page, 16, kBlocks, n, ids.data()});
  }
  ptx::count_costs(nullptr);
  return is_bound_by_memory(copies ? "copying pages of" : "zeroing pages of", page,
                            static_cast<double>(n * kRegions * page) * (copies ? 2 : 1), costs);
}

/// The same of gathering tables: 4 bytes read and written an entry.
bool gathering_is_bound_by_memory() {
  constexpr int32_t kRequests = 256;
  constexpr int32_t kGroups = 16;
  constexpr int32_t kWidth = 256;
  std::vector<int32_t> rows(kRequests);
  std::iota(rows.begin(), rows.end(), 0);
  const auto tables = std::make_unique<int4[]>(size_t{2} * kGroups * kRequests * kWidth / 4);
  auto* const entries = reinterpret_cast<int32_t*>(tables.get());
  std::vector<int32_t> num_entries(kRequests, kWidth);
  GatherTables a;
  a.num_groups = kGroups;
  a.num_rows = a.max_requests = kRequests;
  a.rows = rows.data();
  for (int32_t g = 0; g < kGroups; ++g) {
    a.groups[g] = {.table = entries + int64_t{2} * g * kRequests * kWidth,
                   .num_entries = num_entries.data(),
                   .row_stride = kWidth,
                   .width = kWidth,
                   .block_size = kBlockSize,
                   .window = {}};
    a.out[g] = a.groups[g].table + int64_t{kRequests} * kWidth;
    a.out_stride[g] = kWidth;
  }
  ptx::Costs costs;
  ptx::count_costs(&costs);
  gather_tables(cuda_block_ops(), a);
  ptx::count_costs(nullptr);
  return is_bound_by_memory("gathering tables of", 4 * kWidth,
                            2.0 * 4 * kGroups * kRequests * kWidth, costs);
}

}  // namespace

int main(int argc, char** argv) {
  bool all_kept = true;
  for (const Case& c : kCases) {
    if (argc > 1 && std::string(argv[1]) != c.name) continue;
    int32_t refused = 0;
    const ptx::Costs costs = costs_of(c, refused);
    const bool kept = costs.microseconds() <= c.limit;
    all_kept = all_kept && kept;
    std::printf(
        "%-28s %6.1f us of %4.0f%s, %8.0f slots, %8.0f on the critical path, %llu launches,"
        " %llu barriers, %d refused\n",
        c.name, costs.microseconds(), c.limit, kept ? "" : " (above)", costs.slots,
        costs.critical_slots, static_cast<unsigned long long>(costs.launches),
        static_cast<unsigned long long>(costs.barriers), refused);
    std::fflush(stdout);
    if (argc > 2) list_lines(costs, std::strtoull(argv[2], nullptr, 10));
  }
  for (const int64_t page : {1024, 2112, 4096, 65536}) {
    for (const bool copies : {false, true}) {
      if (argc == 1) all_kept = pages_are_bound_by_memory(page, copies) && all_kept;
    }
  }
  if (argc == 1) all_kept = gathering_is_bound_by_memory() && all_kept;
  return all_kept ? 0 : 1;
}
