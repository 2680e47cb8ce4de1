// The CPU path: every contiguous piece goes straight to its place; pieces that turn out to be neighbours go as one.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>

#include "conversion.h"
#include "stream_copy.h"

namespace omniflow {
namespace {

// A call that writes at least this much goes past the caches: whoever reads it will find it in memory anyway.
constexpr int64_t kStreamedBytes = 512 * 1024;

// Copies runs in the order given, each a few runs later: so that what continues the last one joins it, and that the
// sources of those that wait are fetched meanwhile.
class Copier {
 public:
  explicit Copier(bool streamed) : streamed_(streamed) {}
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  ~Copier() {
    for (uint32_t index = 0; index < kWaiting; ++index) copy(waiting_[(next_ + index) % kWaiting]);
    if (streamed_) finish_streams();
  }

  void add(char* target, const char* source, int64_t bytes) {
    Waiting& last = waiting_[(next_ + kWaiting - 1) % kWaiting];
    if (target == last.target + last.bytes && source == last.source + last.bytes) {
      last.bytes += bytes;
      return;
    }
    fetch(source, std::min(bytes, kFetched));
    copy(waiting_[next_]);
    waiting_[next_] = {target, source, bytes};
    next_ = (next_ + 1) % kWaiting;
  }

 private:
  static constexpr uint32_t kWaiting = 8;
  // The processor's own prefetching takes over in a longer run.
  static constexpr int64_t kFetched = 1024;

  struct Waiting {
    char* target = nullptr;
    const char* source = nullptr;
    int64_t bytes = 0;
  };

  void copy(const Waiting& run) const {
    if (run.bytes == 0) return;
    if (streamed_) {
      stream(run.target, run.source, run.bytes);
    } else {
      std::memcpy(run.target, run.source, static_cast<size_t>(run.bytes));
    }
  }

  const bool streamed_;
  std::array<Waiting, kWaiting> waiting_;
  uint32_t next_ = 0;
};

// One stack's tokens of a page. Segments are the inner loop: both sides are read and written in a few ascending streams.
void convert_stack(const Conversion& conversion, Direction direction, const PagePart& part, int32_t stack,
                   std::vector<Row>& segment_rows, Copier& copier) {
  const Geometry& geometry = conversion.geometry;
  const auto per_stack = static_cast<int32_t>(segment_rows.size());
  for (int32_t segment = 0; segment < per_stack; ++segment) {
    segment_rows[segment] = row_at(geometry, conversion.joins, stack * per_stack + segment);
  }
  char* const stack_start = conversion.stacks[stack];
  const int32_t count = groups(geometry, conversion.joins, part.tokens);
  for (int32_t group = 0; group < count; ++group) {
    for (const Row& row : segment_rows) {
      const Run run = run_at(geometry, conversion.joins, row, part.tokens, part.blocks, group);
      char* const in_stack = stack_start + run.stack_bytes;
      char* const in_page = part.page + run.page_bytes;
      if (direction == Direction::kStore) {
        copier.add(in_page, in_stack, run.bytes);
      } else {
        copier.add(in_stack, in_page, run.bytes);
      }
    }
  }
}

// Stacks [first, stop) of all parts, counted through.
void convert_stacks(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, bool streamed,
                    int64_t first, int64_t stop) {
  const auto per_part = static_cast<int64_t>(conversion.stacks.size());
  std::vector<Row> segment_rows(segments(conversion.geometry, conversion.joins));
  Copier copier(streamed);
  for (int64_t index = first; index < stop; ++index) {
    convert_stack(conversion, direction, parts[index / per_part], static_cast<int32_t>(index % per_part), segment_rows,
                  copier);
  }
}

int64_t bytes_of(const Conversion& conversion, const std::vector<PagePart>& parts) {
  int64_t tokens = 0;
  for (const PagePart& part : parts) tokens += part.tokens.stop - part.tokens.first;
  return tokens * conversion.geometry.heads * conversion.geometry.head_bytes *
         static_cast<int64_t>(conversion.stacks.size());
}

}  // namespace

void convert_on_host(const Conversion& conversion, Direction direction, const std::vector<PagePart>& parts, int threads) {
  const auto total = static_cast<int64_t>(parts.size() * conversion.stacks.size());
  const int64_t workers = std::clamp<int64_t>(threads, 1, std::max<int64_t>(total, 1));
  const bool streamed = bytes_of(conversion, parts) >= kStreamedBytes;
  const auto convert = [&](int64_t first_share, int64_t last_share) {
    convert_stacks(conversion, direction, parts, streamed, total * first_share / workers, total * last_share / workers);
  };
  std::vector<std::thread> others;
  others.reserve(workers);
  int64_t taken = 1;
  try {
    for (; taken < workers; ++taken) others.emplace_back(convert, taken, taken + 1);
  } catch (const std::system_error&) {
    // The system has no further thread: this one does the rest.
  }
  convert(0, 1);
  convert(taken, workers);
  for (std::thread& other : others) other.join();
}

}  // namespace omniflow
