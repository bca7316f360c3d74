#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "byte_source.h"
#include "kvplan/block_pool.h"

/// An obvious block pool, and a driver that applies one sequence of operations to it and to the
/// real pool and compares everything that can be observed. Shared by a test and a fuzz target.
namespace kvplan::testing {

class ModelPool {
 public:
  using Key = std::pair<std::string, uint16_t>;
  struct Block {
    int ref_count = 0;
    std::vector<Key> keys;  // primary first
    std::optional<int64_t> num_tokens;
    int watchers = 0;  // callbacks of `unpin_blocks`
  };

  ModelPool(int num_blocks, bool enable_caching) : caching(enable_caching), blocks(num_blocks) {
    for (int id = 1; id < num_blocks; ++id) free.push_back(id);
  }

  bool valid(int id) const { return id >= 0 && id < static_cast<int>(blocks.size()); }
  bool all_valid(const std::vector<int>& ids) const {
    return std::all_of(ids.begin(), ids.end(), [&](int id) { return valid(id); });
  }

  std::optional<std::vector<int>> get_new_blocks(size_t n) {
    if (n > free.size()) return std::nullopt;
    std::vector<int> ids(free.begin(), free.begin() + static_cast<ptrdiff_t>(n));
    free.erase(free.begin(), free.begin() + static_cast<ptrdiff_t>(n));
    for (int id : ids) {
      reused.insert(reused.end(), static_cast<size_t>(std::exchange(blocks[id].watchers, 0)), id);
    }
    for (int id : ids) {
      evict(id);
      blocks[id].ref_count = 1;
    }
    return ids;
  }

  bool touch(const std::vector<int>& ids) {
    if (!all_valid(ids)) return false;
    for (int id : ids) {
      if (id == 0) continue;
      if (blocks[id].ref_count++ == 0) free.erase(std::find(free.begin(), free.end(), id));
    }
    return true;
  }

  bool release(const std::vector<int>& ids, bool unpin) {
    const std::vector<Block> before = blocks;
    std::vector<int> front;
    std::vector<int> back;
    for (int id : ids) {
      if (id == 0 && !unpin) continue;
      if (id == 0 || !valid(id) || blocks[id].ref_count == 0) {
        blocks = before;
        return false;
      }
      if (unpin) ++blocks[id].watchers;
      if (--blocks[id].ref_count == 0) {
        const bool last = unpin || (caching && !blocks[id].keys.empty());
        (last ? back : front).push_back(id);
      }
    }
    free.insert(free.begin(), front.begin(), front.end());
    free.insert(free.end(), back.begin(), back.end());
    return true;
  }

  void drop_keys(int id) {
    for (const Key& key : blocks[id].keys) {
      std::vector<int>& holders = cached[key];
      holders.erase(std::find(holders.begin(), holders.end(), id));
      if (holders.empty()) cached.erase(key);
    }
    blocks[id].keys.clear();
    blocks[id].num_tokens.reset();
  }

  void evict(int id) {
    for (const Key& key : blocks[id].keys) {
      events.push_back({.kind = BlockPoolEvent::Kind::kRemoved,
                        .group_id = PoolGroupId{key.second},
                        .block_size = block_size_of[key.second],
                        .hashes = {key.first},
                        .blocks = {id},
                        .still_cached = cached[key].size() > 1});
    }
    drop_keys(id);
  }

