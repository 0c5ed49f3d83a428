// Matrix product, for 1x1 convolutions, linear layers and all their gradients.
//
// One register-blocked inner kernel: a tile of kTileRows x kPanel outputs stays in registers while it walks along the
// depth, reading one element of `a` per row (broadcast) and one row of a panel of `b`.  A panel, kDepthBlock x kPanel,
// is copied so that it lies packed in the first-level cache; the copy transposes when `b` lies the other way round. `a`
// is read where it lies, whichever way round: its elements are broadcast one by one anyway.
#include "kernels/kernels.h"
#include "kernels/vector.h"

namespace fedss::FEDSS_ISA {
namespace {

constexpr int kTileRows = 6;
#if defined(__aarch64__)
constexpr int kPanelVectors = 4;  // 24 of 32 registers hold the tile
#else
constexpr int kPanelVectors = 2;  // 12 of 16
#endif
constexpr int kPanel = kPanelVectors * kLanes;
constexpr int64_t kDepthBlock = 256;

inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The part of a matrix from (row, column) on.
inline Matrix at(const Matrix& m, int64_t row, int64_t column) {
  return {m.data + row * m.row_stride + column * m.column_stride, m.row_stride, m.column_stride};
}

struct Panel {
  const float* data;
  int64_t stride;  // from one depth to the next
};

inline void transpose_quad(const float* from, int64_t from_stride, float* to) {
  Quad row[4];
  for (int i = 0; i < 4; i++) std::memcpy(&row[i], from + i * from_stride, sizeof(Quad));
  typedef int32_t Order __attribute__((vector_size(16)));
  const Quad low01 = __builtin_shuffle(row[0], row[1], Order{0, 4, 1, 5});
  const Quad low23 = __builtin_shuffle(row[2], row[3], Order{0, 4, 1, 5});
  const Quad high01 = __builtin_shuffle(row[0], row[1], Order{2, 6, 3, 7});
  const Quad high23 = __builtin_shuffle(row[2], row[3], Order{2, 6, 3, 7});
  const Quad out[4] = {
      __builtin_shuffle(low01, low23, Order{0, 1, 4, 5}), __builtin_shuffle(low01, low23, Order{2, 3, 6, 7}),
      __builtin_shuffle(high01, high23, Order{0, 1, 4, 5}), __builtin_shuffle(high01, high23, Order{2, 3, 6, 7})};
  for (int i = 0; i < 4; i++) std::memcpy(to + i * kPanel, &out[i], sizeof(Quad));
}

// Columns [0, columns) of b, depth by depth; what a partial panel lacks is filled with zeros.
void pack(const Matrix& b, int64_t depth, int64_t columns, float* to) {
  if (columns < kPanel) std::memset(to, 0, depth * kPanel * sizeof(float));
  if (b.column_stride == 1) {
    for (int64_t k = 0; k < depth; k++) {
      const float* from = b.data + k * b.row_stride;
      if (columns == kPanel) {
        for (int v = 0; v < kPanelVectors; v++) store(to + k * kPanel + v * kLanes, load(from + v * kLanes));
      } else {
        for (int64_t n = 0; n < columns; n++) to[k * kPanel + n] = from[n];
      }
    }
    return;
  }
  const int64_t whole_depth = depth / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t n = 0; n < whole_columns; n += 4)
    for (int64_t k = 0; k < whole_depth; k += 4)
      transpose_quad(b.data + n * b.column_stride + k * b.row_stride, b.column_stride, to + k * kPanel + n);
  for (int64_t n = 0; n < columns; n++)
    for (int64_t k = n < whole_columns ? whole_depth : 0; k < depth; k++)
      to[k * kPanel + n] = b.data[n * b.column_stride + k * b.row_stride];
}

// Where a tile goes, and what it is added to.
struct Tile {
  float* out;
  int64_t row_stride, column_stride;
  Matrix start;  // null data: 0
  int64_t columns;
};

template <int Rows, int Vectors>
inline void finish(const Tile& tile, Vector (&total)[Rows][Vectors]) {
  if (tile.columns == Vectors * kLanes && tile.column_stride == 1 &&
      (!tile.start.data || tile.start.column_stride == 1)) {
    for (int i = 0; i < Rows; i++)
      for (int v = 0; v < Vectors; v++) {
        Vector value = total[i][v];
        if (tile.start.data) value += load(tile.start.data + i * tile.start.row_stride + v * kLanes);
        store(tile.out + i * tile.row_stride + v * kLanes, value);
      }
    return;
  }
  float row[Vectors * kLanes];  // through memory: indexing the registers would keep the compiler from having them
  for (int i = 0; i < Rows; i++) {
    for (int v = 0; v < Vectors; v++) store(row + v * kLanes, total[i][v]);
    for (int64_t n = 0; n < tile.columns; n++) {
      float value = row[n];
      if (tile.start.data) value += tile.start.data[i * tile.start.row_stride + n * tile.start.column_stride];
      tile.out[i * tile.row_stride + n * tile.column_stride] = value;
    }
  }
}

template <int Rows, int Vectors>
void multiply_tile(const Matrix& a, const Panel& b, int64_t depth, const Tile& tile) {
  Vector total[Rows][Vectors] = {};
  const float* a_at = a.data;
  const float* b_at = b.data;
  for (int64_t k = 0; k < depth; k++) {
    Vector b_row[Vectors];
    for (int v = 0; v < Vectors; v++) b_row[v] = load(b_at + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) {
      const float factor = a_at[i * a.row_stride];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; v++) total[i][v] += b_row[v] * factor;
    }
    a_at += a.column_stride;
    b_at += b.stride;
  }
  finish<Rows, Vectors>(tile, total);
}

