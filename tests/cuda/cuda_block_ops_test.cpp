// The CUDA operations against the CPU's, and replays of a captured step (10,000, or the first
// argument; the second: steps of random batches). Exit code 77: no GPU. Under compute-sanitizer:
//   compute-sanitizer --tool memcheck  cuda_block_ops_test 50
//   compute-sanitizer --tool racecheck cuda_block_ops_test 50
// The emulation (tests/cuda/emulation) runs it without a GPU.
#include "kvplan/device/cuda_block_ops.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace kvplan::cuda;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

/// An array in host or device memory.
template <class T>
class Array {
 public:
  Array(bool on_device, size_t size, T value) : on_device_(on_device), size_(size) {
    if (on_device) {
      check(cudaMalloc(&data_, size * sizeof(T)), "cudaMalloc");
    } else {
      data_ = static_cast<T*>(std::malloc(size * sizeof(T)));
    }
    set(std::vector<T>(size, value));
  }
  ~Array() {
    if (on_device_) {
      cudaFree(data_);
    } else {
      std::free(data_);
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }

  void set(const std::vector<T>& values) {
    check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault), "set");
  }

  std::vector<T> get() const {
    std::vector<T> values(size_);
    check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDefault), "get");
    return values;
  }

 private:
  bool on_device_;
  size_t size_;
  T* data_ = nullptr;
};

constexpr int32_t kRows = 32;
constexpr int32_t kGroups = 4;
constexpr int32_t kWidth = 64;
constexpr int64_t kMaxTokens = 5000;  // more than one launch writes
constexpr int32_t kBlocks = 1500;

/// Pool, tables and a batch on one side.
struct Side {
  const BlockOps& ops;
  Array<int32_t> free_ids, state, ref_counts, last_use, tables, num_entries, rows, context_lens,
      new_tokens, status, query_starts;
  Array<int64_t> slots, positions, workspace;
  AppendSlots args;
  ReleaseRows released;

  Side(const BlockOps& operations, bool on_device, bool counted)
      : ops(operations),
        free_ids(on_device, kBlocks, 0),
        state(on_device, kPoolStateSize, 0),
        ref_counts(on_device, kBlocks, 0),
        last_use(on_device, kBlocks, 0),
        tables(on_device, size_t{kGroups} * kRows * kWidth, 0),
        num_entries(on_device, size_t{kGroups} * kRows, 0),
        rows(on_device, kRows, -1),
        context_lens(on_device, kRows, 0),
        new_tokens(on_device, kRows, 0),
        status(on_device, kRows, 0),
        query_starts(on_device, kRows + 1, 0),
        slots(on_device, kGroups * kMaxTokens, 0),
        positions(on_device, kMaxTokens, 0),
        workspace(on_device, append_slots_workspace(kRows, kGroups), 0) {
    args.pool = {.num_blocks = kBlocks, .free_ids = free_ids.data(), .state = state.data()};
    if (counted) {
      args.pool.ref_counts = ref_counts.data();
      args.pool.last_use = last_use.data();
    }
    args.num_groups = kGroups;
    args.num_rows = kRows;
    args.max_requests = kRows;
    args.max_tokens = kMaxTokens;
    args.cp = {2, 1, 4};
    args.rows = rows.data();
    args.context_lens = context_lens.data();
    args.new_tokens = new_tokens.data();
    args.status = status.data();
    args.slots = slots.data();
    args.slots_stride = kMaxTokens;
    args.query_starts = query_starts.data();
    args.positions = positions.data();
    args.workspace = workspace.data();
    const Window windows[kGroups] = {
        {}, {WindowKind::kSliding, 100}, {WindowKind::kChunked, 128}, {}};
    for (int32_t g = 0; g < kGroups; ++g) {
      args.groups[g] = {.table = tables.data() + int64_t{g} * kRows * kWidth,
                        .num_entries = num_entries.data() + int64_t{g} * kRows,
                        .row_stride = kWidth,
                        .width = kWidth,
                        .block_size = 16 << (g % 2),
                        .window = windows[g],
                        .dcp_sharded = g == 3};
    }
    released.pool = args.pool;
    released.num_groups = kGroups;
    released.num_rows = kRows;
    released.max_requests = kRows;
    released.rows = rows.data();
    released.workspace = workspace.data();
    std::copy(std::begin(args.groups), std::end(args.groups), std::begin(released.groups));
    reset_pool(ops, args.pool);
  }
};

void expect_equal(const Side& a, const Side& b) {
  expect(a.state.get() == b.state.get(), "state");
  const int32_t num_free = a.state.get()[kNumFree];
  std::vector<int32_t> x = a.free_ids.get(), y = b.free_ids.get();
  expect(std::equal(x.begin(), x.begin() + num_free, y.begin()), "free ids");
  expect(a.ref_counts.get() == b.ref_counts.get(), "reference counts");
  expect(a.tables.get() == b.tables.get(), "tables");
  expect(a.num_entries.get() == b.num_entries.get(), "entries");
  expect(a.status.get() == b.status.get(), "status");
  expect(a.slots.get() == b.slots.get(), "slots");
  expect(a.positions.get() == b.positions.get(), "positions");
  expect(a.query_starts.get() == b.query_starts.get(), "query starts");
}

