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

// Four pixels of each channel, a register per pixel.
struct Pixels {
  Vector pixel[4];
};

inline __attribute__((always_inline)) Pixels pixels_of(const LaneRows<const float>& rows, int64_t at) {
  Pixels four;
  for (int lane = 0; lane < 4; lane++) four.pixel[lane] = load_quads(rows.row + lane, at);
  turn(four.pixel);
  return four;
}

// Calls body(i, pixel i of the channels of `rows`...).
template <class Body, class... Rows>
inline __attribute__((always_inline)) void for_each_pixel(int64_t count, Body body, const Rows&... rows) {
  int64_t i = 0;
  const auto four = [&](const auto&... given) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int next = 0; next < 4; next++) body(i + next, given.pixel[next]...);
  };
  for (; i + 4 <= count; i += 4) four(pixels_of(rows, i)...);
  for (; i < count; i++) body(i, lanes_of(rows, i)...);
}

// to[i * kLanes + lane] = value(rows[lane][i])
template <class Body>
inline void interleave(const LaneRows<const float>& rows, int64_t count, float* to, Body value) {
  for_each_pixel(count, [&](int64_t i, Vector pixel) { store(to + i * kLanes, value(pixel)); }, rows);
}

inline void interleave(const LaneRows<const float>& rows, int64_t count, float* to) {
  interleave(rows, count, to, [](Vector pixel) { return pixel; });
}

// The way back: rows[lane][i] = pixel(i)[lane]
template <class Body>
inline __attribute__((always_inline)) void separate(int64_t count, const LaneRows<float>& rows, Body pixel) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    Vector v[4];
    for (int next = 0; next < 4; next++) v[next] = pixel(i + next);
    turn(v);
    for (int lane = 0; lane < 4; lane++) store_quads(rows.row + lane, i, v[lane]);
  }
  for (; i < count; i++) {
    const Vector last = pixel(i);
    for (int lane = 0; lane < kLanes; lane++) rows.row[lane][i] = last[lane];
  }
}

inline void separate(const float* from, int64_t count, const LaneRows<float>& rows) {
  separate(count, rows, [&](int64_t i) { return load(from + i * kLanes); });
}

// A number per channel, of channels first, first + 1, ...; there may be fewer than kLanes before `end` (see above).
inline Vector load_lanes(const float* numbers, int64_t first, int64_t end) {
  if (first + kLanes <= end) return load(numbers + first);
  return lanes_of(LaneRows<const float>(numbers, 1, first, end), 0);
}
inline void store_lanes(float* numbers, int64_t first, int64_t end, Vector value) {
  if (first + kLanes <= end) return store(numbers + first, value);
  for (int64_t lane = 0; first + lane < end; lane++) numbers[first + lane] = value[lane];
}

}  // namespace fedss::FEDSS_ISA
