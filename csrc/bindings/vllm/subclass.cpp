#include "bindings/vllm/subclass.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "bindings/native/field_conversion.h"
#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

std::string name_of(py::handle type) {
  return py::str("{}.{}")
      .format(type.attr("__module__"), type.attr("__qualname__"))
      .cast<std::string>();
}

/// vLLM's name for each number, where it is not the number's own.
py::object read_number(py::handle object, const KVCacheSpec& spec, std::string_view name) {
  if (name == "num_states") return object.attr("get_num_kernel_states")(spec.block_size);
  if (name == "block_stride_alignment") return object.attr("get_block_stride_alignment")();
  if (name == "unpadded_page_size_bytes" && spec.kind == SpecKind::kMamba) {
    return object.attr("real_page_size_bytes");
  }
  return object.attr(py::str(name));
}

KVCacheSpec fields_only(const KVCacheSpec& spec) {
  KVCacheSpec fields = spec;
  fields.subclass.reset();
  return fields;
}

}  // namespace

VllmSubclass::VllmSubclass(const ObjectModel& objects, py::handle type)
    : SpecSubclass(name_of(type), type.ptr()),
      objects_(objects),
      type_(py::reinterpret_borrow<py::object>(type)) {}

PageNumbers VllmSubclass::numbers_of(const KVCacheSpec& spec) const {
  KVCacheSpec fields = fields_only(spec);
  for (const auto& [asked, numbers] : asked_) {
    if (asked == fields && asked.is_draft == fields.is_draft) return numbers;
  }
  const PageNumbers numbers = read(objects_.make_spec(spec), spec);
  asked_.emplace_back(std::move(fields), numbers);
  return numbers;
}

PageNumbers VllmSubclass::read(py::handle object, const KVCacheSpec& spec) const {
  PageNumbers numbers;
  for (const PageNumber& number : kPageNumbers) {
    py::object value;
    try {
      value = read_number(object, spec, number.name);
    } catch (py::error_already_set& e) {
      if (!e.matches(PyExc_Exception)) throw;
      throw py::type_error(
          name() + ": " + number.name + " raises " +
          py::str("{}: {}").format(e.type().attr("__name__"), e.value()).cast<std::string>());
    }
    // vLLM computes with whatever it is, and its results hold what comes out.
    if (!PyLong_CheckExact(value.ptr())) {
      throw py::type_error(name() + ": " + number.name + " is " +
                           py::repr(value).cast<std::string>() + ", not an int");
    }
    read_field(value, number.name, numbers.*number.member);
  }
  return numbers;
}

void VllmSubclass::require_same(py::handle object, const KVCacheSpec& read_before) const {
  if (read(object, read_before) == read_before.numbers) return;
  throw py::type_error("KV cache spec class " + name() +
                       " is not known to kvplan: its numbers change from one reading to the next");
}

std::shared_ptr<const RecordedSubclass> VllmSubclass::recorded() const {
  std::vector<RecordedSubclass::Page> pages;
  for (const auto& [spec, numbers] : asked_) {
    const RecordedSubclass::Page page{spec.block_size, spec.page_size_padded, numbers};
    const auto same = std::find_if(pages.begin(), pages.end(), [&](const auto& p) {
      return p.block_size == page.block_size && p.page_size_padded == page.page_size_padded;
    });
    if (same == pages.end()) {
      pages.push_back(page);
    } else if (!(*same == page)) {
      throw py::type_error("the numbers of " + name() +
                           " depend on more than block_size and page_size_padded, which a record "
                           "cannot hold");
    }
  }
  return std::make_shared<const RecordedSubclass>(name(), std::move(pages));
}

py::object type_of(const SpecSubclass& subclass) {
  const auto* cls = dynamic_cast<const VllmSubclass*>(&subclass);
  if (cls != nullptr) return cls->type();
  throw py::type_error("the class " + subclass.name() + " is not here, only its numbers are");
}

KVCacheSpec without_class(KVCacheSpec spec) {
  if (const auto* cls = dynamic_cast<const VllmSubclass*>(spec.subclass.get())) {
    spec.subclass = cls->recorded();
  }
  return spec;
}

}  // namespace kvplan::bindings
