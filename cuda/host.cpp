// The CPU path: every contiguous piece goes straight to its place; pieces that turn out to be neighbours go as one.
#include <algorithm>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>

#include "conversion.h"

namespace omniflow {
namespace {

// Copies pieces in the order given, held back for as long as the next one continues both sides.
class Copier {
 public:
  ~Copier() { flush(); }

  void add(char* target, const char* source, int64_t bytes) {
    if (target == target_ + bytes_ && source == source_ + bytes_) {
      bytes_ += bytes;
      return;
    }
    flush();
    target_ = target;
    source_ = source;
    bytes_ = bytes;
  }

 private:
  void flush() {
    if (bytes_ > 0) std::memcpy(target_, source_, static_cast<std::size_t>(bytes_));
  }

  char* target_ = nullptr;
  const char* source_ = nullptr;
  int64_t bytes_ = 0;
};

void convert_row(const Conversion& conversion, Direction direction, const PagePart& part, int32_t index, Copier& copier) {
  const Geometry& geometry = conversion.geometry;
  const Row row = row_at(geometry, conversion.joins, index);
  char* const stack = conversion.stacks[row.stack];
  const int32_t count = groups(geometry, conversion.joins, part.tokens);
  for (int32_t group = 0; group < count; ++group) {
    const Run run = run_at(geometry, conversion.joins, row, part.tokens, part.blocks, group);
    char* const in_stack = stack + run.stack_bytes;
    char* const in_page = part.page + run.page_bytes;
    if (direction == Direction::kStore) {
      copier.add(in_page, in_stack, run.bytes);
    } else {
      copier.add(in_stack, in_page, run.bytes);
    }
  }
}

// Rows [first, stop) of all parts, counted through.
void convert_rows(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, int64_t first,
                  int64_t stop) {
  const int64_t per_part = rows(conversion.geometry, conversion.joins);
  Copier copier;
  for (int64_t row = first; row < stop; ++row) {
    convert_row(conversion, direction, parts[row / per_part], static_cast<int32_t>(row % per_part), copier);
  }
}

}  // namespace

void convert_on_host(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, int threads) {
  const int64_t total = static_cast<int64_t>(parts.size()) * rows(conversion.geometry, conversion.joins);
  const int64_t workers = std::clamp<int64_t>(threads, 1, std::max<int64_t>(total, 1));
  const auto share = [&](int64_t worker) { return total * worker / workers; };
  std::vector<std::thread> others;
  others.reserve(workers);
  int64_t taken = 1;
  try {
    for (; taken < workers; ++taken) {
      others.emplace_back(convert_rows, std::cref(conversion), direction, std::cref(parts), share(taken),
                          share(taken + 1));
    }
  } catch (const std::system_error&) {
    // The system has no further thread: this one does the rest.
  }
  convert_rows(conversion, direction, parts, 0, share(1));
  convert_rows(conversion, direction, parts, share(taken), total);
  for (std::thread& other : others) other.join();
}

}  // namespace omniflow
