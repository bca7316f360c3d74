// The part of the CUDA runtime that kvplan's library and its tests use, for kernels that run on the
// CPU (machine.h): it takes libcudart's place at link time, so that library and tests are what nvcc
// makes of them for a GPU.
//
// Device memory is host memory. A launch runs at once; a stream only matters while it is captured.
// A fault of a kernel goes to stderr, and every call after it fails, as after one on a device.
#include "runtime.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <set>

namespace {

using Nodes = std::vector<std::function<cudaError_t()>>;

}  // namespace

struct CUstream_st {
  Nodes* captured = nullptr;
};
struct CUgraph_st {
  Nodes nodes;
};
struct CUgraphExec_st {
  Nodes nodes;
};

namespace {

/// In nvcc's object code: a header, then an entry for each architecture.
struct FatBinaryWrapper {
  int magic;
  int version;
  const std::byte* data;
  void* file_name;
};
struct FatBinary {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;
};
struct FatBinaryEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;
};
constexpr uint16_t kPtx = 1;

struct Runtime {
  std::string_view text;  // of the linked PTX, which is read when it is needed
  std::optional<ptx::Program> program;
  std::map<const void*, std::string> names;  // of kernels, by the host's functions
  std::set<std::string> launched;
  std::set<const void*> loaded;  // a device loads a kernel when it is first used
  ptx::Machine machine{1};
  ptx::Costs* costs = nullptr;
  int capturing = 0;
  cudaError_t sticky = cudaSuccess;
};

Runtime& runtime() {
  static Runtime r;
  return r;
}

void load_fat_binary(const std::byte* data) {
  const char* wanted = std::getenv("KVPLAN_PTX_ARCH");
  const std::string target = std::string("sm_") + (wanted != nullptr ? wanted : "90");
  FatBinary header;
  std::memcpy(&header, data, sizeof header);
  const std::byte* at = data + header.header_bytes;
  const std::byte* const end = at + header.bytes;
  while (at < end) {
    FatBinaryEntry entry;
    std::memcpy(&entry, at, sizeof entry);
    const std::string_view text(reinterpret_cast<const char*>(at + entry.header_bytes),
                                static_cast<size_t>(entry.bytes));
    if (entry.kind == kPtx && text.find(".target " + target) != std::string_view::npos) {
      runtime().text = text.substr(0, text.find('\0'));
      return;
    }
    at += entry.header_bytes + entry.bytes;
  }
  std::fprintf(stderr, "no PTX for %s is linked in, or it is compressed\n", target.c_str());
  std::abort();
}

cudaError_t unless_capturing() {
  if (runtime().sticky != cudaSuccess) return runtime().sticky;
  return runtime().capturing == 0 ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

cudaError_t run(const ptx::Kernel& kernel, const ptx::Dimensions& grid, unsigned threads,
                const std::vector<std::byte>& parameters) {
  Runtime& r = runtime();
  if (r.sticky != cudaSuccess) return r.sticky;
  r.launched.insert(kernel.name);
  try {
    r.machine.run(ptx::program(), kernel, grid, threads, parameters, r.costs);
  } catch (const ptx::Fault& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    r.sticky = cudaErrorLaunchFailure;
  }
  return r.sticky;
}

}  // namespace

namespace ptx {

Program& program() {
  Runtime& r = runtime();
  if (!r.program) r.program = parse(r.text);
  return *r.program;
}

void forget_fault() { runtime().sticky = cudaSuccess; }

void count_costs(Costs* costs) { runtime().costs = costs; }

std::vector<std::string> not_launched() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : program().kernels) {
    if (!runtime().launched.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace ptx

extern "C" {

// What nvcc's host code calls.

void** __cudaRegisterFatBinary(void* wrapper) {
  load_fat_binary(static_cast<FatBinaryWrapper*>(wrapper)->data);
  return static_cast<void**>(wrapper);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  runtime().names[host] = name;
}
// Of launches with <<< >>>, which kvplan has none of.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) { std::abort(); }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { std::abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  std::abort();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  const auto [gx, gy, gz] = config->gridDim;
  const auto [threads, by, bz] = config->blockDim;
  if (gx == 0 || gx > 2147483647U || gy == 0 || gy > 65535 || gz == 0 || gz > 65535 ||
      threads == 0 || threads > 1024 || by != 1 || bz != 1 || config->dynamicSmemBytes != 0) {
    return cudaErrorInvalidConfiguration;
  }
  const auto name = runtime().names.find(function);
  if (name == runtime().names.end()) return cudaErrorInvalidDeviceFunction;
  if (runtime().loaded.insert(function).second && runtime().capturing > 0) {
    return cudaErrorStreamCaptureUnsupported;
  }
  const ptx::Kernel& kernel = ptx::program().kernels.find(name->second)->second;
  std::vector<std::byte> parameters(kernel.parameter_bytes, std::byte{0xcd});
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    std::memcpy(parameters.data() + kernel.parameters[i].offset, arguments[i],
                kernel.parameters[i].size);
  }
  const ptx::Dimensions grid{gx, gy, gz};
  const auto launch = [&kernel, grid, threads, parameters = std::move(parameters)] {
    return run(kernel, grid, threads, parameters);
  };
  if (config->stream != nullptr && config->stream->captured != nullptr) {
    config->stream->captured->push_back(launch);
    return cudaSuccess;
  }
  if (runtime().capturing > 0 && config->stream == nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return launch();
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* function) {
  runtime().loaded.insert(function);
  return runtime().names.contains(function) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "invalid argument";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  // A few, so that loops over a grid run more than once; those of an H200 where costs are counted.
  *value = runtime().costs != nullptr ? 132 : 3;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return unless_capturing(); }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (posix_memalign(pointer, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*pointer, 0xa5, bytes);
  return unless_capturing();
}
cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return unless_capturing();
}
cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
  if (const cudaError_t error = unless_capturing(); error != cudaSuccess) return error;
  if (bytes > 0) std::memcpy(target, source, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return unless_capturing(); }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captured = new Nodes;
  ++runtime().capturing;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = new CUgraph_st{std::move(*stream->captured)};
  delete stream->captured;
  stream->captured = nullptr;
  --runtime().capturing;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& node : exec->nodes) {
    if (const cudaError_t error = node(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
