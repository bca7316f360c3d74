#include "block_ops_cases.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "kvplan/device/cuda_block_ops.h"

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
constexpr int64_t kMaxTokens = 5000;  // all thread blocks take part
constexpr int64_t kFewTokens = 250;   // one launch does all, and some requests do not fit
constexpr int64_t kSomeTokens = 300;  // not for all requests of a step of three launches
constexpr int32_t kBlocks = 1500;
constexpr int32_t kFewBlocks = 250;  // not enough in many steps
constexpr int64_t kNewIds = 40;
constexpr int32_t kManyRequests = 300;  // most of them padding

/// Pool, tables and a batch on one side.
struct Side {
  const BlockOps& ops;
  Array<int32_t> free_ids, state, ref_counts, last_use, tables, num_entries, rows, context_lens,
      new_tokens, status, query_starts, row_claims;
  Array<int32_t> row_lens, seq_lens, new_ids, num_new_ids, mirror;
  Array<int64_t> slots, positions, workspace;
  AppendSlots args;
  ReleaseRows released;

  Side(const BlockOps& operations, bool on_device, bool counted, int64_t max_tokens = kMaxTokens,
       int32_t requests = kRows, int32_t blocks = kBlocks)
      : ops(operations),
        free_ids(on_device, kBlocks, 0),
        state(on_device, kPoolStateSize, 0),
        ref_counts(on_device, kBlocks, 0),
        last_use(on_device, kBlocks, 0),
        tables(on_device, size_t{kGroups} * kRows * kWidth, 0),
        num_entries(on_device, size_t{kGroups} * kRows, 0),
        rows(on_device, requests, -1),
        context_lens(on_device, requests, 0),
        new_tokens(on_device, requests, 0),
        status(on_device, requests, 0),
        query_starts(on_device, requests + 1, 0),
        row_claims(on_device, kRows, 0),
        row_lens(on_device, kRows, 0),
        seq_lens(on_device, requests, 0),
        new_ids(on_device, size_t{kGroups} * kNewIds, 0),
        num_new_ids(on_device, kGroups, 0),
        mirror(on_device, kMirrorSize + requests, 0),
        slots(on_device, static_cast<size_t>(kGroups * max_tokens), 0),
        positions(on_device, static_cast<size_t>(max_tokens), 0),
        workspace(on_device, append_slots_workspace(requests, kGroups), 0) {
    args.pool = {.num_blocks = blocks, .free_ids = free_ids.data(), .state = state.data()};
    if (counted) {
      args.pool.ref_counts = ref_counts.data();
      args.pool.last_use = last_use.data();
    }
    args.num_groups = kGroups;
    args.num_rows = kRows;
    args.max_requests = requests;
    args.max_tokens = max_tokens;
    args.cp = {2, 1, 4};
    args.rows = rows.data();
    args.context_lens = context_lens.data();
    args.new_tokens = new_tokens.data();
    args.status = status.data();
    args.slots = slots.data();
    args.slots_stride = max_tokens;
    args.query_starts = query_starts.data();
    args.positions = positions.data();
    args.workspace = workspace.data();
    args.options = {.lookahead_tokens = 5,
                    .row_lens = counted ? nullptr : row_lens.data(),
                    .seq_lens = seq_lens.data(),
                    .new_ids = new_ids.data(),
                    .new_ids_stride = kNewIds,
                    .num_new_ids = num_new_ids.data(),
                    .mirror = mirror.data()};
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
    released.max_requests = requests;
    released.row_claims = args.row_claims = row_claims.data();
    released.rows = rows.data();
    released.workspace = workspace.data();
    std::copy(std::begin(args.groups), std::end(args.groups), std::begin(released.groups));
    reset_pool(ops, args.pool);
  }
};

void expect_equal_options(const Side& a, const Side& b) {
  expect(a.row_lens.get() == b.row_lens.get(), "lengths of rows");
  expect(a.seq_lens.get() == b.seq_lens.get(), "lengths of requests");
  expect(a.num_new_ids.get() == b.num_new_ids.get(), "numbers of new ids");
  expect(a.new_ids.get() == b.new_ids.get(), "new ids");
  expect(a.mirror.get() == b.mirror.get(), "mirror");
}