  bool has_key(int id, const Key& key) const {
    const std::vector<Key>& keys = blocks[id].keys;
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  void insert(int id, const Key& key, std::optional<int64_t> num_tokens) {
    if (has_key(id, key)) return;
    if (blocks[id].keys.empty()) blocks[id].num_tokens = num_tokens;
    blocks[id].keys.push_back(key);
    cached[key].push_back(id);
  }

  bool cache_full(const std::vector<int>& ids, const std::vector<std::string>& hashes,
                  int64_t first, int64_t block_size, uint16_t group, const std::string& parent,
                  const std::vector<uint8_t>& mask) {
    if (!all_valid(ids)) return false;
    const auto skip = [&](size_t i) { return ids[i] == 0 || (!mask.empty() && !mask[i]); };
    const auto tokens = [&](size_t i) {
      return (first + static_cast<int64_t>(i) + 1) * block_size;
    };
    for (size_t i = 0; i < ids.size(); ++i) {
      const Block& block = blocks[ids[i]];
      if (skip(i) || block.keys.empty()) continue;
      if (!block.num_tokens || *block.num_tokens >= tokens(i)) return false;
    }
    BlockPoolEvent stored{.kind = BlockPoolEvent::Kind::kStored,
                          .group_id = PoolGroupId{group},
                          .block_size = block_size};
    if (!parent.empty()) stored.parent_hash = parent;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (skip(i)) continue;
      evict(ids[i]);
      insert(ids[i], {hashes[i], group}, tokens(i));
      stored.hashes.push_back(hashes[i]);
      stored.blocks.push_back(ids[i]);
      stored.positions.push_back(first + static_cast<int64_t>(i));
    }
    stored.first = first;
    stored.end = first + static_cast<int64_t>(ids.size());
    if (!ids.empty()) {
      events.push_back(stored);
      block_size_of[group] = block_size;
    }
    return true;
  }

  std::optional<bool> cache_partial(int id, const std::string& hash, int64_t num_tokens,
                                    int64_t hash_block_size, uint16_t group,
                                    const std::string& parent, bool replace) {
    if (!valid(id)) return std::nullopt;
    if (id == 0) return false;
    Block& block = blocks[id];
    const bool already = !replace && has_key(id, {hash, group});
    if (replace) {
      evict(id);
    } else if (!already && block.num_tokens && *block.num_tokens < num_tokens) {
      evict(id);
    }
    insert(id, {hash, group}, num_tokens);
    if (!already) {
      BlockPoolEvent stored{.kind = BlockPoolEvent::Kind::kStored,
                            .group_id = PoolGroupId{group},
                            .block_size = hash_block_size,
                            .hashes = {hash},
                            .blocks = {id},
                            .positions = {(num_tokens - 1) / hash_block_size},
                            .first = (num_tokens - 1) / hash_block_size,
                            .end = (num_tokens - 1) / hash_block_size + 1};
      if (!parent.empty()) stored.parent_hash = parent;
      events.push_back(stored);
      block_size_of[group] = hash_block_size;
    }
    return true;
  }

  bool move_hashes(int src, int dst) {
    if (!valid(src) || !valid(dst) || dst == 0 || !blocks[dst].keys.empty()) return false;
    const Block from = blocks[src];
    drop_keys(src);
    for (const Key& key : from.keys) insert(dst, key, from.num_tokens);
    return true;
  }

  bool reset() {
    if (free.size() + 1 != blocks.size()) return false;
    for (Block& block : blocks) {
      const int watchers = block.watchers;
      block = Block{};
      block.watchers = watchers;
    }
    cached.clear();
    events.push_back({.kind = BlockPoolEvent::Kind::kCleared});
    return true;
  }

  bool caching;
  std::vector<Block> blocks;
  std::deque<int> free;
  std::map<Key, std::vector<int>> cached;
  std::vector<BlockPoolEvent> events;
  std::map<uint16_t, int64_t> block_size_of;  // as a group's blocks were stored last
  std::vector<int> reused;
};

class BlockPoolDriver {
 public:
  BlockPoolDriver(int num_blocks, bool enable_caching)
      : model_(num_blocks, enable_caching),
        pool_(num_blocks, {.enable_caching = enable_caching, .enable_events = true}) {}

