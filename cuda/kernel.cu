// Conversion on a GPU: one launch per batch of pages, from and to any memory that the device can address.
#include <cuda_runtime.h>

#include <string>
#include <type_traits>

#include "kernel.h"

namespace omniflow {
namespace {

constexpr int kThreads = 256;
// Enough threads to fill any current GPU; teams take further pieces in turn.
constexpr int64_t kMaxBlocksOfThreads = 4096;

template <int Bytes>
__global__ void __launch_bounds__(kThreads) convert(const __grid_constant__ Launch launch) {
  convert_thread<Bytes>(launch, static_cast<int32_t>(blockIdx.y),
                        static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x),
                        static_cast<int32_t>(gridDim.x * blockDim.x));
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

// Makes a device current, and the previous one again.
class Current {
 public:
  explicit Current(int device) {
    check(cudaGetDevice(&previous_), "the current CUDA device cannot be told");
    check(cudaSetDevice(device), "the CUDA device of the block stacks cannot be used");
  }
  ~Current() { cudaSetDevice(previous_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

void convert_on_device(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, int device,
                       std::uintptr_t stream) {
  const Current current(device);
  for_each_launch(conversion, direction, parts, [&](const Launch& launch, int vector) {
    with_vector(vector, [&](auto bytes) {
      const int64_t threads = static_cast<int64_t>(launch.part_pieces) * launch.lanes;
      const int64_t wanted = (threads + kThreads - 1) / kThreads;
      const int64_t most = std::max<int64_t>(kMaxBlocksOfThreads / launch.parts_used, 1);
      const dim3 grid(static_cast<unsigned>(std::min(wanted, most)), static_cast<unsigned>(launch.parts_used));
      convert<decltype(bytes)::value><<<grid, kThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(launch);
      check(cudaGetLastError(), "the conversion kernel could not be launched");
    });
  });
}

int device_count() {
  int count = 0;
  // Without a driver there is no device; the error must not stay for whoever asks next.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::uintptr_t device_address(std::uintptr_t address) {
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address));
  if (status == cudaErrorInvalidValue) {
    cudaGetLastError();
    return 0;
  }
  check(status, "CUDA cannot tell what an address is");
  return reinterpret_cast<std::uintptr_t>(attributes.devicePointer);
}

}  // namespace omniflow
