// What the loops over rows share.  Every operation rounds as numpy's does, in its order, and none is fused with another
// (`library.py` has the flags): both give the same bytes.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__gnu_linux__)
// Once per instruction set, chosen when the library is loaded.
#define FEDSS_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FEDSS_CLONES
#endif
// Into the clones, so that it is compiled for their instructions.
#define FEDSS_INLINE inline __attribute__((always_inline))

namespace fedss {

constexpr int64_t kLine = 64;

// How many rows ahead of the one that is worked on.
constexpr int64_t kAhead = 32;

// Brings a row into the second cache before its turn comes; the first has room for fewer trips to memory at a time.
template <bool for_writing>
FEDSS_INLINE void fetch(const void* address, int64_t bytes) {
  const char* line = static_cast<const char*>(address);
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(line + at, for_writing ? 1 : 0, 2);
  // The line that a row ends in, where it does not begin with one.
  if (bytes > kLine) __builtin_prefetch(line + bytes - 1, for_writing ? 1 : 0, 2);
}

// The place of the first id that is no row, or -1.
FEDSS_INLINE int64_t first_outside(const int64_t* ids, int64_t count, int64_t num_rows) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= num_rows) return i;
  }
  return -1;
}

}  // namespace fedss