template <int Vectors>
void multiply_rows(int64_t rows, const Matrix& a, const Panel& b, int64_t depth, const Tile& tile) {
  switch (rows) {
    case 1: return multiply_tile<1, Vectors>(a, b, depth, tile);
    case 2: return multiply_tile<2, Vectors>(a, b, depth, tile);
    case 3: return multiply_tile<3, Vectors>(a, b, depth, tile);
    case 4: return multiply_tile<4, Vectors>(a, b, depth, tile);
    case 5: return multiply_tile<5, Vectors>(a, b, depth, tile);
    default: return multiply_tile<6, Vectors>(a, b, depth, tile);
  }
}

// Packing by transposing is the expensive kind: where both operands would need it, the smaller one is packed, which
// means to compute the transposed product.
Product oriented(const Product& given) {
  const bool both_along_depth = given.a.column_stride == 1 && given.b.row_stride == 1 && given.b.column_stride != 1;
  if (!both_along_depth || given.columns <= given.rows) return given;
  Product swapped = given;
  swapped.rows = given.columns;
  swapped.columns = given.rows;
  swapped.a = given.b.transposed();
  swapped.b = given.a.transposed();
  swapped.start = given.start.transposed();
  swapped.out_row_stride = given.out_column_stride;
  swapped.out_column_stride = given.out_row_stride;
  return swapped;
}

}  // namespace

int64_t product_panels(const Product& given) { return (oriented(given).columns + kPanel - 1) / kPanel; }

void product(const Product& given, int64_t begin, int64_t end) {
  const Product p = oriented(given);
  alignas(64) float packed[kDepthBlock * kPanel];
  for (int64_t first = 0; first < p.depth || first == 0; first += kDepthBlock) {
    const int64_t depth = smaller_of(p.depth - first, kDepthBlock);
    // As many panels at a time as fit: where the depth is small a row of the output is then written in long runs.
    const int64_t together = depth ? kDepthBlock / depth : 1;
    const bool in_place = p.rows <= kTileRows && p.b.column_stride == 1;  // read once: a copy would only cost
    for (int64_t group = begin; group < end; group += together) {
      const int64_t group_end = smaller_of(group + together, end);
      for (int64_t panel = group; panel < group_end; panel++)
        if (!in_place || (panel + 1) * kPanel > p.columns)
          pack(
              at(p.b, first, panel * kPanel), depth, smaller_of(p.columns - panel * kPanel, kPanel),
              packed + (panel - group) * depth * kPanel);
      for (int64_t row = 0; row < p.rows; row += kTileRows) {
        const int64_t rows = smaller_of(p.rows - row, kTileRows);
        const Matrix a = at(p.a, row, first);
        for (int64_t panel = group; panel < group_end; panel++) {
          const int64_t column = panel * kPanel, columns = smaller_of(p.columns - column, kPanel);
          Tile tile{
              p.out + row * p.out_row_stride + column * p.out_column_stride,
              p.out_row_stride,
              p.out_column_stride,
              {},
              columns};
          if (first) {
            tile.start = {tile.out, p.out_row_stride, p.out_column_stride};
          } else if (p.start.data) {
            tile.start = at(p.start, row, column);
          }
          const Panel source = in_place && columns == kPanel ? Panel{at(p.b, first, column).data, p.b.row_stride}
                                                             : Panel{packed + (panel - group) * depth * kPanel, kPanel};
          if (columns <= kLanes) {
            multiply_rows<1>(rows, a, source, depth, tile);
          } else {
            multiply_rows<kPanelVectors>(rows, a, source, depth, tile);
          }
        }
      }
    }
  }
}

}  // namespace fedss::FEDSS_ISA
