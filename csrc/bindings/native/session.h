#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "bindings/native/object_model.h"
#include "kvplan/plan.h"

namespace kvplan::bindings {

/// One call from Python: its objects as a `PlanRequest`, and the way back. A spec or a name that
/// came in goes out as the very object it was.
class Session {
 public:
  explicit Session(const ObjectModel& model = native_objects()) : model_(model) {}

  PlanRequest& request() { return request_; }
  PlanningContext context() { return {*request_.names(), request_.specs(), notices_}; }

  /// A mapping from layer names to specs.
  LayerSpecs read_layers(pybind11::handle mapping);
  /// A sequence of group specs.
  KVCacheGroups read_groups(pybind11::handle groups);
  /// One mapping and one memory size for each worker, into the request. With groups, a worker's
  /// mapping only says which of their layers it owns, so its specs are not looked at.
  void read_workers(pybind11::handle kv_cache_specs, pybind11::handle available_memory,
                    const KVCacheGroups* groups = nullptr);

  /// The object that came in with this layer where it still has that spec, else one that is equal.
  pybind11::object layer_spec_object(const LayerSpec& layer, const SpecTable& specs);
  pybind11::object spec_object(SpecId id) { return spec_object(id, request_.specs()); }
  pybind11::object spec_object(SpecId id, const SpecTable& specs);
  pybind11::list names(const std::vector<LayerId>& layers) const;
  pybind11::dict layer_dict(const LayerSpecs& layers, const SpecTable& specs);
  pybind11::object group_object(const KVCacheGroup& group, const SpecTable& specs);
  pybind11::list group_list(const KVCacheGroups& groups, const SpecTable& specs);
  pybind11::list tensor_list(const std::vector<KVCacheTensor>& tensors) const;

  /// Hands the notices so far to kvplan's logger.
  void log_notices();
  /// The messages of the notices so far.
  pybind11::list take_notices();

 private:
  static constexpr size_t kNone = detail::PositionIndex::kNone;

  size_t read_list(pybind11::object mapping, const std::vector<SpecId>* spec_of_layer);
  LayerSpecs read_owned(pybind11::handle mapping, const std::vector<SpecId>& spec_of_layer);
  SpecId read_spec(pybind11::handle spec, SpecId expected = {});
  bool is_same(SpecId known, pybind11::handle spec) const;
  void begin_names() { next_name_ = 0; }
  void reserve_names(size_t count);
  LayerId read_name(pybind11::handle name);
  LayerId read_unknown_name(pybind11::handle name, LayerId expected);

  /// A layer's name, and the spec that it came in with first.
  struct LayerObject {
    pybind11::object name;
    pybind11::object spec;
    SpecId id;
  };

  const ObjectModel& model_;
  PlanRequest request_;
  Notices notices_;
  std::pair<pybind11::object, size_t> last_list_;  // a mapping, and the request's list
  std::vector<pybind11::object> spec_objects_;     // by SpecId: the first with this value
  std::vector<LayerObject> layer_objects_;         // by LayerId
  detail::PositionIndex layers_by_name_;           // in them, by Python's hash
  size_t next_name_ = 0;                           // the layer that is expected next
};

void log_notices(const Notices& notices);

}  // namespace kvplan::bindings
