// The kernel's work, for one thread, and how a conversion is cut into launches: compiled for the device and the host.
//
// A team of `lanes` neighbouring threads copies one piece (a run, or 2 KiB of a longer one) in vectors: their accesses
// are coalesced, and four loads of every thread are in flight before its first store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "conversion.h"

namespace omniflow {

constexpr int32_t kMaxStacks = 256;
constexpr int32_t kMaxParts = 256;
constexpr int32_t kMaxBlocks = 2048;
constexpr int32_t kMaxLanes = 32;
constexpr int32_t kLoadsInFlight = 4;
constexpr int32_t kPieceBytes = 2048;

struct KernelPart {
  char* page;
  Tokens tokens;
  int32_t table;  // where its block table starts in `blocks`
};

// One launch, passed by value: no allocation, no copy to wait for, and nothing that has to outlive the call.
struct Launch {
  Geometry geometry;
  Joins joins;
  Direction direction;
  int32_t lanes;         // a power of two
  int32_t run_pieces;    // pieces of the largest run
  int32_t part_pieces;   // pieces of the largest part
  int32_t parts_used;
  int32_t blocks_used;
  char* stacks[kMaxStacks];
  KernelPart parts[kMaxParts];
  int32_t blocks[kMaxBlocks];
};
static_assert(sizeof(Launch) <= 32764, "kernel parameters are limited to 32,764 bytes");

template <int Bytes>
struct alignas(Bytes) Vector {
  unsigned char bytes[Bytes];
};
#ifdef __CUDACC__
template <>
struct alignas(16) Vector<16> {
  uint4 bytes;
};
template <>
struct alignas(8) Vector<8> {
  uint2 bytes;
};
template <>
struct alignas(4) Vector<4> {
  uint32_t bytes;
};
template <>
struct alignas(2) Vector<2> {
  uint16_t bytes;
};
#endif

template <int Bytes>
OMNIFLOW_BOTH void copy_piece(char* target, const char* source, int64_t bytes, int32_t lane, int32_t lanes) {
  using Unit = Vector<Bytes>;
  const int32_t count = static_cast<int32_t>(bytes / Bytes);
  const auto* from = reinterpret_cast<const Unit*>(source);
  auto* to = reinterpret_cast<Unit*>(target);
  for (int32_t start = lane; start < count; start += lanes * kLoadsInFlight) {
    Unit held[kLoadsInFlight];
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int32_t load = 0; load < kLoadsInFlight; ++load) {
      if (start + load * lanes < count) held[load] = from[start + load * lanes];
    }
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int32_t load = 0; load < kLoadsInFlight; ++load) {
      if (start + load * lanes < count) to[start + load * lanes] = held[load];
    }
  }
}

// Thread `thread` of `threads` that share one part.
template <int Bytes>
OMNIFLOW_BOTH void convert_thread(const Launch& launch, int32_t part_index, int32_t thread, int32_t threads) {
  const KernelPart& part = launch.parts[part_index];
  const int32_t lane = thread % launch.lanes, team = thread / launch.lanes, teams = threads / launch.lanes;
  const int32_t per_row = groups(launch.geometry, launch.joins, part.tokens);
  const int32_t pieces = rows(launch.geometry, launch.joins) * per_row * launch.run_pieces;
  for (int32_t index = team; index < pieces; index += teams) {
    const int32_t run_index = index / launch.run_pieces, piece = index % launch.run_pieces;
    const Row row = row_at(launch.geometry, launch.joins, run_index / per_row);
    const Run run =
        run_at(launch.geometry, launch.joins, row, part.tokens, launch.blocks + part.table, run_index % per_row);
    const int64_t start = static_cast<int64_t>(piece) * kPieceBytes;
    const int64_t bytes = run.bytes - start < kPieceBytes ? run.bytes - start : kPieceBytes;
    char* const in_stack = launch.stacks[row.stack] + run.stack_bytes + start;
    char* const in_page = part.page + run.page_bytes + start;
    if (launch.direction == Direction::kStore) {
      copy_piece<Bytes>(in_page, in_stack, bytes, lane, launch.lanes);
    } else {
      copy_piece<Bytes>(in_stack, in_page, bytes, lane, launch.lanes);
    }
  }
}

