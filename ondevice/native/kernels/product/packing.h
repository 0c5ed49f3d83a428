// Copies of parts of a matrix in the order in which tiles read them: strips of Width columns, depth by depth.
#pragma once

#include "kernels/kernels.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

// The part of a matrix from (row, column) on.
inline Matrix at(const Matrix& m, int64_t row, int64_t column) {
  return {m.data + row * m.row_stride + column * m.column_stride, m.row_stride, m.column_stride};
}

// A register's worth of columns, four numbers of each, become four rows.
inline void transpose_lanes(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Vector column[4];
  for (int i = 0; i < 4; i++) {
    const Quad numbers = load_as(from + i * from_stride, Quad{});
#if defined(__AVX2__)
    column[i] = __builtin_shufflevector(numbers, load_as(from + (i + 4) * from_stride, Quad{}), 0, 1, 2, 3, 4, 5, 6, 7);
#else
    column[i] = numbers;
#endif
  }
#if defined(__AVX2__)
  const Mask low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  const Mask first = {0, 1, 8, 9, 4, 5, 12, 13}, second = {2, 3, 10, 11, 6, 7, 14, 15};
#else
  const Mask low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
#endif
  const Vector low01 = __builtin_shuffle(column[0], column[1], low);
  const Vector low23 = __builtin_shuffle(column[2], column[3], low);
  const Vector high01 = __builtin_shuffle(column[0], column[1], high);
  const Vector high23 = __builtin_shuffle(column[2], column[3], high);
  store(to, __builtin_shuffle(low01, low23, first));
  store(to + to_stride, __builtin_shuffle(low01, low23, second));
  store(to + 2 * to_stride, __builtin_shuffle(high01, high23, first));
  store(to + 3 * to_stride, __builtin_shuffle(high01, high23, second));
}

// Rows of `b` (columns of `a`) that are packed at a time, at most.
constexpr int64_t kDepthBlock = 256;

// Loops over what is packed may be unrolled: it is filled up with zeros to a multiple of this depth.
constexpr int64_t kUnrolled = 4;
inline int64_t filled_up(int64_t depth) { return (depth + kUnrolled - 1) / kUnrolled * kUnrolled; }

// Asks for memory that will be read soon.  Not on ARM64, whose time we cannot measure: it would only be instructions.
inline void fetch_early([[maybe_unused]] const float* from) {
#if defined(__x86_64__)
  __builtin_prefetch(from);
#endif
}

// Width columns that lie along the depth, or fewer.
template <int Width>
void transpose_strip(const Matrix& m, int64_t depth, int64_t columns, float* to) {
  const int64_t stride = m.column_stride;
  int64_t k = 0;
  if (columns == Width)
    for (; k + 8 <= depth; k += 8)
#pragma GCC unroll 3
      for (int n = 0; n < Width; n += kLanes) {
        transpose_lanes(m.data + n * stride + k, stride, to + k * Width + n, Width);
        transpose_lanes(m.data + n * stride + k + 4, stride, to + (k + 4) * Width + n, Width);
      }
  for (; k + 4 <= depth; k += 4) {
    int64_t n = 0;
    for (; n + kLanes <= columns; n += kLanes)
      transpose_lanes(m.data + n * stride + k, stride, to + k * Width + n, Width);
    for (; n < columns; n++)
      for (int next = 0; next < 4; next++) to[(k + next) * Width + n] = m.data[n * stride + k + next];
  }
  for (; k < depth; k++)
    for (int64_t n = 0; n < columns; n++) to[k * Width + n] = m.data[n * stride + k];
}

// Zeros where the strips of `columns` columns have none, or go on beyond the depth.
template <int Width>
void clear_rest(int64_t depth, int64_t columns, float* to) {
  const int64_t strip = filled_up(depth) * Width, whole = columns / Width * Width;
  if (depth % kUnrolled)
    for (int64_t n = 0; n < columns; n += Width)
      std::memset(to + n / Width * strip + depth * Width, 0, (strip - depth * Width) * sizeof(float));
  if (whole < columns) std::memset(to + whole / Width * strip, 0, depth * Width * sizeof(float));
}

// Columns [0, columns) of m in strips of Width; what the last strip lacks is filled with zeros too.
template <int Width>
void pack(const Matrix& m, int64_t depth, int64_t columns, float* to) {
  const int64_t strip = filled_up(depth) * Width, whole = columns / Width * Width;
  clear_rest<Width>(depth, columns, to);
  if (m.column_stride == 1) {
    // Row by row, although the strips are then written by turns: memory that is read in long runs arrives sooner, and
    // sooner still if it was asked for four rows ahead.  Together 6 % of all products' time.
    for (int64_t k = 0; k < depth; k++) {
      const float* from = m.data + k * m.row_stride;
      float* row = to + k * Width;
      for (const float* const end = from + whole; from != end; from += Width, row += strip) {
        for (int ahead = 0; ahead < Width; ahead += 16) fetch_early(from + 4 * m.row_stride + ahead);
        std::memcpy(row, from, Width * sizeof(float));
      }
      for (int64_t n = whole; n < columns; n++) *row++ = *from++;
    }
    return;
  }
  for (int64_t n = 0; n < columns; n += Width, to += strip)
    transpose_strip<Width>(at(m, 0, n), depth, columns - n < Width ? columns - n : Width, to);
}

}  // namespace fedss::FEDSS_ISA
