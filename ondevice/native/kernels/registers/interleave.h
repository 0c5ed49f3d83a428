// Small planes, several channels at a time: kLanes channels interleaved, so that a register holds the same pixel of
// each of them and every formula over pixels is written as if for one channel.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

// Where each lane's numbers lie: those of channels first, first + 1, ... of [channels, stride].  There may be fewer
// than kLanes before `end`; the last one then fills the lanes that are left, which compute what it computes and write
// it to the same place.
template <class Number>
struct LaneRows {
  Number* row[kLanes];
  LaneRows(Number* channels, int64_t stride, int64_t first, int64_t end) {
    for (int64_t lane = 0; lane < kLanes; lane++)
      row[lane] = channels + (first + lane < end ? first + lane : end - 1) * stride;
  }
  LaneRows plus(int64_t offset) const {
    LaneRows moved = *this;
    for (Number*& from : moved.row) from += offset;
    return moved;
  }
};

// A number of each channel.
inline Vector lanes_of(const LaneRows<const float>& rows, int64_t at) {
  Vector value;
  for (int lane = 0; lane < kLanes; lane++) value[lane] = rows.row[lane][at];
  return value;
}

// Four numbers of one channel, and beside them four of the channel four lanes on.  By intrinsics: compilers put such a
// register together in memory, and reading it then waits for the writes.
#if defined(__AVX2__)
inline Vector load_quads(const float* const* rows, int64_t at) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[0] + at)), _mm_loadu_ps(rows[4] + at), 1);
}
inline void store_quads(float* const* rows, int64_t at, Vector value) {
  _mm_storeu_ps(rows[0] + at, _mm256_castps256_ps128(value));
  _mm_storeu_ps(rows[4] + at, _mm256_extractf128_ps(value, 1));
}
#else
inline Vector load_quads(const float* const* rows, int64_t at) { return load(rows[0] + at); }
inline void store_quads(float* const* rows, int64_t at, Vector value) { store(rows[0] + at, value); }
#endif

// In every four lanes the first (or the last) two numbers of a and of b in turn: one instruction everywhere.
#if defined(__AVX2__)
constexpr Mask kLow = {0, 8, 1, 9, 4, 12, 5, 13}, kHigh = {2, 10, 3, 11, 6, 14, 7, 15};
#else
constexpr Mask kLow = {0, 4, 1, 5}, kHigh = {2, 6, 3, 7};
#endif
inline Vector zip_low(Vector a, Vector b) { return __builtin_shuffle(a, b, kLow); }
inline Vector zip_high(Vector a, Vector b) { return __builtin_shuffle(a, b, kHigh); }

// Turns round the 4 x 4 numbers in every four lanes of four registers.
inline void turn(Vector (&v)[4]) {
  const Vector even_low = zip_low(v[0], v[2]), odd_low = zip_low(v[1], v[3]);
  const Vector even_high = zip_high(v[0], v[2]), odd_high = zip_high(v[1], v[3]);
  v[0] = zip_low(even_low, odd_low);
  v[1] = zip_high(even_low, odd_low);
  v[2] = zip_low(even_high, odd_high);
  v[3] = zip_high(even_high, odd_high);
}

// to[i * kLanes + lane] = value(rows[lane][i])
template <class Body>
inline void interleave(const LaneRows<const float>& rows, int64_t count, float* to, Body value) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    Vector v[4];
    for (int lane = 0; lane < 4; lane++) v[lane] = load_quads(rows.row + lane, i);
    turn(v);
    for (int pixel = 0; pixel < 4; pixel++) store(to + (i + pixel) * kLanes, value(v[pixel]));
  }
  for (; i < count; i++) store(to + i * kLanes, value(lanes_of(rows, i)));
}

inline void interleave(const LaneRows<const float>& rows, int64_t count, float* to) {
  interleave(rows, count, to, [](Vector value) { return value; });
}

// The way back.
inline void separate(const float* from, int64_t count, const LaneRows<float>& rows) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    Vector v[4];
    for (int pixel = 0; pixel < 4; pixel++) v[pixel] = load(from + (i + pixel) * kLanes);
    turn(v);
    for (int lane = 0; lane < 4; lane++) store_quads(rows.row + lane, i, v[lane]);
  }
  for (; i < count; i++)
    for (int lane = 0; lane < kLanes; lane++) rows.row[lane][i] = from[i * kLanes + lane];
}

}  // namespace fedss::FEDSS_ISA