// The widest vector, in bytes, that all addresses and sizes of these parts allow.
inline int vector_bytes(const Conversion& conversion, const std::vector<PagePart>& parts) {
  const Geometry& g = conversion.geometry;
  uint64_t all = 16;
  for (int64_t bytes : {g.head_bytes, g.stack_block, g.stack_token, g.stack_head, g.page_layer, g.page_kind,
                        g.page_partition, g.page_token, g.page_head}) {
    all |= static_cast<uint64_t>(bytes);
  }
  for (const char* stack : conversion.stacks) all |= reinterpret_cast<std::uintptr_t>(stack);
  for (const PagePart& part : parts) all |= reinterpret_cast<std::uintptr_t>(part.page);
  return static_cast<int>(all & (~all + 1));
}

// Cuts a conversion into launches of at most kMaxStacks stacks, kMaxParts parts and kMaxBlocks blocks.
template <typename Start>
void for_each_launch(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts,
                     const Start& start) {
  const Geometry& whole = conversion.geometry;
  const int vector = vector_bytes(conversion, parts);
  const int64_t run = largest_run(whole, conversion.joins);
  Launch launch;
  launch.geometry = whole;
  launch.joins = conversion.joins;
  launch.direction = direction;
  launch.run_pieces = static_cast<int32_t>((run + kPieceBytes - 1) / kPieceBytes);
  launch.lanes = 1;
  while (launch.lanes < kMaxLanes && launch.lanes * vector < run) launch.lanes *= 2;
  const int32_t layers_at_once = kMaxStacks / whole.kinds;
  for (int32_t layer = 0; layer < whole.layers; layer += layers_at_once) {
    launch.geometry.layers = std::min(layers_at_once, whole.layers - layer);
    const auto first = conversion.stacks.begin() + layer * whole.kinds;
    std::copy(first, first + launch.geometry.layers * whole.kinds, launch.stacks);
    const int64_t row_pieces = static_cast<int64_t>(rows(launch.geometry, launch.joins)) * launch.run_pieces;
    launch.parts_used = launch.blocks_used = launch.part_pieces = 0;
    const auto flush = [&] {
      if (launch.parts_used > 0) start(launch, vector);
      launch.parts_used = launch.blocks_used = launch.part_pieces = 0;
    };
    for (const PagePart& part : parts) {
      const int32_t* blocks = part.blocks;
      for (Tokens left = part.tokens; left.first < left.stop;) {
        if (launch.parts_used == kMaxParts || launch.blocks_used == kMaxBlocks) flush();
        const int32_t count = std::min(blocks_of(whole, left), kMaxBlocks - launch.blocks_used);
        const int32_t end = std::min(left.stop, (left.first / whole.block_tokens + count) * whole.block_tokens);
        const Tokens taken{left.first, end};
        const int64_t pieces = row_pieces * groups(whole, launch.joins, taken);
        if (pieces > INT32_MAX) throw std::invalid_argument("a page of more than 2^31 pieces cannot be converted");
        launch.part_pieces = std::max(launch.part_pieces, static_cast<int32_t>(pieces));
        launch.parts[launch.parts_used++] = {part.page + layer * whole.page_layer, taken, launch.blocks_used};
        std::copy(blocks, blocks + count, launch.blocks + launch.blocks_used);
        launch.blocks_used += count;
        blocks += count;
        left.first = end;
      }
    }
    flush();
  }
}

// Calls `work` with the vector width, in bytes, as a constant.
template <typename Work>
void with_vector(int bytes, const Work& work) {
  switch (bytes) {
    case 16: return work(std::integral_constant<int, 16>{});
    case 8: return work(std::integral_constant<int, 8>{});
    case 4: return work(std::integral_constant<int, 4>{});
    case 2: return work(std::integral_constant<int, 2>{});
    default: return work(std::integral_constant<int, 1>{});
  }
}

}  // namespace omniflow