void expect_equal(const Side& a, const Side& b) {
  expect(a.state.get() == b.state.get(), "state");
  const int32_t num_free = a.state.get()[kNumFree];
  std::vector<int32_t> x = a.free_ids.get(), y = b.free_ids.get();
  expect(std::equal(x.begin(), x.begin() + num_free, y.begin()), "free ids");
  expect(a.ref_counts.get() == b.ref_counts.get(), "reference counts");
  expect(a.last_use.get() == b.last_use.get(), "last uses");
  expect(a.tables.get() == b.tables.get(), "tables");
  expect(a.num_entries.get() == b.num_entries.get(), "entries");
  expect(a.status.get() == b.status.get(), "status");
  expect(a.slots.get() == b.slots.get(), "slots");
  expect(a.positions.get() == b.positions.get(), "positions");
  expect(a.query_starts.get() == b.query_starts.get(), "query starts");
  expect(a.row_claims.get() == b.row_claims.get(), "claims");
  expect_equal_options(a, b);
}

/// A row without blocks gets those of another one, each with one more holder: a shared prefix.
void share_row(Side& side, int32_t from, int32_t to) {
  std::vector<int32_t> tables = side.tables.get();
  std::vector<int32_t> entries = side.num_entries.get();
  for (int32_t g = 0; g < kGroups; ++g) {
    const auto row = [&](int32_t r) { return tables.begin() + (int64_t{g} * kRows + r) * kWidth; };
    std::copy_n(row(from), kWidth, row(to));
    entries[g * kRows + to] = entries[g * kRows + from];
    touch(side.ops, side.args.pool, side.args.groups[g].table + from * kWidth,
          entries[g * kRows + from]);
  }
  side.tables.set(tables);
  side.num_entries.set(entries);
}

