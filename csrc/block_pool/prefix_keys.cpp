#include "block_pool/prefix_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "block_pool/invariant.h"

namespace kvplan::detail {

void check_hash(std::string_view hash) {
  if (hash.empty() || hash.size() > kMaxBlockHashBytes) [[unlikely]] {
    throw InvalidArgument("a block hash has 1 to " + std::to_string(kMaxBlockHashBytes) +
                          " bytes, not " + std::to_string(hash.size()) +
                          "; choose a prefix caching hash of at most 256 bits, e.g. sha256");
  }
}

HashSeed::HashSeed() {
  std::random_device random;
  for (uint64_t& word : words) word = uint64_t{random()} << 32 | random();
}

namespace {

template <typename T>
uint64_t load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

/// The next up to 8 bytes as the low bytes of a word, with loads of whole words only.
uint64_t load_word(const char* bytes, size_t size) {
  if (size >= 8) return load<uint64_t>(bytes);
  if (size >= 4) {
    const uint64_t last = load<uint32_t>(bytes + size - 4);
    return load<uint32_t>(bytes) | last << 8 * (size - 4);
  }
  uint64_t word = 0;
  for (size_t i = 0; i < size; ++i) word |= load<uint8_t>(bytes + i) << 8 * i;
  return word;
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

CachedKey to_key(std::string_view hash, PoolGroupId group_id) {
  check_hash(hash);
  CachedKey key;
  key.group = static_cast<uint16_t>(group_id);
  key.hash_size = static_cast<uint8_t>(hash.size());
  for (size_t at = 0; at < hash.size(); at += 8) {
    key.set_word(at / 8, load_word(hash.data() + at, hash.size() - at));
  }
  return key;
}

PrefixKeys::PrefixKeys(BlockRecord* records_, uint32_t num_records_, BlockPoolOptions options)
    : records(records_),
      num_records(num_records_),
      enable_events(options.enable_events),
      max_events(static_cast<size_t>(options.max_events)),
      index(options.enable_caching ? num_records_ : 0) {
  if (options.max_events >= 1) return;
  throw InvalidArgument("max_events must be positive, got " + std::to_string(options.max_events));
}

void check_room_for_groups(size_t num_groups, size_t room) {
  if (room >= num_groups) return;
  throw InvalidArgument("find_in_groups: " + std::to_string(num_groups) + " groups, but room for " +
                        std::to_string(room) + " blocks");
}

void check_parent(std::string_view parent_hash) {
  if (!parent_hash.empty()) check_hash(parent_hash);
}

int32_t checked_tokens(int64_t num_tokens) {
  if (num_tokens < 1 || num_tokens > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument("a cached prefix has 1 to 2147483647 tokens, not " +
                          std::to_string(num_tokens));
  }
  return static_cast<int32_t>(num_tokens);
}

bool PrefixKeys::block_has_key(uint32_t block, const CachedKey& key) const {
  const BlockRecord& record = records[block];
  if (!record.has_hash()) return false;
  if (record.key.same_as(key)) return true;
  if ((record.key.flags & BlockRecord::kHasSecondary) == 0) return false;
  const std::vector<uint32_t>& keys = secondary_keys_of.at(block);
  return std::any_of(keys.begin(), keys.end(),
                     [&](uint32_t node) { return key_at(node).same_as(key); });
}

uint32_t PrefixKeys::new_secondary_key(uint32_t block, const CachedKey& key) {
  uint32_t i;
  if (unused_secondary_keys.empty()) {
    i = static_cast<uint32_t>(secondary_keys.size());
    secondary_keys.push_back({key, block});
    // So that giving a key back cannot fail.
    unused_secondary_keys.reserve(secondary_keys.capacity());
  } else {
    i = unused_secondary_keys.back();
    unused_secondary_keys.pop_back();
    secondary_keys[i] = {key, block};
  }
  secondary_keys_of[block].push_back(num_records + i);
  records[block].key.flags |= BlockRecord::kHasSecondary;
  return num_records + i;
}

void PrefixKeys::link_key(uint32_t node, const LookupKey& key) {
  CachedKey& mine = key_at(node);
  const size_t slot = find_slot(key);
  if (slot == HashIndex::kNotFound) {
    mine.next_same = mine.prev_same = node;
    index.insert(key.hash, node);
    return;
  }
  const uint32_t oldest = index.node_at(slot);
  const uint32_t newest = key_at(oldest).prev_same;
  mine.prev_same = newest;
  mine.next_same = oldest;
  key_at(newest).next_same = node;
  key_at(oldest).prev_same = node;
}

void PrefixKeys::unlink_key(uint32_t node) {
  const CachedKey& key = key_at(node);
  const uint32_t next = key.next_same;
  if (next == node) {
    index.erase(index.find(hash_key(key), [&](uint32_t other) { return other == node; }));
    return;
  }
  const size_t slot = index.find(hash_key(key), [&](uint32_t other) { return other == node; });
  if (slot != HashIndex::kNotFound) index.replace_node(slot, next);
  key_at(next).prev_same = key.prev_same;
  key_at(key.prev_same).next_same = next;
}

void PrefixKeys::insert_key(uint32_t block, const LookupKey& key, int32_t num_tokens) {
  if (block_has_key(block, key.key)) return;
  index.reserve_one();
  BlockRecord& record = records[block];
  if (record.has_hash()) {
    link_key(new_secondary_key(block, key.key), key);
    return;
  }
  const uint8_t flags = record.key.flags;
  record.key = key.key;
  record.key.flags = flags;
  record.num_tokens = num_tokens;
  link_key(block, key);
}

int64_t PrefixKeys::evict(uint32_t block) {
  if (!enable_events) return remove_keys(block, [](const CachedKey&) {});
  return remove_keys(block, [&](const CachedKey& key) {
    push_event({.kind = BlockPoolEvent::Kind::kRemoved,
                .group_id = static_cast<PoolGroupId>(key.group),
                .block_size = key.group < block_size_of.size() ? block_size_of[key.group] : 0,
                .hashes = {std::string(key.view())},
                .blocks = {block_id(key.group, block)},
                .still_cached = &key_at(key.next_same) != &key});
  });
}

void PrefixKeys::push_event(BlockPoolEvent event) {
  if (events.size() >= max_events) {
    int64_t lost = 0;
    for (const BlockPoolEvent& e : events) {
      lost += e.kind == BlockPoolEvent::Kind::kLost ? e.num_lost : 1;
    }
    events.clear();
    events.push_back({.kind = BlockPoolEvent::Kind::kLost, .num_lost = lost});
  }
  events.push_back(std::move(event));
}

BlockPoolEvent PrefixKeys::stored_event(PoolGroupId group_id, int64_t block_size,
                                        std::string_view parent_hash) {
  const auto group = static_cast<size_t>(group_id);
  if (group >= block_size_of.size()) block_size_of.resize(group + 1);
  block_size_of[group] = block_size;
  BlockPoolEvent event{
      .kind = BlockPoolEvent::Kind::kStored, .group_id = group_id, .block_size = block_size};
  if (!parent_hash.empty()) event.parent_hash = parent_hash;
  return event;
}

namespace {

/// Tokens of the prefix that block `i` of the list completes.
int64_t tokens_up_to(const FullBlocks& full, size_t i) {
  return (full.first_block + static_cast<int64_t>(i) + 1) * full.block_size;
}

}  // namespace

void PrefixKeys::check_full(const FullBlocks& full) const {
  if (full.hashes.size() != full.blocks.size()) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(full.blocks.size()) +
                          " blocks but " + std::to_string(full.hashes.size()) + " hashes");
  }
  if (!full.mask.empty() && full.mask.size() != full.blocks.size()) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(full.blocks.size()) +
                          " blocks but a mask of " + std::to_string(full.mask.size()));
  }
  check_parent(full.parent_hash);
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  if (full.first_block < 0 || full.first_block > kMaxTokens || full.block_size < 1 ||
      full.block_size > kMaxTokens || tokens_up_to(full, full.blocks.size()) > kMaxTokens) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(full.blocks.size()) +
                          " blocks of " + std::to_string(full.block_size) + " tokens from block " +
                          std::to_string(full.first_block) +
                          " on are not within the first 2147483647 tokens");
  }
}