  /// Applies one operation to both; throws `std::logic_error` on a difference.
  void step(ByteSource& in) {
    switch (in.below(16)) {
      case 0:
      case 1:
      case 2:
        get_new_blocks(in);
        break;
      case 3:
      case 4: {
        const std::vector<int> ids = choose_ids(in, true);
        compare_outcome("free_blocks", model_.release(ids, false), [&] { pool_.free_blocks(ids); });
        break;
      }
      case 5: {
        const std::vector<int> ids = held_ids(in);
        compare_outcome("free_blocks", model_.release(ids, false), [&] { pool_.free_blocks(ids); });
        break;
      }
      case 6: {
        const std::vector<int> ids = choose_ids(in, true);
        compare_outcome("touch", model_.touch(ids), [&] { pool_.touch(ids); });
        break;
      }
      case 7: {
        const std::vector<int> ids = held_ids(in);
        compare_outcome("unpin_blocks", model_.release(ids, true), [&] {
          pool_.unpin_blocks(ids, [this](BlockId id) { reused_.push_back(id); });
        });
        break;
      }
      case 8: {
        const std::vector<int> ids = choose_ids(in, in.below(8) == 0);
        const bool ok = model_.all_valid(ids);
        for (const int id : ids) {
          if (ok) model_.evict(id);
        }
        compare_outcome("evict_blocks", ok, [&] { pool_.evict_blocks(ids); });
        break;
      }
      case 9:
      case 10:
      case 11:
        cache_full(in);
        break;
      case 12:
      case 13:
        cache_partial(in);
        break;
      case 14:
        if (in.below(2) == 0) {
          const int id = choose_id(in);
          const ModelPool::Key key = choose_key(in);
          if (id == 0 || !model_.valid(id)) break;
          const std::optional<int64_t> tokens =
              in.below(2) ? std::optional<int64_t>(1 + in.below(64)) : std::nullopt;
          model_.insert(id, key, tokens);
          pool_.insert_hash(id, key.first, PoolGroupId{key.second}, tokens);
        } else {
          const int src = choose_id(in);
          const int dst = choose_id(in);
          compare_outcome("move_block_hashes", model_.move_hashes(src, dst),
                          [&] { pool_.move_block_hashes(src, dst); });
        }
        break;
      default:
        reset(in);
    }
    compare();
  }

 private:
  static constexpr int kBlockSize = 4;

  static void fail(const std::string& what) { throw std::logic_error("pool differs: " + what); }

  template <typename Operation>
  void compare_outcome(const char* name, bool expected, Operation&& operation) {
    bool ok = true;
    try {
      operation();
    } catch (const Error&) {
      ok = false;
    }
    if (ok != expected) fail(std::string(name) + (ok ? " succeeded" : " was refused"));
  }

  int choose_id(ByteSource& in) { return in.below(static_cast<int>(model_.blocks.size())); }
  std::vector<int> choose_ids(ByteSource& in, bool maybe_bad) {
    std::vector<int> ids;
    for (int n = in.below(6); n > 0; --n) ids.push_back(choose_id(in));
    if (maybe_bad && in.below(8) == 0) {
      ids.push_back(in.below(2) ? -1 : static_cast<int>(model_.blocks.size()));
    }
    return ids;
  }
  std::vector<int> held_ids(ByteSource& in) {
    std::vector<int> held;
    for (int id = 1; id < static_cast<int>(model_.blocks.size()); ++id) {
      if (model_.blocks[id].ref_count > 0) held.push_back(id);
    }
    std::vector<int> ids;
    for (int n = in.below(8); n > 0 && !held.empty(); --n) {
      ids.push_back(held[in.below(static_cast<int>(held.size()))]);
    }
    return ids;
  }
  /// Few keys, so that blocks share them; of all lengths that are allowed.
  ModelPool::Key choose_key(ByteSource& in) {
    const int value = in.below(24);
    return {std::string(1 + static_cast<size_t>(value) % 32, static_cast<char>('a' + value)),
            static_cast<uint16_t>(in.below(2))};
  }

  void get_new_blocks(ByteSource& in) {
    const auto n = static_cast<size_t>(in.below(7));
    const std::optional<std::vector<int>> expected = model_.get_new_blocks(n);
    std::vector<BlockId> ids(n, -7);
    compare_outcome("get_new_blocks", expected.has_value(), [&] { pool_.get_new_blocks(ids); });
    if (expected && *expected != ids) fail("other blocks were allocated");
  }

  void cache_full(ByteSource& in) {
    const std::vector<int> ids = choose_ids(in, true);
    std::vector<std::string> hashes;
    for (size_t i = 0; i < ids.size(); ++i) hashes.push_back(choose_key(in).first);
    const std::vector<std::string_view> views(hashes.begin(), hashes.end());
    std::vector<uint8_t> mask;
    if (in.below(3) == 0) {
      for (size_t i = 0; i < ids.size(); ++i) mask.push_back(static_cast<uint8_t>(in.below(2)));
    }
    const int first = in.below(4);
    const std::string parent = first == 0 ? "" : "parent";
    const auto group = static_cast<uint16_t>(in.below(2));
    compare_outcome("cache_full_blocks",
                    model_.cache_full(ids, hashes, first, kBlockSize, group, parent, mask), [&] {
                      pool_.cache_full_blocks({.blocks = ids,
                                               .hashes = views,
                                               .first_block = first,
                                               .block_size = kBlockSize,
                                               .group_id = PoolGroupId{group},
                                               .parent_hash = parent,
                                               .mask = mask});
                    });
  }

