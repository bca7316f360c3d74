#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/detail/position_index.h"
#include "kvplan/export.h"
#include "kvplan/spec.h"
#include "kvplan/types.h"

namespace kvplan {

/// Layer names, each stored once.
class KVPLAN_API NameTable {
 public:
  NameTable() = default;
  /// The same names under the same ids.
  NameTable(const NameTable& other);
  NameTable& operator=(const NameTable&) = delete;

  LayerId intern(std::string_view name);
  /// The same for a name that is surely not in the table yet.
  LayerId add_new(std::string_view name);
  /// Invalid if the name is not known.
  LayerId find(std::string_view name) const;
  /// Valid as long as the table, and followed by a NUL character.
  std::string_view operator[](LayerId id) const { return names_[id.pos()]; }
  size_t size() const { return names_.size(); }
  /// Makes room for this many names in all.
  void reserve(size_t count);

 private:
  LayerId add(std::string_view name, size_t hash);
  std::string_view store(std::string_view name);

  std::vector<std::string_view> names_;
  detail::PositionIndex index_;
  std::vector<std::unique_ptr<char[]>> chunks_;  // the names' characters
  char* free_ = nullptr;                         // in the last chunk
  size_t num_free_ = 0;
};

/// Specs, each distinct value stored once, with the numbers that planning asks for again and again.
/// Two specs that differ in `is_draft` alone have different ids and one equality class.
class KVPLAN_API SpecTable {
 public:
  SpecId intern(const KVCacheSpec& spec);
  const KVCacheSpec& operator[](SpecId id) const { return entries_[id.pos()].spec; }
  /// The first interned spec that equals this one by vLLM's `==`.
  SpecId equality_class(SpecId id) const { return entries_[id.pos()].equality_class; }
  bool equal(SpecId a, SpecId b) const { return equality_class(a) == equality_class(b); }
  int64_t page_size_bytes(SpecId id) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    KVCacheSpec spec;
    SpecId equality_class;
    int64_t page_size_bytes = 0;  // 0: the spec contradicts itself, which asking for it reports
  };
  std::deque<Entry> entries_;
  detail::PositionIndex index_;
};

struct LayerSpec {
  LayerId layer;
  SpecId spec;
  bool operator==(const LayerSpec&) const = default;
};

/// Layers with their specs, in registration order: vLLM's `dict[str, KVCacheSpec]`.
using LayerSpecs = std::vector<LayerSpec>;

enum class GroupRole : uint8_t { kDefault, kHiSparseSource, kHiSparseIndexer };

/// Layers that share one block table. A group either has one spec for all its layers, or (vLLM's
/// `UniformTypeKVCacheSpecs`) one spec a layer, all of the same type.
struct KVCacheGroup {
  std::vector<LayerId> layers;
  SpecId spec;  ///< of every layer; of the first layer where `layer_specs` is set
  /// Shared between the projections of a group. May hold more layers than `layers`: a pipeline
  /// stage that owns none keeps the whole model's specs, since the scheduler reads them.
  std::shared_ptr<const LayerSpecs> layer_specs;
  bool is_eagle_group = false;
  bool host_resident = false;
  bool enable_kv_transfer = true;
  GroupRole role = GroupRole::kDefault;
  /// Pages of this group side by side in one block of the pool (`grouping="sliced"`). The group has
  /// `num_blocks * slices` block ids, `id = pool_block * slices + slice`, and a layer's page lies
  /// at `offset + id * block_stride` with `block_stride = bytes_per_block / slices`.
  int64_t slices = 1;

  bool is_uniform_type() const { return layer_specs != nullptr; }
};

using KVCacheGroups = std::vector<KVCacheGroup>;

/// Calls `visit(id)` for the spec that all layers of the group have, or for each layer's own.
template <class Visit>
void for_each_spec(const KVCacheGroup& group, Visit&& visit) {
  if (!group.is_uniform_type()) {
    visit(group.spec);
    return;
  }
  for (const LayerSpec& l : *group.layer_specs) visit(l.spec);
}
/// Whether `predicate(id)` holds for any of these.
template <class Predicate>
bool any_spec(const KVCacheGroup& group, Predicate&& predicate) {
  bool any = false;
  for_each_spec(group, [&](SpecId id) { any = any || predicate(id); });
  return any;
}

/// The spec of `group.layers[i]`.
KVPLAN_API SpecId layer_spec_id(const KVCacheGroup& group, size_t i);

/// A remark of the planner, in the words of vLLM's log where vLLM has one.
struct Notice {
  enum class Level : uint8_t { kInfo, kWarning };
  Level level;
  std::string message;
};
using Notices = std::vector<Notice>;

/// A handle on what every planning step reads and adds to: passed by value, and as good as three
/// references.
struct PlanningContext {
  const NameTable& names;
  SpecTable& specs;
  Notices& notices;

  std::string name(LayerId id) const { return std::string(names[id]); }
  const KVCacheSpec& spec(SpecId id) const { return specs[id]; }
  const KVCacheSpec& spec(const LayerSpec& l) const { return specs[l.spec]; }
  int64_t page(SpecId id) const { return specs.page_size_bytes(id); }
  KVPLAN_API void info(std::string message) const;
  KVPLAN_API void warn(std::string message) const;
};

}  // namespace kvplan
