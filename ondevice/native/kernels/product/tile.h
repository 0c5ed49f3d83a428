// The inner kernel of the matrix product: a tile of the output that stays in registers while it walks along the depth.
//
// Every step reads a column of `a` and a row of a packed panel of `b`, and adds their outer product.
#pragma once

#include "kernels/kernels.h"
#include "kernels/product/packing.h"
#include "kernels/registers/vector.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels/product/tile_neon.h"
#endif

namespace fedss::FEDSS_ISA {

// A panel of `b` is as wide as a tile; where it is narrower, the tile has more rows to keep the registers busy.
// Numbers of channels are multiples of 8.
#if defined(__aarch64__)
constexpr int kTileVectors = 3;
template <int Vectors>
constexpr int kTileRows = 8;  // of 32 registers 24 hold the tile, 3 a row of b, 2 a column of a
// Four elements of `a` are one register, and NEON multiplies by a lane of it: they have to lie side by side.
constexpr bool kPacksRows = true;
#else
constexpr int kTileVectors = kLanes == 8 ? 3 : 2;
template <int Vectors>
constexpr int kTileRows = Vectors == 3   ? 4
                          : Vectors == 2 ? (kLanes == 8 ? 6 : 4)
                                         : 8;  // at most 12 of 16 registers
// An element of `a` is spread over a register, wherever it lies.
constexpr bool kPacksRows = false;
#endif
constexpr int kPanel = kTileVectors * kLanes;
constexpr int kStrip = kTileRows<kTileVectors>;  // of `a`, if it is packed

// Where a tile goes, and what it is added to.
struct Tile {
  float* out;
  int64_t out_stride;
  Matrix start;  // null data: 0
  int64_t rows, columns;
};

template <int Rows, int Vectors>
using Totals = Vector[Rows][Vectors];

// All loops over a tile are unrolled: an index that the compiler does not know keeps the tile out of the registers.
template <int Rows, int Vectors>
inline __attribute__((always_inline)) void add_outer_product(
    Totals<Rows, Vectors>& total, const float* a, int64_t a_stride, const float* b) {
  Vector b_row[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; v++) b_row[v] = load(b + v * kLanes);
#if defined(__aarch64__)
  if constexpr (Rows % 4 == 0) {  // packed
#pragma GCC unroll 2
    for (int i = 0; i < Rows; i += 4) {
      const float32x4_t factors = vld1q_f32(a + i);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) {
        total[i][v] = vfmaq_laneq_f32(total[i][v], b_row[v], factors, 0);
        total[i + 1][v] = vfmaq_laneq_f32(total[i + 1][v], b_row[v], factors, 1);
        total[i + 2][v] = vfmaq_laneq_f32(total[i + 2][v], b_row[v], factors, 2);
        total[i + 3][v] = vfmaq_laneq_f32(total[i + 3][v], b_row[v], factors, 3);
      }
    }
    return;
  }
#endif
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) total[i][v] += b_row[v] * a[i * a_stride];
}

template <int Rows, int Vectors>
inline __attribute__((always_inline)) void finish(const Tile& tile, const Totals<Rows, Vectors>& total) {
  const Matrix start = tile.start;
  float* out = tile.out;
  const bool whole = tile.rows == Rows && tile.columns == Vectors * kLanes;
  if (whole && !start.data) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++, out += tile.out_stride)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) store(out + v * kLanes, total[i][v]);
    return;
  }
  if (whole && start.column_stride == 1) {
    const float* from = start.data;
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++, out += tile.out_stride, from += start.row_stride)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) store(out + v * kLanes, total[i][v] + load(from + v * kLanes));
    return;
  }
  float row[Rows][Vectors * kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) store(row[i] + v * kLanes, total[i][v]);
  for (int64_t i = 0; i < tile.rows; i++, out += tile.out_stride) {
    const float* from = start.data + i * start.row_stride;
    if (!start.data) {
      for_each_lane(tile.columns, [&](int64_t n, auto kind) { store_as(out + n, load_as(row[i] + n, kind)); });
    } else if (start.column_stride == 1) {
      for_each_lane(tile.columns, [&](int64_t n, auto kind) {
        store_as(out + n, load_as(row[i] + n, kind) + load_as(from + n, kind));
      });
    } else {
      for (int64_t n = 0; n < tile.columns; n++) out[n] = row[i][n] + from[n * start.column_stride];
    }
  }
}

// The rows of the tile times the panel, of which one row follows b_stride after the other.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply_tile(
    const Matrix& a, const float* b, int64_t b_stride, int64_t depth, const Tile& tile) {
  Totals<Rows, Vectors> total = {};
  const float* column = a.data;
  int64_t k = 0;
  if (kPacksRows && b_stride == kPanel)
    for (; k + kUnrolled <= depth; k += kUnrolled, column += kUnrolled * kStrip, b += kUnrolled * kPanel)
#pragma GCC unroll 4
      for (int step = 0; step < kUnrolled; step++)
        add_outer_product<Rows, Vectors>(total, column + step * kStrip, 1, b + step * kPanel);
#pragma GCC unroll 1
  for (; k < depth; k++, column += a.column_stride, b += b_stride)
    add_outer_product<Rows, Vectors>(total, column, a.row_stride, b);
  finish<Rows, Vectors>(tile, total);
}

// The same for at most Rows rows: a tile that has just as many, or one of four or eight of packed rows.
template <int Rows, int Vectors>
void multiply_rows(const Matrix& a, const float* b, int64_t b_stride, int64_t depth, const Tile& tile) {
  constexpr int kFewer = kPacksRows ? (Rows > 4 ? 4 : 1) : Rows - 1;
  if constexpr (kFewer > 0 && Rows > 1)
    if (tile.rows <= kFewer) return multiply_rows<kFewer, Vectors>(a, b, b_stride, depth, tile);
  multiply_tile<Rows, Vectors>(a, b, b_stride, depth, tile);
}

}  // namespace fedss::FEDSS_ISA
