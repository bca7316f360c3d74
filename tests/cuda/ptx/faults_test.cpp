// The machine finds what is wrong with a kernel, and what is illegal while a stream is captured.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "fault_kernels.h"
#include "runtime.h"

namespace {

constexpr unsigned kThreads = 64;

/// What the machine says of a kernel that is launched in `blocks` thread blocks.
std::string message_of(const std::string& fault, unsigned blocks) {
  const auto out = std::make_unique<int[]>(kThreads);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  testing::internal::CaptureStderr();
  const cudaError_t error = cudaLaunchKernelEx(&config, fault_kernels().at(fault), out.get());
  const std::string message = testing::internal::GetCapturedStderr();
  EXPECT_EQ(error == cudaSuccess, message.empty());
  return message;
}

class Faults : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  void TearDown() override { ptx::forget_fault(); }
};

TEST_P(Faults, AreFound) {
  const auto& [fault, message] = GetParam();
  EXPECT_NE(message_of(fault, 4).find(message), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, Faults,
    testing::Values(std::pair{"no barrier", "a race with another thread"},
                    std::pair{"one barrier missing", "a race with another thread"},
                    std::pair{"warp ends before a barrier", "other warps have ended without"},
                    std::pair{"lane misses a barrier", "not all lanes of a warp reach"},
                    std::pair{"lane misses a shuffle", "a shuffle that not all lanes reach"},
                    std::pair{"shuffle of some lanes", "a shuffle that not all lanes reach"},
                    std::pair{"shuffle is no barrier", "a race with another thread"},
                    std::pair{"shared memory not written", "shared memory that nobody has written"},
                    std::pair{"blocks share a place", "a race with another thread"},
                    std::pair{"half atomic", "a race with another thread"},
                    std::pair{"beyond an array", "outside of an array"},
                    std::pair{"misaligned vector", "misaligned address"},
                    std::pair{"division by zero", "division by zero"}),
    [](const auto& parameter) {
      std::string name = parameter.param.first;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

TEST(Runtime, NoFaultInOneBlock) { EXPECT_EQ(message_of("no fault", 1), ""); }

TEST(Runtime, WhatACaptureForbids) {
  cudaStream_t stream;
  cudaGraph_t graph;
  void* more = nullptr;
  cudaStreamCreate(&stream);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&more, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaFree(more), cudaErrorStreamCaptureUnsupported);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(Runtime, RefusesWhatADeviceRefuses) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1025);
  int* out = nullptr;
  EXPECT_EQ(cudaLaunchKernelEx(&config, fault_kernels().at("no fault"), out),
            cudaErrorInvalidConfiguration);
}

}  // namespace