  void cache_partial(ByteSource& in) {
    const int id = choose_ids(in, true).empty() ? 0 : choose_id(in);
    const ModelPool::Key key = choose_key(in);
    const int tokens = 1 + in.below(4 * kBlockSize);
    const std::string parent = in.below(2) ? "" : "parent";
    const bool replace = in.below(6) == 0;
    const std::optional<bool> expected =
        model_.cache_partial(id, key.first, tokens, 1, key.second, parent, replace);
    bool actual = false;
    compare_outcome("cache_partial_block", expected.has_value(), [&] {
      actual = pool_.cache_partial_block({.block = id,
                                          .hash = key.first,
                                          .num_tokens = tokens,
                                          .hash_block_size = 1,
                                          .group_id = PoolGroupId{key.second},
                                          .parent_hash = parent,
                                          .replace_existing = replace});
    });
    if (actual != expected.value_or(false)) fail("cache_partial_block answered otherwise");
  }

  void reset(ByteSource& in) {
    if (in.below(4) != 0) return;
    std::vector<int> held;
    for (int id = 1; id < static_cast<int>(model_.blocks.size()); ++id) {
      held.insert(held.end(), static_cast<size_t>(model_.blocks[id].ref_count), id);
    }
    if (in.below(3) != 0) {
      model_.release(held, false);
      pool_.free_blocks(held);
    }
    const bool expected = model_.reset();
    if (pool_.reset_prefix_cache() != expected) fail("reset_prefix_cache answered otherwise");
    if (!expected) return;
    // The order of the callbacks is that of the first unpin, which the model does not keep.
    std::sort(reused_.begin(), reused_.end());
    for (size_t id = 1; id < model_.blocks.size(); ++id) {
      const int watchers = std::exchange(model_.blocks[id].watchers, 0);
      model_.reused.insert(model_.reused.end(), static_cast<size_t>(watchers),
                           static_cast<int>(id));
    }
  }

  void compare() {
    pool_.check_invariants();
    const std::vector<BlockId> free = pool_.free_block_ids();
    if (!std::equal(model_.free.begin(), model_.free.end(), free.begin(), free.end())) {
      fail("order of the free list");
    }
    for (int id = 0; id < static_cast<int>(model_.blocks.size()); ++id) {
      const ModelPool::Block& block = model_.blocks[id];
      if (pool_.ref_count(id) != block.ref_count) fail("reference count of " + std::to_string(id));
      std::vector<ModelPool::Key> keys;
      if (pool_.has_hash(id)) {
        keys.emplace_back(pool_.block_hash(id), static_cast<uint16_t>(*pool_.block_hash_group(id)));
      }
      for (const auto& [hash, group] : pool_.secondary_hashes(id)) {
        keys.emplace_back(hash, static_cast<uint16_t>(group));
      }
      if (keys != block.keys) fail("hashes of " + std::to_string(id));
      if (pool_.block_hash_num_tokens(id) != block.num_tokens) {
        fail("hashed tokens of " + std::to_string(id));
      }
    }
    if (pool_.num_cached_hashes() != static_cast<int64_t>(model_.cached.size())) {
      fail("number of cached hashes");
    }
    for (const auto& [key, holders] : model_.cached) {
      if (pool_.find(key.first, PoolGroupId{key.second}) != holders.front()) {
        fail("block found for hash " + key.first);
      }
    }
    if (pool_.take_events() != std::exchange(model_.events, {})) fail("events");
    if (std::exchange(reused_, {}) != std::exchange(model_.reused, {})) fail("reuse callbacks");
  }

  ModelPool model_;
  BlockPool pool_;
  std::vector<int> reused_;
};

}  // namespace kvplan::testing
