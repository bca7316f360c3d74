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

HashBytes to_bytes(std::string_view hash) {
  check_hash(hash);
  HashBytes bytes{.words = {}, .size = static_cast<uint32_t>(hash.size()), .mixed = 0};
  for (size_t at = 0; at < hash.size(); at += 8) {
    bytes.words[at / 8] = load_word(hash.data() + at, hash.size() - at);
  }
  return bytes;
}

PrefixKeys::PrefixKeys(BlockRecord* records_, uint32_t num_records_, BlockPoolOptions options)
    : records(records_),
      num_records(num_records_),
      enable_events(options.enable_events),
      max_events(static_cast<size_t>(options.max_events)),
      // Groups share hashes, so most pools need far fewer than they have blocks. It grows.
      index(options.enable_caching ? num_records_ / 8 : 0),
      entries(num_records_) {
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

bool PrefixKeys::block_has_key(uint32_t block, uint32_t entry, PoolGroupId group_id) const {
  const BlockRecord& record = records[block];
  if (!record.has_hash()) return false;
  const CachedKey wanted{.entry = entry, .group = static_cast<uint16_t>(group_id)};
  if (record.key.same_as(wanted)) return true;
  if ((record.key.flags & BlockRecord::kHasSecondary) == 0) return false;
  const std::vector<uint32_t>& keys = secondary_keys_of.at(block);
  return std::any_of(keys.begin(), keys.end(),
                     [&](uint32_t node) { return key_at(node).same_as(wanted); });
}

uint32_t PrefixKeys::add_column(size_t group) {
  if (group >= column_of.size()) column_of.resize(group + 1);
  entries.widen(num_columns + 1);
  column_of[group] = ++num_columns;
  return num_columns - 1;
}

uint32_t PrefixKeys::new_secondary_key(uint32_t block) {
  uint32_t i;
  if (unused_secondary_keys.empty()) {
    i = static_cast<uint32_t>(secondary_keys.size());
    secondary_keys.push_back({{}, block});
    // So that giving a key back cannot fail.
    unused_secondary_keys.reserve(secondary_keys.capacity());
  } else {
    i = unused_secondary_keys.back();
    unused_secondary_keys.pop_back();
    secondary_keys[i] = {{}, block};
  }
  secondary_keys_of[block].push_back(num_records + i);
  records[block].set_flag(BlockRecord::kHasSecondary);
  return num_records + i;
}

uint32_t PrefixKeys::make_entry(const HashBytes& hash) {
  uint32_t entry = find_entry(hash);
  if (entry != 0) return entry;
  index.reserve_one();
  entry = entries.make(hash);
  index.insert(hash.mixed, entry);
  return entry;
}

void PrefixKeys::drop_entry(uint32_t entry) {
  index.erase(
      index.find(entries.hash(entry).mixed, [&](uint32_t other) { return other == entry; }));
  entries.release(entry);
}

void PrefixKeys::insert_key(uint32_t block, const HashBytes& hash, PoolGroupId group_id,
                            int32_t num_tokens) {
  const uint32_t column = make_column(group_id);
  if (block_has_key(block, find_entry(hash), group_id)) return;
  index.reserve_one();
  entries.reserve_one();
  BlockRecord& record = records[block];
  uint32_t node = block;
  if (record.has_hash()) {
    node = new_secondary_key(block);
  } else {
    record.num_tokens = num_tokens;
  }
  key_at(node).group = static_cast<uint16_t>(group_id);
  link_key(node, key_at(node), make_entry(hash), column);
}

int64_t PrefixKeys::evict_all(uint32_t block) {
  if (!enable_events) return remove_keys(block, [](const CachedKey&) {});
  return remove_keys(block, [&](const CachedKey& key) {
    push_event({.kind = BlockPoolEvent::Kind::kRemoved,
                .group_id = static_cast<PoolGroupId>(key.group),
                .block_size = key.group < block_size_of.size() ? block_size_of[key.group] : 0,
                .hashes = {std::string(hash_of(key))},
                .blocks = {block_id(key.group, block)},
                .still_cached = &key_at(key.next_same) != &key});
  });
}

void PrefixKeys::check_columns(const FullBlockColumns& columns) {
  if (columns.groups.size() == columns.columns.size()) return;
  throw InvalidArgument("cache_full_blocks: " + std::to_string(columns.groups.size()) +
                        " groups but " + std::to_string(columns.columns.size()) + " columns");
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

void PrefixKeys::check_full(const FullBlocks& full) const {
  const size_t num_blocks = full.hashes.size();
  if (!full.mask.empty() && full.mask.size() != num_blocks) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(num_blocks) +
                          " blocks but a mask of " + std::to_string(full.mask.size()));
  }
  check_parent(full.parent_hash);
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  if (full.first_block < 0 || full.first_block > kMaxTokens || full.block_size < 1 ||
      full.block_size > kMaxTokens || tokens_up_to(full, num_blocks) > kMaxTokens) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(num_blocks) + " blocks of " +
                          std::to_string(full.block_size) + " tokens from block " +
                          std::to_string(full.first_block) +
                          " on are not within the first 2147483647 tokens");
  }
}

void PrefixKeys::refuse_new_hash(const FullBlocks& full, size_t i, uint32_t block) const {
  const BlockRecord& record = records[block];
  throw BlockPoolError(
      "cache_full_blocks: block " + std::to_string(block_id(record.key.group, block)) +
      " already has a hash, which covers " +
      (record.num_tokens < 0 ? std::string("an unknown number of")
                             : std::to_string(record.num_tokens)) +
      " tokens, not fewer than the new one's " + std::to_string(tokens_up_to(full, i)));
}