void PrefixKeys::check_new_hash(const FullBlocks& full, size_t i, const BlockRecord& record) const {
  check_hash(full.hashes[i]);
  if (record.has_hash() && (record.num_tokens == BlockRecord::kUnknownTokens ||
                            record.num_tokens >= tokens_up_to(full, i))) {
    throw BlockPoolError("cache_full_blocks: block " + std::to_string(full.blocks[i]) +
                         " already has a hash, which covers " +
                         (record.num_tokens < 0 ? std::string("an unknown number of")
                                                : std::to_string(record.num_tokens)) +
                         " tokens, not fewer than the new one's " +
                         std::to_string(tokens_up_to(full, i)));
  }
}

void PrefixKeys::replace_key(const FullBlocks& full, size_t i, uint32_t block) {
  evict(block);
  insert_key(block, lookup_key(full.hashes[i], full.group_id),
             static_cast<int32_t>(tokens_up_to(full, i)));
}

void PrefixKeys::push_stored_event(const FullBlocks& full) {
  BlockPoolEvent event = stored_event(full.group_id, full.block_size, full.parent_hash);
  for (size_t i = 0; i < full.blocks.size(); ++i) {
    if (is_skipped(full, i)) continue;
    event.hashes.emplace_back(full.hashes[i]);
    event.blocks.push_back(full.blocks[i]);
    event.positions.push_back(full.first_block + static_cast<int64_t>(i));
  }
  event.first = full.first_block;
  event.end = full.first_block + static_cast<int64_t>(full.blocks.size());
  push_event(std::move(event));
}

