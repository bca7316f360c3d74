#include "kvplan/errors.h"

#include "bindings/bindings.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

// Exception types live as long as the interpreter, so the translator keeps borrowed references.
struct Types {
  PyObject *invalid_argument, *overflow, *merge, *inconsistent_spec, *unsupported, *page_size,
      *layout, *not_enough_memory, *block_pool, *device;
};
Types types;

PyObject* define(py::module_& m, const char* name, const char* doc, py::tuple bases) {
  const std::string qualified = std::string("kvplan.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  m.attr(name) = py::reinterpret_steal<py::object>(type);
  return type;
}

void raise_not_enough_memory(const NotEnoughMemory& e) {
  py::object error = py::reinterpret_borrow<py::object>(types.not_enough_memory)(e.what());
  const NotEnoughMemory::Numbers& n = e.numbers();
  error.attr("worker") = n.worker;
  error.attr("needed_bytes") = n.needed_bytes;
  error.attr("available_bytes") = n.available_bytes;
  error.attr("max_model_len") = n.max_model_len;
  error.attr("estimated_max_len") = n.estimated_max_len;
  error.attr("max_in_flight_tokens") = n.max_in_flight_tokens;
  PyErr_SetObject(types.not_enough_memory, error.ptr());
}

void translate(std::exception_ptr p) {
  try {
    if (p) std::rethrow_exception(p);
  } catch (const NotEnoughMemory& e) {
    raise_not_enough_memory(e);
  } catch (const Overflow& e) {
    PyErr_SetString(types.overflow, e.what());
  } catch (const MergeError& e) {
    PyErr_SetString(types.merge, e.what());
  } catch (const InconsistentSpec& e) {
    PyErr_SetString(types.inconsistent_spec, e.what());
  } catch (const PageSizeError& e) {
    PyErr_SetString(types.page_size, e.what());
  } catch (const Unsupported& e) {
    PyErr_SetString(types.unsupported, e.what());
  } catch (const LayoutError& e) {
    PyErr_SetString(types.layout, e.what());
  } catch (const BlockPoolError& e) {
    PyErr_SetString(types.block_pool, e.what());
  } catch (const DeviceError& e) {
    PyErr_SetString(types.device, e.what());
  } catch (const InvalidArgument& e) {
    PyErr_SetString(types.invalid_argument, e.what());
  }
}

}  // namespace

void set_python_error() noexcept {
  try {
    translate(std::current_exception());
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

void bind_errors(py::module_& m) {
  const py::handle planning_error(
      define(m, "PlanningError", "What every refusal of the planner is, whatever else it is.",
             py::make_tuple(py::handle(PyExc_Exception))));
  const py::handle value_error(PyExc_ValueError);
  const py::handle assertion_error(PyExc_AssertionError);
  types.invalid_argument = define(m, "InvalidArgument", "A value that cannot be planned with.",
                                  py::make_tuple(planning_error, value_error));
  types.overflow =
      define(m, "Overflow", "Integer arithmetic left the 64-bit range.",
             py::make_tuple(planning_error, value_error, py::handle(PyExc_OverflowError)));
  types.merge = define(m, "MergeError", "Specs of one group do not belong together.",
                       py::make_tuple(planning_error, assertion_error));
  types.inconsistent_spec = define(m, "InconsistentSpec", "A spec contradicts itself.",
                                   py::make_tuple(planning_error, value_error, assertion_error));
  types.unsupported = define(m, "Unsupported", "Something that neither vLLM nor kvplan does.",
                             py::make_tuple(planning_error, py::handle(PyExc_NotImplementedError)));
  types.page_size = define(m, "PageSizeError", "Pages of different sizes cannot be made equal.",
                           py::make_tuple(py::handle(types.unsupported)));
  types.layout = define(m, "LayoutError", "The layout cannot express the model's pages.",
                        py::make_tuple(planning_error, value_error));
  types.not_enough_memory =
      define(m, "NotEnoughMemory",
             "One request of the planned length does not fit. Attributes: worker, needed_bytes, "
             "available_bytes, max_model_len, estimated_max_len, max_in_flight_tokens.",
             py::make_tuple(planning_error, value_error));
  types.block_pool =
      define(m, "BlockPoolError", "A block pool operation that would break the pool.",
             py::make_tuple(value_error));
  types.device = define(m, "DeviceError", "A device refused to run something.",
                        py::make_tuple(py::handle(PyExc_RuntimeError)));
  py::register_exception_translator(translate);
}

}  // namespace kvplan::bindings
