// Copies of short runs at the speed of memory, for more bytes than the caches hold.
//
// A plain copy of short runs waits for memory at the start of every run, and reads each line of the target before it is
// overwritten. Here the next runs are fetched while one is copied, and whole lines go past the caches.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace omniflow {

constexpr int64_t kLine = 64;

inline void fetch(const char* source, int64_t bytes) {
#ifdef __SSE2__
  for (int64_t offset = 0; offset < bytes; offset += kLine) _mm_prefetch(source + offset, _MM_HINT_T0);
#else
  for (int64_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(source + offset);
#endif
}

// memcpy, but lines that lie wholly in the target are not kept in the caches. A short run that shares its first or last
// line with others is copied the plain way: a line written in both ways costs more than either.
inline void stream(char* target, const char* source, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kLong = 4096;
  const int64_t head = -reinterpret_cast<intptr_t>(target) & (kLine - 1);
  if (bytes < kLong && (head != 0 || bytes % kLine != 0)) {
    std::memcpy(target, source, static_cast<size_t>(bytes));
    return;
  }
  std::memcpy(target, source, static_cast<size_t>(head));
  int64_t offset = head;
  for (; offset + kLine <= bytes; offset += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + offset);
    auto* to = reinterpret_cast<__m128i*>(target + offset);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(target + offset, source + offset, static_cast<size_t>(bytes - offset));
#else
  std::memcpy(target, source, static_cast<size_t>(bytes));
#endif
}

// What was streamed is visible to other threads once this has returned.
inline void finish_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace omniflow
