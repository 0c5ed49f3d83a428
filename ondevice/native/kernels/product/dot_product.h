// The matrix product where both operands lie along the depth: every element of the output is a dot product of two rows.
//
// Nothing is packed, so this is for products with very few rows: fully connected layers of a small batch.
#pragma once

#include "kernels/product/packing.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

constexpr int kDotRows = 4;
#if defined(__AVX2__)
constexpr int kDotColumns = 2;  // of 16 registers 8 hold sums, 4 a piece of the rows, 2 a piece of the columns
#else
constexpr int kDotColumns = 4;
#endif

inline float sum(Vector lanes) {
  Quad quads[kLanes / 4], quad = {};
  std::memcpy(quads, &lanes, sizeof lanes);
  for (const Quad& part : quads) quad += part;
  return (quad[0] + quad[1]) + (quad[2] + quad[3]);
}

// out [Rows, Columns] = start + a b^T, where a row of a and one of b are contiguous.
template <int Rows, int Columns>
__attribute__((noinline)) void dot_tile(
    const Matrix& a, const Matrix& b, int64_t depth, const Matrix& start, float* out, int64_t out_stride) {
  Vector total[Rows][Columns] = {};
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vector rows[Rows];
#pragma GCC unroll 4
    for (int i = 0; i < Rows; i++) rows[i] = load(a.data + i * a.row_stride + k);
#pragma GCC unroll 4
    for (int n = 0; n < Columns; n++) {
      // The next tile's: `b` is as large as a layer's weights, and read once.
      fetch_early(b.data + (n + Columns) * b.row_stride + k);
      const Vector column = load(b.data + n * b.row_stride + k);
#pragma GCC unroll 4
      for (int i = 0; i < Rows; i++) total[i][n] += rows[i] * column;
    }
  }
  float sums[Rows][Columns];
#pragma GCC unroll 4
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 4
    for (int n = 0; n < Columns; n++) sums[i][n] = sum(total[i][n]);
  for (int i = 0; i < Rows; i++)
    for (int n = 0; n < Columns; n++) {
      float value = sums[i][n];
      for (int64_t rest = k; rest < depth; rest++)
        value += a.data[i * a.row_stride + rest] * b.data[n * b.row_stride + rest];
      if (start.data) value += start.data[i * start.row_stride + n * start.column_stride];
      out[i * out_stride + n] = value;
    }
}

}  // namespace fedss::FEDSS_ISA
