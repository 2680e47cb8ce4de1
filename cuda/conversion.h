// A conversion between block stacks and pages, and the two ways to run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "geometry.h"

namespace omniflow {

enum class Direction : int32_t { kStore, kLoad };  // stacks to pages, pages to stacks

struct Conversion {
  Geometry geometry;
  Joins joins;
  std::vector<char*> stacks;  // layers * kinds addresses

  Conversion(const Geometry& geometry, std::vector<char*> stacks)
      : geometry(geometry), joins(joins_of(geometry)), stacks(std::move(stacks)) {}
};

// Some tokens of one page. `blocks` has blocks_of(tokens) entries.
struct PagePart {
  char* page;
  Tokens tokens;
  const int32_t* blocks;
};

// Copies on the CPU, on up to `threads` threads.
void convert_on_host(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, int threads);

// Queues the copies on `stream` of `device` and returns. Every address must be one that the device can use. What is
// passed may be freed at once. Throws std::runtime_error for what CUDA reports.
void convert_on_device(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, int device,
                       std::uintptr_t stream);

// What the kernel's threads would copy, run one after another on the host: how the kernel is tested without a GPU.
void convert_as_kernel(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts);

int device_count();

// The address through which kernels of the current device reach `address`; 0 for memory that CUDA does not know.
std::uintptr_t device_address(std::uintptr_t address);

}  // namespace omniflow