bool PrefixKeys::cache_partial(const PartialBlock& partial, uint32_t block) {
  const LookupKey key = lookup_key(partial.hash, partial.group_id);
  const int32_t num_tokens = checked_tokens(partial.num_tokens);
  check_parent(partial.parent_hash);
  if (partial.hash_block_size < 1) {
    throw InvalidArgument("cache_partial_block: hash_block_size is 1 token or more, not " +
                          std::to_string(partial.hash_block_size));
  }
  BlockRecord& record = records[block];
  const bool already_cached = !partial.replace_existing && block_has_key(block, key.key);
  if (partial.replace_existing) {
    evict(block);
  } else if (!already_cached && record.has_hash() &&
             record.num_tokens != BlockRecord::kUnknownTokens && record.num_tokens < num_tokens) {
    evict(block);
  }
  insert_key(block, key, num_tokens);
  if (enable_events && !already_cached) {
    BlockPoolEvent event =
        stored_event(partial.group_id, partial.hash_block_size, partial.parent_hash);
    event.hashes = {std::string(partial.hash)};
    event.blocks = {partial.block};
    event.first = (partial.num_tokens - 1) / partial.hash_block_size;
    event.end = event.first + 1;
    event.positions = {event.first};
    push_event(std::move(event));
  }
  return true;
}

void PrefixKeys::move_keys(uint32_t from, uint32_t to) {
  BlockRecord& source = records[from];
  if (!source.has_hash()) return;
  BlockRecord& target = records[to];
  const size_t slot =
      index.find(hash_key(source.key), [&](uint32_t other) { return other == from; });
  if (slot != HashIndex::kNotFound) index.replace_node(slot, to);
  const uint8_t has_secondary = source.key.flags & BlockRecord::kHasSecondary;
  const auto target_flags = static_cast<uint8_t>(target.key.flags | has_secondary);
  target.key = source.key;
  target.key.flags = target_flags;
  target.num_tokens = source.num_tokens;
  if (source.key.next_same == from) {
    target.key.next_same = target.key.prev_same = to;
  } else {
    key_at(source.key.next_same).prev_same = to;
    key_at(source.key.prev_same).next_same = to;
  }
  if (has_secondary != 0) {
    auto keys = secondary_keys_of.extract(from);
    keys.key() = to;
    for (const uint32_t node : keys.mapped()) secondary_keys[node - num_records].block = to;
    secondary_keys_of.insert(std::move(keys));
  }
  source.key.hash_size = 0;
  source.key.flags &= static_cast<uint8_t>(~BlockRecord::kHasSecondary);
}

void PrefixKeys::reinsert_keys(uint32_t from, uint32_t to) {
  const int32_t num_tokens = records[from].num_tokens;
  std::vector<LookupKey> keys;
  remove_keys(from, [&](const CachedKey& key) {
    LookupKey& copy = keys.emplace_back();
    copy.key = key;
    copy.key.flags = 0;
    copy.hash = hash_key(key);
  });
  for (const LookupKey& key : keys) insert_key(to, key, num_tokens);
}

void PrefixKeys::clear() {
  index.clear();
  secondary_keys.clear();
  unused_secondary_keys.clear();
  secondary_keys_of.clear();
  for (uint32_t id = 1; id < num_records; ++id) {
    // Pages of blocks that were never used stay untouched memory.
    if (!records[id].has_hash()) continue;
    records[id].key.hash_size = 0;
    records[id].key.flags &= static_cast<uint8_t>(~BlockRecord::kHasSecondary);
  }
  if (enable_events) push_event({.kind = BlockPoolEvent::Kind::kCleared});
}

namespace {

/// Length of the ring of equal keys whose oldest is `node`.
size_t check_ring(const PrefixKeys& keys, uint32_t node, size_t max_length) {
  const CachedKey& key = keys.key_at(node);
  size_t length = 0;
  uint32_t at = node;
  do {
    const CachedKey& other = keys.key_at(at);
    require(other.hash_size != 0 && other.same_as(key), "a ring of equal keys has another key", at);
    require(keys.key_at(other.next_same).prev_same == at, "links of equal keys disagree", at);
    require(++length <= max_length, "a ring of equal keys does not close", at);
    at = other.next_same;
  } while (at != node);
  return length;
}

}  // namespace

void PrefixKeys::check_index(size_t num_keys) const {
  size_t num_reachable = 0;
  index.for_each([&](uint32_t node) {
    require(node < num_records + secondary_keys.size(), "the index leaves the pool", node);
    const CachedKey& key = key_at(node);
    const size_t slot =
        index.find(hash_key(key), [&](uint32_t other) { return key_at(other).same_as(key); });
    require(slot != HashIndex::kNotFound && index.node_at(slot) == node,
            "a key in the index cannot be found", node);
    num_reachable += check_ring(*this, node, num_keys);
  });
  require(num_reachable == num_keys, "blocks have keys that the index does not lead to", 0);
}

}  // namespace kvplan::detail
