#include "kvplan/groups.h"

#include "kvplan/errors.h"

namespace kvplan {

LayerId NameTable::intern(std::string_view name) {
  if (const auto it = ids_.find(name); it != ids_.end()) return it->second;
  if (name.empty()) throw InvalidArgument("a layer name is empty");
  const LayerId id(names_.size());
  names_.emplace_back(name);
  ids_.emplace(names_.back(), id);
  return id;
}

LayerId NameTable::find(std::string_view name) const {
  const auto it = ids_.find(name);
  return it == ids_.end() ? LayerId() : it->second;
}

SpecId SpecTable::intern(const KVCacheSpec& spec) {
  const size_t hash = hash_value(spec);
  SpecId equality_class;
  const auto [begin, end] = ids_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = entries_[it->second.pos()];
    if (!(entry.spec == spec)) continue;
    if (entry.spec.is_draft == spec.is_draft) return it->second;
    equality_class = entry.equality_class;
  }
  const SpecId id(entries_.size());
  int64_t page = 0;
  try {
    page = kvplan::page_size_bytes(spec);
  } catch (const Error&) {
    // Planning may never ask for this page, and vLLM fails only where it does.
  }
  entries_.push_back({spec, equality_class.valid() ? equality_class : id, page});
  ids_.emplace(hash, id);
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