void random_batches(bool counted, int steps) {
  std::mt19937 random(counted ? 1 : 2);
  Side cpu(cpu_block_ops(), false, counted);
  Side gpu(cuda_block_ops(), true, counted);
  std::vector<int32_t> lengths(kRows, 0);
  for (int step = 0; step < steps; ++step) {
    std::vector<int32_t> rows(kRows), context(kRows), tokens(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    for (int32_t r = 0; r < kRows; ++r) {
      context[r] = lengths[rows[r]];
      tokens[r] = static_cast<int32_t>(random() % 2 == 0 ? 1 : random() % 100);
      tokens[r] = std::min(tokens[r], 1000 - context[r]);
      if (random() % 8 == 0) rows[r] = -1;
    }
    for (Side* side : {&cpu, &gpu}) {
      side->rows.set(rows);
      side->context_lens.set(context);
      side->new_tokens.set(tokens);
      append_slots(side->ops, side->args);
    }
    check(cudaDeviceSynchronize(), "append_slots");
    expect_equal(cpu, gpu);
    const std::vector<int32_t> status = cpu.status.get();
    for (int32_t r = 0; r < kRows; ++r) {
      if (rows[r] >= 0 && status[r] == kOk) lengths[rows[r]] += tokens[r];
    }
    std::vector<int32_t> ended(kRows, -1);
    for (int32_t row = 0; row < kRows; ++row) {
      if (lengths[row] < 900 && random() % 10 != 0) continue;
      ended[row] = row;
      lengths[row] = 0;
    }
    for (Side* side : {&cpu, &gpu}) {
      side->rows.set(ended);
      release_rows(side->ops, side->released);
    }
    check(cudaDeviceSynchronize(), "release_rows");
    expect_equal(cpu, gpu);
  }
}

void zero_and_copy() {
  const std::vector<BlockRegion> regions{
      {64, 40960, 20000}, {20064 + 16, 40960, 16}, {819264, 48, 48}};
  const size_t size = 819264 + 48 * 20;
  std::vector<uint8_t> content(size);
  std::iota(content.begin(), content.end(), uint8_t{1});
  const std::vector<int32_t> ids{3, 19, 0, 25}, targets{4, 18, 1, 2};
  for (const int32_t width : {16, 8, 4, 2, 1}) {
    std::vector<std::vector<uint8_t>> results;
    for (const bool on_device : {false, true}) {
      const BlockOps& ops = on_device ? cuda_block_ops() : cpu_block_ops();
      Array<uint8_t> buffer(on_device, size, 0);
      buffer.set(content);
      Array<BlockRegion> table(on_device, regions.size(), {});
      table.set(regions);
      Array<int32_t> from(on_device, ids.size(), 0), to(on_device, ids.size(), 0);
      from.set(ids);
      to.set(targets);
      Array<int32_t> errors(on_device, 1, 0);
      expect(vector_bytes(buffer.data(), regions) >= width, "alignment");
      copy_blocks(ops, {buffer.data(), buffer.data(), table.data(), 3, 20000, width, 20, 4,
                        from.data(), to.data(), nullptr, errors.data()});
      zero_blocks(ops, {buffer.data(), table.data(), 3, 20000, width, 20, 2, from.data(), nullptr,
                        errors.data()});
      check(cudaDeviceSynchronize(), "zero and copy");
      expect(errors.get()[0] == kBadBlockId, "error bit");
      results.push_back(buffer.get());
    }
    expect(results[0] == results[1], "bytes");
  }
}

void replay(int replays) {
  Side gpu(cuda_block_ops(), true, true);
  std::vector<int32_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  gpu.rows.set(rows);
  gpu.new_tokens.set(std::vector<int32_t>(kRows, 1));
  cudaGraph_t graph;
  cudaGraphExec_t step;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
  append_slots(gpu.ops, gpu.args, stream);
  release_rows(gpu.ops, gpu.released, stream);
  check(cudaStreamEndCapture(stream, &graph), "end");
  check(cudaGraphInstantiate(&step, graph, 0), "instantiate");
  for (int i = 0; i < replays; ++i) check(cudaGraphLaunch(step, stream), "launch");
  check(cudaStreamSynchronize(stream), "replay");
  expect(gpu.state.get()[kNumFree] == kBlocks - 1, "all blocks are back");
  expect(gpu.state.get()[kPoolErrors] == 0, "no errors");
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

/// A pool of slices under the same tables, on one side.
struct SlicedSide {
  static constexpr int32_t kLarge = 600;
  static constexpr int32_t kMostSlices = 8;

  Side tables;
  Array<int32_t> free_large, listed, state, used_slices;
  Array<LargeBlock> large;
  AppendSlices args;
  ReleaseSlicedRows released;

  SlicedSide(const BlockOps& ops, bool on_device)
      : tables(ops, on_device, false),
        free_large(on_device, kLarge, 0),
        listed(on_device, kLarge, 0),
        state(on_device, kPoolStateSize + kGroups, 0),
        used_slices(on_device, kLarge * slice_words(kMostSlices), 0),
        large(on_device, kLarge, {}) {
    SlicedPool& pool = args.pool;
    pool.num_large_blocks = kLarge;
    pool.num_groups = kGroups;
    pool.max_slices = kMostSlices;
    pool.free_large = free_large.data();
    pool.listed = listed.data();
    pool.state = state.data();
    pool.large = large.data();
    pool.used_slices = used_slices.data();
    const int32_t slices[kGroups] = {2, 8, 3, 1};
    std::copy(std::begin(slices), std::end(slices), pool.slices);
    copy_tables(tables.args, args);
    args.max_tokens = tables.args.max_tokens;
    args.cp = tables.args.cp;
    args.context_lens = tables.args.context_lens;
    args.new_tokens = tables.args.new_tokens;
    args.status = tables.args.status;
    args.slots = tables.args.slots;
    args.slots_stride = tables.args.slots_stride;
    copy_tables(tables.args, released);
    released.pool = pool;
    reset_pool(ops, pool);
  }

  template <class Args>
  static void copy_tables(const AppendSlots& from, Args& to) {
    to.num_groups = from.num_groups;
    to.num_rows = from.num_rows;
    to.max_requests = from.max_requests;
    to.rows = from.rows;
    to.workspace = from.workspace;
    std::copy(std::begin(from.groups), std::end(from.groups), std::begin(to.groups));
  }
};

void expect_equal(const SlicedSide& a, const SlicedSide& b) {
  const std::vector<int32_t> state = a.state.get();
  expect(state == b.state.get(), "state of slices");
  expect(a.large.get() == b.large.get(), "large blocks");
  expect(a.used_slices.get() == b.used_slices.get(), "used slices");
  const auto same = [](const Array<int32_t>& x, const Array<int32_t>& y, int32_t n) {
    const std::vector<int32_t> u = x.get();
    const std::vector<int32_t> v = y.get();
    return std::equal(u.begin(), u.begin() + n, v.begin());
  };
  expect(same(a.free_large, b.free_large, state[kNumFree]), "free large blocks");
  expect(same(a.listed, b.listed, state[kNumListed]), "listed large blocks");
  expect(a.tables.tables.get() == b.tables.tables.get(), "tables of slices");
  expect(a.tables.num_entries.get() == b.tables.num_entries.get(), "entries of slices");
  expect(a.tables.status.get() == b.tables.status.get(), "status with slices");
  expect(a.tables.slots.get() == b.tables.slots.get(), "slots in slices");
}

/// A captured step and release of slices, replayed with other lengths, beside the CPU.
void sliced_replay(int steps) {
  SlicedSide cpu(cpu_block_ops(), false);
  SlicedSide gpu(cuda_block_ops(), true);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t step;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
  append_slots(gpu.tables.ops, gpu.args, stream);
  check(cudaStreamEndCapture(stream, &graph), "end");
  check(cudaGraphInstantiate(&step, graph, 0), "instantiate");
  std::mt19937 random(3);
  std::vector<int32_t> rows(kRows), lengths(kRows, 0);
  std::iota(rows.begin(), rows.end(), 0);
  for (int i = 0; i < steps; ++i) {
    std::vector<int32_t> tokens(kRows);
    for (int32_t r = 0; r < kRows; ++r) {
      tokens[r] =
          std::min(random() % 3 == 0 ? static_cast<int32_t>(random() % 150) : 1, 1000 - lengths[r]);
    }
    for (SlicedSide* side : {&cpu, &gpu}) {
      side->tables.rows.set(rows);
      side->tables.context_lens.set(lengths);
      side->tables.new_tokens.set(tokens);
    }
    append_slots(cpu.tables.ops, cpu.args);
    check(cudaGraphLaunch(step, stream), "launch");
    check(cudaStreamSynchronize(stream), "replay of slices");
    expect_equal(cpu, gpu);
    const std::vector<int32_t> status = cpu.tables.status.get();
    std::vector<int32_t> ended(kRows, -1);
    for (int32_t r = 0; r < kRows; ++r) {
      if (status[r] == kOk) lengths[r] += tokens[r];
      if (lengths[r] < 900 && random() % 10 != 0 && i + 1 < steps) continue;
      ended[r] = r;
      lengths[r] = 0;
    }
    for (SlicedSide* side : {&cpu, &gpu}) {
      side->tables.rows.set(ended);
      release_rows(side->tables.ops, side->released);
    }
    check(cudaDeviceSynchronize(), "release of slices");
    expect_equal(cpu, gpu);
  }
  expect(gpu.state.get()[kNumFree] == SlicedSide::kLarge - 1, "all large blocks are back");
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no GPU");
    return 77;
  }
  const int replays = argc > 1 ? std::atoi(argv[1]) : 10000;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 200;
  random_batches(false, steps);
  random_batches(true, steps);
  sliced_replay(steps);
  zero_and_copy();
  replay(replays);
  std::puts("all right");
}
