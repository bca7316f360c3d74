#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/vllm/interned_name.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// CPython gives a class another number whenever it or a class that it derives from changes, and no
/// number twice. 0: it has none right now.
unsigned int version_of(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030C0000
  if (PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) == 0) return 0;
#endif
  return type->tp_version_tag;
}

/// The same for a dictionary; 0 where this Python has none.
uint64_t version_of(const py::dict& dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict.ptr())->ma_version_tag;
#else
  (void)dict;
  return 0;
#endif
}

/// What some names of a namespace and all attributes of some classes were at one time.
///
/// Values are told apart by identity and attributes by their order, too: that nothing has changed
/// is certain, that something has may be nothing more than a new object that is equal.
class AttributeWatch {
 public:
  AttributeWatch(py::dict space, const py::dict& values, const py::iterable& classes)
      : space_(std::move(space)) {
    for (const auto& [name, value] : values) expected_.push_back(entry(name, value));
    for (py::handle cls : classes) {
      if (!PyType_Check(cls.ptr())) throw py::type_error("a class is expected");
      Class watched{py::reinterpret_borrow<py::object>(cls), {}, 0};
      for (const auto& [name, value] : attributes(cls)) {
        watched.attributes.push_back(entry(name, value));
      }
      classes_.push_back(std::move(watched));
    }
    changed();  // for the versions
  }

  bool changed() {
    if (space_version_ == 0 || space_version_ != version_of(space_)) {
      const uint64_t version = version_of(space_);
      if (values_have_changed()) return true;
      space_version_ = version;
    }
    for (Class& cls : classes_) {
      auto* type = reinterpret_cast<PyTypeObject*>(cls.type.ptr());
      if (cls.version != 0 && cls.version == version_of(type)) continue;
      if (has_changed(cls)) return true;
      cls.version = give_version(type);
    }
    return false;
  }

 private:
  struct Entry {
    py::object name;
    py::object value;
  };
  struct Class {
    py::object type;
    std::vector<Entry> attributes;
    unsigned int version;  // with these attributes
  };

  static Entry entry(py::handle name, py::handle value) {
    return {py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value)};
  }

  static py::dict attributes(py::handle cls) {
    auto* type = reinterpret_cast<PyTypeObject*>(cls.ptr());
#if PY_VERSION_HEX >= 0x030C0000
    return py::reinterpret_steal<py::dict>(PyType_GetDict(type));
#else
    return py::reinterpret_borrow<py::dict>(type->tp_dict);
#endif
  }

  /// A class has a version once an attribute was looked up through it.
  static unsigned int give_version(PyTypeObject* type) {
    static const InternedName any = "__module__";
    if (version_of(type) == 0) {
      Py_XDECREF(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), any.ptr()));
      PyErr_Clear();
    }
    return version_of(type);
  }

  bool values_have_changed() const {
    for (const Entry& e : expected_) {
      if (PyDict_GetItemWithError(space_.ptr(), e.name.ptr()) == e.value.ptr()) continue;
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      return true;
    }
    return false;
  }

  static bool has_changed(const Class& cls) {
    const py::dict now = attributes(cls.type);
    Py_ssize_t i = 0;
    PyObject *name, *value;
    for (const Entry& e : cls.attributes) {
      if (!PyDict_Next(now.ptr(), &i, &name, &value)) return true;
      if (name != e.name.ptr() || value != e.value.ptr()) return true;
    }
    return PyDict_Next(now.ptr(), &i, &name, &value) != 0;
  }

  py::dict space_;
  uint64_t space_version_ = 0;  // with the expected values
  std::vector<Entry> expected_;
  std::vector<Class> classes_;
};

}  // namespace

void bind_attribute_watch(py::module_& m) {
  py::class_<AttributeWatch>(m, "AttributeWatch",
                             "Whether names of a namespace, or attributes of classes, still are "
                             "the objects that they were when the watch was made.")
      .def(py::init<py::dict, const py::dict&, const py::iterable&>(), py::arg("space"),
           py::arg("values"), py::arg("classes"))
      .def("changed", &AttributeWatch::changed,
           "False if nothing has changed for certain; True if something may have.");
}

}  // namespace kvplan::bindings
