// What stands in for kernel.cu where there is no CUDA compiler.
#include <stdexcept>

#include "conversion.h"

namespace omniflow {

void convert_on_device(const Conversion&, Direction, const std::vector<PagePart>&, int, std::uintptr_t) {
  throw std::runtime_error("this build has no CUDA kernels; run cuda/build.py where nvcc is installed");
}

int device_count() { return 0; }

std::uintptr_t device_address(std::uintptr_t) { return 0; }

}  // namespace omniflow
