#include "kvplan/groups.h"

#include <algorithm>
#include <cstring>

#include "kvplan/errors.h"

namespace kvplan {

namespace {

/// Eight bytes at a time: names share long prefixes and are hashed once for every plan.
size_t hash_name(std::string_view name) {
  uint64_t hash = name.size();
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  };
  size_t i = 0;
  for (; i + 8 <= name.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, name.data() + i, 8);
    mix(word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, name.data() + i, name.size() - i);
  mix(rest);
  return hash;
}

}  // namespace

NameTable::NameTable(const NameTable& other) : index_(other.index_) {
  names_.reserve(other.size());
  for (const std::string_view name : other.names_) names_.push_back(store(name));
}

void NameTable::reserve(size_t count) {
  names_.reserve(count);
  index_.reserve(count);
}

std::string_view NameTable::store(std::string_view name) {
  if (num_free_ <= name.size()) {
    // The first chunks are of a size that malloc has at hand.
    constexpr size_t kSmall = 1000, kLarge = 1 << 16;
    num_free_ = std::max(name.size() + 1, chunks_.size() < 8 ? kSmall : kLarge);
    chunks_.push_back(std::make_unique_for_overwrite<char[]>(num_free_));
    free_ = chunks_.back().get();
  }
  char* text = free_;
  std::memcpy(text, name.data(), name.size());
  text[name.size()] = '\0';
  free_ += name.size() + 1;
  num_free_ -= name.size() + 1;
  return {text, name.size()};
}

LayerId NameTable::intern(std::string_view name) {
  const size_t hash = hash_name(name);
  const size_t known = index_.find(hash, [&](size_t i) { return names_[i] == name; });
  if (known != index_.kNone) return LayerId(known);
  return add(name, hash);
}

LayerId NameTable::add_new(std::string_view name) { return add(name, hash_name(name)); }

LayerId NameTable::add(std::string_view name, size_t hash) {
  if (name.empty()) throw InvalidArgument("a layer name is empty");
  const LayerId id(names_.size());
  names_.push_back(store(name));
  index_.add(hash, id.pos());
  return id;
}

LayerId NameTable::find(std::string_view name) const {
  const size_t hash = hash_name(name);
  const size_t known = index_.find(hash, [&](size_t i) { return names_[i] == name; });
  return known == index_.kNone ? LayerId() : LayerId(known);
}

SpecId SpecTable::intern(const KVCacheSpec& spec) {
  const size_t hash = hash_value(spec);
  SpecId equality_class;
  const size_t known = index_.find(hash, [&](size_t i) {
    const Entry& entry = entries_[i];
    if (!(entry.spec == spec)) return false;
    if (entry.spec.is_draft == spec.is_draft) return true;
    equality_class = entry.equality_class;
    return false;
  });
  if (known != index_.kNone) return SpecId(known);
  const SpecId id(entries_.size());
  int64_t page = 0;
  try {
    page = kvplan::page_size_bytes(spec);
  } catch (const Error&) {
    // Planning may never ask for this page, and vLLM fails only where it does.
  }
  entries_.push_back({spec, equality_class.valid() ? equality_class : id, page});
  index_.add(hash, id.pos());
  return id;
}

int64_t SpecTable::page_size_bytes(SpecId id) const {
  const Entry& entry = entries_[id.pos()];
  return entry.page_size_bytes != 0 ? entry.page_size_bytes : kvplan::page_size_bytes(entry.spec);
}

SpecId layer_spec_id(const KVCacheGroup& group, size_t i) {
  if (!group.is_uniform_type()) return group.spec;
  const LayerSpecs& specs = *group.layer_specs;
  if (i < specs.size() && specs[i].layer == group.layers[i]) return specs[i].spec;
  for (const LayerSpec& l : specs) {
    if (l.layer == group.layers[i]) return l.spec;
  }
  throw InconsistentSpec("a layer of a KV cache group has no spec in the group");
}

void PlanningContext::info(std::string message) const {
  notices.push_back({Notice::Level::kInfo, std::move(message)});
}

void PlanningContext::warn(std::string message) const {
  notices.push_back({Notice::Level::kWarning, std::move(message)});
}

}  // namespace kvplan