void random_batches(bool counted, int64_t max_tokens, int32_t requests, int steps, int32_t blocks) {
  std::mt19937 random(counted ? 1 : 2);
  Side cpu(cpu_block_ops(), false, counted, max_tokens, requests, blocks);
  Side gpu(cuda_block_ops(), true, counted, max_tokens, requests, blocks);
  std::vector<int32_t> lengths(kRows, 0);
  for (int step = 0; step < steps; ++step) {
    std::vector<int32_t> rows(requests, -1), context(requests, 0), tokens(requests, 1);
    std::iota(rows.begin(), rows.begin() + kRows, 0);
    std::shuffle(rows.begin(), rows.end(), random);
    const bool all_alike = step % 4 == 3;
    for (int32_t r = 0; r < requests; ++r) {
      if (rows[r] < 0) continue;
      context[r] = lengths[rows[r]];
      if (!all_alike && random() % 2 == 0) tokens[r] = static_cast<int32_t>(random() % 100);
      tokens[r] = std::min(tokens[r], 1000 - context[r]);
      if (random() % 8 == 0) rows[r] = -1;
    }
    if (step % 3 == 1) {  // a row twice
      rows[2] = rows[9];
      context[2] = context[9];
    }
    for (Side* side : {&cpu, &gpu}) {
      side->rows.set(rows);
      side->context_lens.set(context);
      side->row_lens.set(lengths);
      side->new_tokens.set(tokens);
      append_slots(side->ops, side->args);
    }
    check(cudaDeviceSynchronize(), "append_slots");
    expect_equal(cpu, gpu);
    const std::vector<int32_t> status = cpu.status.get();
    for (int32_t r = 0; r < requests; ++r) {
      if (rows[r] >= 0 && status[r] == kOk) lengths[rows[r]] += tokens[r];
    }
    std::vector<int32_t> ended(requests, -1);
    for (int32_t row = 0; row < kRows; ++row) {
      if (lengths[row] < 900 && random() % 10 != 0) continue;
      ended[row] = row;
      lengths[row] = 0;
    }
    if (step % 5 == 1) ended[0] = ended[7];  // perhaps a row twice
    for (Side* side : {&cpu, &gpu}) {
      side->rows.set(ended);
      release_rows(side->ops, side->released);
    }
    check(cudaDeviceSynchronize(), "release_rows");
    expect_equal(cpu, gpu);
    for (int32_t row = 1; counted && row < kRows; ++row) {
      if (lengths[row] > 0 || lengths[row - 1] == 0) continue;
      for (Side* side : {&cpu, &gpu}) share_row(*side, row - 1, row);
      check(cudaDeviceSynchronize(), "share_row");
      lengths[row] = lengths[row - 1];
    }
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
  expect(gpu.state.get()[kPoolErrors] == kIdsLeftOut, "no errors but of a short list");
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

/// A pool of slices under the same tables, on one side.
struct SlicedSide {
  static constexpr int32_t kLarge = 150;  // not enough in some steps
  static constexpr int32_t kMostSlices = 8;

  Side tables;
  Array<int32_t> free_large, listed, state, used_slices, ref_counts;
  Array<LargeBlock> large;
  AppendSlices args;
  ReleaseSlicedRows released;

  SlicedSide(const BlockOps& ops, bool on_device, int64_t max_tokens, int32_t requests = kRows)
      : tables(ops, on_device, false, max_tokens, requests),
        free_large(on_device, kLarge, 0),
        listed(on_device, kLarge, 0),
        state(on_device, kPoolStateSize + kGroups, 0),
        used_slices(on_device, kLarge * slice_words(kMostSlices), 0),
        ref_counts(on_device, size_t{kLarge} * kMostSlices, 0),
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
    args.query_starts = tables.args.query_starts;
    args.positions = tables.args.positions;
    args.options = tables.args.options;
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
    to.row_claims = from.row_claims;
    to.workspace = from.workspace;
    std::copy(std::begin(from.groups), std::end(from.groups), std::begin(to.groups));
  }
};

void expect_equal(const SlicedSide& a, const SlicedSide& b) {
  const std::vector<int32_t> state = a.state.get();
  expect(state == b.state.get(), "state of slices");
  expect(a.large.get() == b.large.get(), "large blocks");
  expect(a.used_slices.get() == b.used_slices.get(), "used slices");
  expect(a.ref_counts.get() == b.ref_counts.get(), "holders of slices");
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
  expect(a.tables.query_starts.get() == b.tables.query_starts.get(), "query starts of slices");
  expect(a.tables.positions.get() == b.tables.positions.get(), "positions in slices");
  expect_equal_options(a.tables, b.tables);
}

/// A captured step and release of slices, replayed with other lengths, beside the CPU.
void sliced_replay(int64_t max_tokens, int32_t requests, int steps) {
  SlicedSide cpu(cpu_block_ops(), false, max_tokens, requests);
  SlicedSide gpu(cuda_block_ops(), true, max_tokens, requests);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t step;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
  append_slots(gpu.tables.ops, gpu.args, stream);
  check(cudaStreamEndCapture(stream, &graph), "end");
  check(cudaGraphInstantiate(&step, graph, 0), "instantiate");
  std::mt19937 random(3);
  std::vector<int32_t> rows(requests, -1), lengths(requests, 0);  // most may be padding
  std::iota(rows.begin(), rows.begin() + kRows, 0);
  for (int i = 0; i < steps; ++i) {
    std::vector<int32_t> tokens(requests);
    for (int32_t r = 0; r < kRows; ++r) {
      tokens[r] =
          std::min(random() % 3 == 0 ? static_cast<int32_t>(random() % 150) : 1, 1000 - lengths[r]);
    }
    std::vector<int32_t> named = rows;
    if (i % 3 == 1) named[2] = named[9];                         // a row twice
    if (i % 3 == 2) std::fill(tokens.begin(), tokens.end(), 0);  // only windows drop blocks
    for (SlicedSide* side : {&cpu, &gpu}) {
      side->tables.rows.set(named);
      side->tables.row_lens.set({lengths.begin(), lengths.begin() + kRows});
      side->tables.new_tokens.set(tokens);
    }
    append_slots(cpu.tables.ops, cpu.args);
    check(cudaGraphLaunch(step, stream), "launch");
    check(cudaStreamSynchronize(stream), "replay of slices");
    expect_equal(cpu, gpu);
    const std::vector<int32_t> status = cpu.tables.status.get();
    std::vector<int32_t> ended(requests, -1);
    for (int32_t r = 0; r < kRows; ++r) {
      if (status[r] == kOk && named[r] == r) lengths[r] += tokens[r];
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

/// Once there is a pool, nothing has to be loaded while a stream is captured.
void first_in_a_capture() {
  Side gpu(cuda_block_ops(), true, true);
  SlicedSide sliced(cuda_block_ops(), true, kFewTokens);
  Array<BlockRegion> regions(true, 1, {0, 16, 16});
  Array<uint8_t> buffer(true, 16, 0);
  Array<int32_t> id(true, 1, 0);
  cudaStream_t stream;
  cudaGraph_t graph;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
  append_slots(gpu.ops, gpu.args, stream);
  append_slots(gpu.ops, sliced.args, stream);
  release_rows(gpu.ops, gpu.released, stream);
  for (const int32_t width : {16, 8, 4, 2, 1}) {
    zero_blocks(gpu.ops, {buffer.data(), regions.data(), 1, 16, width, 1, 1, id.data()}, stream);
    copy_blocks(
        gpu.ops,
        {buffer.data(), buffer.data(), regions.data(), 1, 16, width, 1, 1, id.data(), id.data()},
        stream);
  }
  check(cudaStreamEndCapture(stream, &graph), "end");
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

/// Blocks without tables: taken, held by others, released; some ids are none of the pool's.
void blocks_alone(int rounds) {
  constexpr int32_t kMost = 300;
  std::mt19937 random(4);
  const auto ids_of = [&](int32_t end) {
    std::vector<int32_t> ids(kMost);
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % static_cast<unsigned>(end + 2)) - 1;
    return ids;
  };
  for (const bool counted : {false, true}) {
    Side cpu(cpu_block_ops(), false, counted);
    Side gpu(cuda_block_ops(), true, counted);
    for (int round = 0; round < rounds; ++round) {
      const std::vector<int32_t> ids = ids_of(round % 2 == 0 ? kBlocks : 40);
      std::vector<int32_t> counts(kRows);
      for (int32_t& count : counts) count = static_cast<int32_t>(random() % 40) - 1;
      std::vector<std::vector<int32_t>> taken;
      std::vector<int64_t> starts_of[2];
      for (Side* side : {&cpu, &gpu}) {
        const bool on_device = side == &gpu;
        Array<int32_t> named(on_device, kMost, 0), wanted(on_device, kRows, 0);
        const int64_t capacity = round % 2 == 0 ? 500 : 1300;  // enough, or not
        Array<int32_t> out(on_device, 1300, -7), status(on_device, kRows, -7);
        Array<int64_t> starts(on_device, kRows + 1, -7);
        named.set(ids);
        wanted.set(counts);
        const Pool& pool = side->args.pool;
        allocate(side->ops, pool,
                 {kRows, wanted.data(), capacity, out.data(), starts.data(), status.data()});
        if (counted) touch(side->ops, pool, named.data(), kMost / 2);
        release(side->ops, pool, named.data(), kMost);
        check(cudaDeviceSynchronize(), "blocks alone");
        taken.push_back(out.get());
        taken.push_back(status.get());
        starts_of[on_device] = starts.get();
      }
      expect(taken[0] == taken[2] && taken[1] == taken[3], "blocks taken");
      expect(starts_of[0] == starts_of[1], "starts");
      expect_equal(cpu, gpu);
    }
    for (Side* side : {&cpu, &gpu}) reset_pool(side->ops, side->args.pool);
    check(cudaDeviceSynchronize(), "reset");
    expect_equal(cpu, gpu);
  }
}

/// The same with slices.
void slices_alone(int rounds) {
  constexpr int32_t kMost = 300;
  constexpr size_t kItems = size_t{kRows} * kGroups;
  std::mt19937 random(5);
  for (const bool counted : {false, true}) {
    SlicedSide cpu(cpu_block_ops(), false, kFewTokens);
    SlicedSide gpu(cuda_block_ops(), true, kFewTokens);
    for (SlicedSide* side : {&cpu, &gpu}) {
      if (counted) side->args.pool.ref_counts = side->ref_counts.data();
      reset_pool(side->tables.ops, side->args.pool);
    }
    for (int round = 0; round < rounds; ++round) {
      std::vector<int32_t> ids(kMost), counts(kItems);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % 1500);
      for (int32_t& n : counts) n = std::max(0, static_cast<int32_t>(random() % 20) - 10);
      std::vector<std::vector<int32_t>> taken;
      std::vector<int64_t> starts_of[2];
      for (SlicedSide* side : {&cpu, &gpu}) {
        const bool on_device = side == &gpu;
        const BlockOps& ops = side->tables.ops;
        Array<int32_t> named(on_device, kMost, 0), wanted(on_device, kItems, 0);
        Array<int32_t> out(on_device, 1200, -7), status(on_device, kRows, -7);
        Array<int64_t> starts(on_device, kItems + 1, -7);
        Array<int64_t> workspace(on_device, allocate_slices_workspace(kRows, kGroups), -7);
        named.set(ids);
        wanted.set(counts);
        const SlicedPool& pool = side->args.pool;
        allocate(ops, pool,
                 {kRows, wanted.data(), 1200, out.data(), starts.data(), status.data(),
                  workspace.data()});
        if (counted) touch(ops, pool, round % kGroups, named.data(), kMost / 2);
        release(ops, pool, round % kGroups, named.data(), kMost);
        check(cudaDeviceSynchronize(), "slices alone");
        taken.push_back(out.get());
        taken.push_back(status.get());
        starts_of[on_device] = starts.get();
      }
      expect(taken[0] == taken[2] && taken[1] == taken[3], "slices taken");
      expect(starts_of[0] == starts_of[1], "starts of slices");
      expect_equal(cpu, gpu);
    }
    for (SlicedSide* side : {&cpu, &gpu}) reset_pool(side->tables.ops, side->args.pool);
    check(cudaDeviceSynchronize(), "reset of slices");
    expect_equal(cpu, gpu);
  }
}

/// Tables with rows of all lengths, gathered and remapped.
void tables_alone() {
  Side cpu(cpu_block_ops(), false, false);
  Side gpu(cuda_block_ops(), true, false);
  std::mt19937 random(6);
  std::vector<int32_t> rows(kRows), lengths(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  for (int32_t& n : lengths) n = static_cast<int32_t>(random() % 150);
  std::vector<int32_t> sources, targets;
  for (int32_t id = 1; id < 200; id += 3) {
    sources.push_back(id);
    targets.push_back(id + 1);
  }
  std::vector<std::vector<int32_t>> gathered;
  for (Side* side : {&cpu, &gpu}) {
    const bool on_device = side == &gpu;
    side->rows.set(rows);
    side->new_tokens.set(lengths);
    append_slots(side->ops, side->args);
    Array<int32_t> from(on_device, sources.size(), 0), to(on_device, sources.size(), 0);
    from.set(sources);
    to.set(targets);
    remap_blocks(side->ops, {side->args.groups[0], kRows, static_cast<int64_t>(sources.size()),
                             from.data(), to.data()});
    std::vector<int32_t> some = rows;
    some[3] = -1;
    side->rows.set(some);
    side->context_lens.set(lengths);
    for (const bool masked : {false, true}) {
      for (const int32_t stride : {kWidth, kWidth + 3}) {  // rows aligned to vectors, and not
        Array<int32_t> out(on_device, size_t{kGroups} * kRows * static_cast<size_t>(stride), -7);
        GatherTables a;
        a.num_groups = kGroups;
        a.num_rows = kRows;
        a.max_requests = kRows;
        a.cp = side->args.cp;
        a.rows = side->rows.data();
        a.context_lens = masked ? side->context_lens.data() : nullptr;
        for (int32_t g = 0; g < kGroups; ++g) {
          a.out[g] = out.data() + int64_t{g} * kRows * stride;
          a.out_stride[g] = stride;
          a.groups[g] = side->args.groups[g];
        }
        gather_tables(side->ops, a);
        check(cudaDeviceSynchronize(), "gather");
        gathered.push_back(out.get());
      }
    }
  }
  expect_equal(cpu, gpu);
  const size_t half = gathered.size() / 2;
  expect(std::equal(gathered.begin(), gathered.begin() + static_cast<std::ptrdiff_t>(half),
                    gathered.begin() + static_cast<std::ptrdiff_t>(half)),
         "gathered tables");
}

}  // namespace

std::vector<std::function<void()>> block_ops_cases(int replays, int steps) {
  std::vector<std::function<void()>> cases{first_in_a_capture};
  for (const bool counted : {false, true}) {
    const auto add = [&](int64_t max_tokens, int32_t requests, int32_t blocks) {
      cases.emplace_back([=] { random_batches(counted, max_tokens, requests, steps, blocks); });
    };
    add(kFewTokens, kRows, kBlocks);
    add(kMaxTokens, kRows, kBlocks);
    add(kSomeTokens, kRows, kBlocks);
    add(kMaxTokens, kRows, kFewBlocks);
    add(kMaxTokens, kManyRequests, kBlocks);
  }
  cases.emplace_back([=] { sliced_replay(kFewTokens, kRows, steps); });
  cases.emplace_back([=] { sliced_replay(kMaxTokens, kRows, steps); });
  cases.emplace_back([=] { sliced_replay(kMaxTokens, kManyRequests, steps); });
  cases.emplace_back([=] { blocks_alone(steps); });
  cases.emplace_back([=] { slices_alone(steps); });
  cases.emplace_back(tables_alone);
  cases.emplace_back(zero_and_copy);
  cases.emplace_back([=] { replay(replays); });
  return cases;
}

void run_block_ops_cases(int replays, int steps) {
  for (const auto& run : block_ops_cases(replays, steps)) run();
}
