#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/vllm/object_model.h"
#include "kvplan/spec.h"

namespace kvplan::bindings {

/// A plugin's subclass of one of vLLM's spec classes. Its own code says what each spec's numbers
/// are, once for each set of fields in a plan.
class VllmSubclass final : public SpecSubclass {
 public:
  /// `objects` must live longer than any spec that is planned.
  VllmSubclass(const ObjectModel& objects, pybind11::handle type);

  const pybind11::object& type() const { return type_; }
  PageNumbers numbers_of(const KVCacheSpec& spec) const override;
  /// Throws `TypeError` where the object that came in says other numbers than were read off one
  /// with the same fields.
  void require_same(pybind11::handle object, const KVCacheSpec& read) const;
  /// All that was asked so far, without the class. Throws `TypeError` where a page is not told by
  /// block size and padding alone.
  std::shared_ptr<const RecordedSubclass> recorded() const;

 private:
  PageNumbers read(pybind11::handle object, const KVCacheSpec& spec) const;

  const ObjectModel& objects_;
  pybind11::object type_;
  mutable std::vector<std::pair<KVCacheSpec, PageNumbers>> asked_;
};

/// The class behind a spec's subclass. Throws `TypeError` where only its numbers are there.
pybind11::object type_of(const SpecSubclass& subclass);

/// A spec that can be kept: with recorded numbers in place of a class that is asked.
KVCacheSpec without_class(KVCacheSpec spec);

}  // namespace kvplan::bindings