void PrefixKeys::push_stored_event(const FullBlocks& full, const FullBlockColumns& columns,
                                   size_t j) {
  BlockPoolEvent event = stored_event(columns.groups[j], full.block_size, full.parent_hash);
  for (size_t i = 0; i < full.hashes.size(); ++i) {
    if (is_skipped(full, i, columns.at(i, j))) continue;
    event.hashes.emplace_back(full.hashes[i]);
    event.blocks.push_back(columns.at(i, j));
    event.positions.push_back(full.first_block + static_cast<int64_t>(i));
  }
  event.first = full.first_block;
  event.end = full.first_block + static_cast<int64_t>(full.hashes.size());
  push_event(std::move(event));
}

void PrefixKeys::push_stored_prefix(std::span<const std::string_view> hashes, int64_t block_size,
                                    PoolGroupId group_id) {
  if (!enable_events) return;
  for (const std::string_view hash : hashes) check_hash(hash);
  BlockPoolEvent event{.kind = BlockPoolEvent::Kind::kStored,
                       .group_id = group_id,
                       .block_size = block_size,
                       .hashes = {hashes.begin(), hashes.end()},
                       .end = static_cast<int64_t>(hashes.size())};
  for (int64_t i = 0; i < event.end; ++i) event.positions.push_back(i);
  push_event(std::move(event));
}

bool PrefixKeys::cache_partial(const PartialBlock& partial, uint32_t block) {
  const HashBytes hash = lookup_hash(partial.hash);
  const int32_t num_tokens = checked_tokens(partial.num_tokens);
  check_parent(partial.parent_hash);
  if (partial.hash_block_size < 1) {
    throw InvalidArgument("cache_partial_block: hash_block_size is 1 token or more, not " +
                          std::to_string(partial.hash_block_size));
  }
  BlockRecord& record = records[block];
  const bool already_cached =
      !partial.replace_existing && block_has_key(block, find_entry(hash), partial.group_id);
  if (partial.replace_existing) {
    evict(block);
  } else if (!already_cached && record.has_hash() &&
             record.num_tokens != BlockRecord::kUnknownTokens && record.num_tokens < num_tokens) {
    evict(block);
  }
  insert_key(block, hash, partial.group_id, num_tokens);
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
  const uint32_t column = column_of[source.key.group] - 1;
  if (entries.head(source.key.entry, column) == from) {
    entries.replace_head(source.key.entry, column, to);
  }
  const uint16_t has_secondary = source.key.flags & BlockRecord::kHasSecondary;
  const uint16_t target_flags = target.key.flags | has_secondary;
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
  source.key.entry = 0;
  source.clear_flag(BlockRecord::kHasSecondary);
}

void PrefixKeys::reinsert_keys(uint32_t from, uint32_t to) {
  const int32_t num_tokens = records[from].num_tokens;
  std::vector<std::pair<HashBytes, PoolGroupId>> keys;
  remove_keys(from, [&](const CachedKey& key) {
    keys.emplace_back(lookup_hash(hash_of(key)), static_cast<PoolGroupId>(key.group));
  });
  for (const auto& [hash, group_id] : keys) insert_key(to, hash, group_id, num_tokens);
}

void PrefixKeys::clear() {
  index.clear();
  entries.clear();
  num_distinct = 0;
  secondary_keys.clear();
  unused_secondary_keys.clear();
  secondary_keys_of.clear();
  for (uint32_t id = 1; id < num_records; ++id) {
    // Pages of blocks that were never used stay untouched memory.
    if (!records[id].has_hash()) continue;
    records[id].key.entry = 0;
    records[id].clear_flag(BlockRecord::kHasSecondary);
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
    require(other.entry != 0 && other.same_as(key), "a ring of equal keys has another key", at);
    require(keys.key_at(other.next_same).prev_same == at, "links of equal keys disagree", at);
    require(++length <= max_length, "a ring of equal keys does not close", at);
    at = other.next_same;
  } while (at != node);
  return length;
}

}  // namespace

void PrefixKeys::check_index(size_t num_keys) const {
  size_t num_reachable = 0;
  size_t num_heads = 0;
  index.for_each([&](uint32_t entry) {
    const std::string_view hash = entries.view(entry);
    require(!hash.empty() && find_entry(lookup_hash(hash)) == entry,
            "a hash in the index cannot be found", entry);
    size_t num_of_entry = 0;
    for (size_t group = 0; group < column_of.size(); ++group) {
      if (column_of[group] == 0) continue;
      const uint32_t node = entries.head(entry, column_of[group] - 1);
      if (node == 0) continue;
      require(node < num_records + secondary_keys.size(), "the index leaves the pool", node);
      require(key_at(node).entry == entry && key_at(node).group == group,
              "the index leads to another key", node);
      num_reachable += check_ring(*this, node, num_keys);
      ++num_of_entry;
    }
    require(num_of_entry != 0 && num_of_entry == entries.num_heads(entry),
            "a hash has another number of groups", entry);
    num_heads += num_of_entry;
  });
  require(num_heads == num_distinct, "the count of hashes is wrong", 0);
  require(num_reachable == num_keys, "blocks have keys that the index does not lead to", 0);
}

}  // namespace kvplan::detail
