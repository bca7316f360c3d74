#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvplan::detail {

/// Who is to be told when a block that `unpin_blocks` released holds something else. Rare, so it
/// lies outside the blocks' records.
template <typename Callback>
class ReuseWatchers {
 public:
  bool empty() const { return watchers_.empty(); }
  /// Blocks that have callbacks.
  size_t size() const { return watchers_.size(); }

  /// A block that has callbacks keeps them, and its place in the order.
  void add(uint32_t block, const Callback& on_reuse) {
    const auto [watcher, is_new] = watchers_.try_emplace(block);
    if (is_new) watcher->second.order = num_registered_++;
    watcher->second.on_reuse.push_back(on_reuse);
  }
  /// The block's callbacks, which it then has no longer, first registered first.
  std::vector<Callback> take(uint32_t block) {
    const auto watcher = watchers_.find(block);
    if (watcher == watchers_.end()) return {};
    std::vector<Callback> on_reuse = std::move(watcher->second.on_reuse);
    watchers_.erase(watcher);
    return on_reuse;
  }
  void move(uint32_t from, uint32_t to) {
    auto watcher = watchers_.extract(from);
    watcher.key() = to;
    watchers_.insert(std::move(watcher));
  }
  /// Watched blocks, first registered first.
  std::vector<uint32_t> blocks() const {
    std::vector<std::pair<uint64_t, uint32_t>> ordered;
    ordered.reserve(watchers_.size());
    for (const auto& [block, watcher] : watchers_) ordered.emplace_back(watcher.order, block);
    std::sort(ordered.begin(), ordered.end());
    std::vector<uint32_t> result;
    result.reserve(ordered.size());
    for (const auto& [order, block] : ordered) result.push_back(block);
    return result;
  }

 private:
  struct Watcher {
    uint64_t order = 0;  // of its first registration, as in an insertion-ordered dict
    std::vector<Callback> on_reuse;
  };
  std::unordered_map<uint32_t, Watcher> watchers_;
  uint64_t num_registered_ = 0;
};

}  // namespace kvplan::detail
