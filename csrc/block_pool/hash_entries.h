#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "block_pool/zeroed_array.h"

namespace kvplan::detail {

/// A block hash, padded with zeros.
struct HashBytes {
  uint64_t words[4];
  uint32_t size;   // bytes; 0: none
  uint32_t mixed;  // of all bytes
};

/// The hashes that are cached, each with a head for every group: the node of the oldest key of the
/// group under the hash, or 0. One hash has the blocks of all groups that cache the same tokens, so
/// that they are looked up, cached and mostly evicted together. Entry 0 is none.
class HashEntries {
 public:
  /// A pool of so many keys mostly needs no more entries.
  explicit HashEntries(size_t num_keys) : usual_(std::bit_ceil(num_keys + 2)) { set_width(1); }

  const HashBytes& hash(uint32_t entry) const { return at(entry); }
  bool has_hash(uint32_t entry, const HashBytes& hash) const {
    const HashBytes& mine = at(entry);
    return ((mine.words[0] ^ hash.words[0]) | (mine.words[1] ^ hash.words[1]) |
            (mine.words[2] ^ hash.words[2]) | (mine.words[3] ^ hash.words[3]) |
            (mine.size ^ hash.size)) == 0;
  }
  std::string_view view(uint32_t entry) const {
    if (entry == 0) return {};
    return {reinterpret_cast<const char*>(at(entry).words), at(entry).size};
  }
  uint32_t num_heads(uint32_t entry) const { return num_heads_[entry]; }
  uint32_t head(uint32_t entry, uint32_t column) const { return heads(entry)[column]; }

  /// Sets a head that was 0.
  void add_head(uint32_t entry, uint32_t column, uint32_t node) {
    heads(entry)[column] = node;
    ++num_heads_[entry];
  }
  void replace_head(uint32_t entry, uint32_t column, uint32_t node) { heads(entry)[column] = node; }
  /// Whether it was the last one; the entry can be released then.
  bool remove_head(uint32_t entry, uint32_t column) {
    heads(entry)[column] = 0;
    return --num_heads_[entry] == 0;
  }

  /// Makes the next `make` unable to fail.
  void reserve_one() {
    if (unused_ != 0) return;
    if (end() >> shift_ >= chunks_.size()) chunks_.emplace_back(stride_ << shift_);
    if (num_heads_.size() == num_heads_.capacity()) num_heads_.reserve(2 * num_heads_.size());
  }
  /// A new entry without heads.
  uint32_t make(const HashBytes& hash) {
    reserve_one();
    uint32_t entry = unused_;
    if (entry != 0) {
      unused_ = std::exchange(num_heads_[entry], 0);
    } else {
      entry = end();
      num_heads_.push_back(0);
    }
    at(entry) = hash;
    return entry;
  }
  void release(uint32_t entry) {
    at(entry).size = 0;
    num_heads_[entry] = std::exchange(unused_, entry);
  }

  /// Makes room for so many heads in every entry.
  void widen(uint32_t width) {
    if (width <= width_) return;
    HashEntries wider(usual_);
    wider.set_width(std::max(width, width_ + width_ / 2));
    while (wider.chunks_.size() << wider.shift_ < end()) {
      wider.chunks_.emplace_back(wider.stride_ << wider.shift_);
    }
    for (uint32_t entry = 1; entry < end(); ++entry) {
      wider.at(entry) = at(entry);
      std::copy_n(heads(entry), width_, wider.heads(entry));
    }
    wider.unused_ = unused_;
    wider.num_heads_ = std::move(num_heads_);
    *this = std::move(wider);
  }
  void clear() {
    chunks_.clear();
    num_heads_.resize(1);
    unused_ = 0;
  }

  size_t memory_bytes() const { return end() * (stride_ * sizeof(uint64_t) + sizeof(uint32_t)); }
  void prefetch(uint32_t entry, uint32_t column) const {
    __builtin_prefetch(heads(entry) + column, 1);
    // An entry with few heads may go with one of the next blocks.
    if (num_heads_[entry] <= kFew) __builtin_prefetch(&at(entry), 1);
  }
  static constexpr uint32_t kFew = 8;

 private:
  static_assert(sizeof(HashBytes) == 40);
  static constexpr size_t kMaxChunkBytes = size_t{16} << 20;

  uint32_t end() const { return static_cast<uint32_t>(num_heads_.size()); }
  void set_width(uint32_t width) {
    width_ = width;
    stride_ = sizeof(HashBytes) / sizeof(uint64_t) + (width + 1) / 2;
    const size_t most = std::max<size_t>(1, kMaxChunkBytes / (stride_ * sizeof(uint64_t)));
    shift_ = static_cast<uint32_t>(std::bit_width(std::min(most, usual_)) - 1);
  }

  uint64_t* memory(uint32_t entry) const {
    const size_t index = entry & ((size_t{1} << shift_) - 1);
    return chunks_[entry >> shift_].data() + index * stride_;
  }
  HashBytes& at(uint32_t entry) const { return *reinterpret_cast<HashBytes*>(memory(entry)); }
  uint32_t* heads(uint32_t entry) const { return reinterpret_cast<uint32_t*>(&at(entry) + 1); }

  size_t usual_;  // entries, a power of two
  // Hashes, each with its heads behind it. They come from the kernel untouched: only what is used
  // costs memory.
  std::vector<ZeroedArray<uint64_t>> chunks_;
  // By entry, heads that are not 0; of an unused entry: the next unused one. Apart from the hashes,
  // since it changes with every block.
  std::vector<uint32_t> num_heads_ = {0};
  uint32_t width_ = 0;
  size_t stride_ = 0;   // words
  uint32_t shift_ = 0;  // of an entry's number, for its chunk
  uint32_t unused_ = 0;
};

}  // namespace kvplan::detail
