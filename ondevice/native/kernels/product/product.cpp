// Matrix product, for 1x1 convolutions, linear layers and all their gradients.
//
// Panels of `b` are copied in the order in which the tiles (tile.h) read them, as many as the second-level cache holds;
// so are blocks of rows of `a` where the instruction set wants that.  The copy transposes what lies the other way
// round, and makes values of planes (packed_values.h).  `a` is read from memory once, however large it is, and `b` once
// for every block of rows.
#include "kernels/kernels.h"
#include "kernels/product/dot_product.h"
#include "kernels/product/packed_values.h"
#include "kernels/product/packing.h"
#include "kernels/product/tile.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {
namespace {

constexpr int64_t kPanels = 4;      // of kDepthBlock, packed at a time; more of them where the depth is less
constexpr int64_t kRowBlock = 128;  // of kDepthBlock, packed at a time; more of them where the depth is less

inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The part of a product that is worked on.
struct Block {
  int64_t first_depth, depth;
  int64_t first_row, last_row;
  int64_t first_column, last_column;
};

// What the output starts from at a depth: its own value so far.
Matrix start_at(const Product& p, int64_t depth, int64_t row, int64_t column) {
  if (depth) return at({p.out, p.out_stride, 1}, row, column);
  return p.start.data ? at(p.start, row, column) : Matrix{};
}

#if defined(__aarch64__)
// A strip of `a` times packed panels, none of which is cut off: with as little as possible around the tiles, which are
// small where the depth is.
void multiply_whole_tiles(
    const Product& p, const Block& block, const Matrix& start, float* out, const float* a, const float* b,
    int64_t b_next) {
  const float* from = start.data;
  for (const float* const end = out + (block.last_column - block.first_column); out != end; out += kPanel) {
    multiply_whole_tile(a, b, filled_up(block.depth), from, start.row_stride, out, p.out_stride);
    b += b_next;
    if (from) from += kPanel;
  }
}
#endif

// Panels as wide as Vectors; the first one is at b, the next b_next after it.
template <int Vectors>
void multiply_panels(
    const Product& p, const Block& block, const float* packed_a, const float* b, int64_t b_stride, int64_t b_next) {
  constexpr int kRows = kTileRows<Vectors>;
  [[maybe_unused]] const bool whole = Vectors == kTileVectors && b_next && b_stride == kPanel;
  for (int64_t row = block.first_row; row < block.last_row; row += kRows) {
    const Matrix a = kPacksRows ? Matrix{packed_a + (row - block.first_row) * filled_up(block.depth), 1, kStrip}
                                : at(p.a, row, block.first_depth);
    const float* panel = b;
#if defined(__aarch64__)
    const Matrix start = start_at(p, block.first_depth, row, block.first_column);
    const bool by_rows = !start.data || start.column_stride == 1;
    if (whole && by_rows && block.depth && row + kRows <= block.last_row) {
      float* out = p.out + row * p.out_stride + block.first_column;
      multiply_whole_tiles(p, block, start, out, a.data, b, b_next);
      continue;
    }
#endif
    for (int64_t column = block.first_column; column < block.last_column; column += Vectors * kLanes, panel += b_next) {
      const Tile tile{
          p.out + row * p.out_stride + column, p.out_stride, start_at(p, block.first_depth, row, column),
          smaller_of(block.last_row - row, kRows), smaller_of(block.last_column - column, Vectors * kLanes)};
      multiply_rows<kRows, Vectors>(a, panel, b_stride, block.depth, tile);
    }
  }
}

// Less than a panel.
void multiply_rest(const Product& p, const Block& block, const float* packed_a, const float* packed_b) {
  const int64_t columns = block.last_column - block.first_column;
  if (columns == 0) return;
  if (columns <= kLanes) return multiply_panels<1>(p, block, packed_a, packed_b, kPanel, 0);
  if (kTileVectors == 3 && columns <= 2 * kLanes) return multiply_panels<2>(p, block, packed_a, packed_b, kPanel, 0);
  multiply_panels<kTileVectors>(p, block, packed_a, packed_b, kPanel, 0);
}

// Some rows of `a`, and all columns of the block.
void multiply_block(const Product& p, const Block& block, const float* packed_a) {
  alignas(64) float packed_b[kPanels * kDepthBlock * kPanel];
  const Matrix b = at(p.b, block.first_depth, 0);
  const int64_t whole_end = block.first_column + (block.last_column - block.first_column) / kPanel * kPanel;
  if (p.b.column_stride == 1 && p.rows <= kStrip && !p.value.x) {  // read once: a copy would only cost
    Block whole = block, rest = block;
    whole.last_column = rest.first_column = whole_end;
    multiply_panels<kTileVectors>(p, whole, packed_a, at(b, 0, whole.first_column).data, b.row_stride, kPanel);
    pack<kPanel>(at(b, 0, whole_end), block.depth, rest.last_column - whole_end, packed_b);
    return multiply_rest(p, rest, packed_a, packed_b);
  }
  const int64_t panel = filled_up(block.depth) * kPanel;
  const int64_t together = kPanel * (panel ? kPanels * kDepthBlock * kPanel / panel : 1);
  for (int64_t column = block.first_column; column < block.last_column; column += together) {
    Block whole = block, rest = block;
    whole.first_column = column;
    rest.last_column = smaller_of(column + together, block.last_column);
    whole.last_column = rest.first_column = smaller_of(rest.last_column, whole_end);
    const int64_t columns = rest.last_column - column;
    if (p.value.x) {
      pack_values<kPanel>(p, {block.first_depth, block.depth, column, columns}, packed_b);
    } else {
      pack<kPanel>(at(b, 0, column), block.depth, columns, packed_b);
    }
    multiply_panels<kTileVectors>(p, whole, packed_a, packed_b, kPanel, panel);
    multiply_rest(p, rest, packed_a, packed_b + (whole.last_column - column) / kPanel * panel);
  }
}

void multiply_packed(const Product& p, const Block& all) {
  alignas(64) float packed_a[kPacksRows ? kRowBlock * kDepthBlock : 1];
  for (int64_t depth = 0; depth < all.depth || depth == 0; depth += kDepthBlock) {
    Block block = all;
    block.first_depth = depth;
    block.depth = smaller_of(all.depth - depth, kDepthBlock);
    if (!kPacksRows) {
      multiply_block(p, block, nullptr);
      continue;
    }
    // `b` is packed anew for every block of rows.
    const int64_t together =
        block.depth ? kRowBlock * kDepthBlock / filled_up(block.depth) / kStrip * kStrip : kRowBlock;
    for (int64_t row = all.first_row; row < all.last_row; row += together) {
      block.first_row = row;
      block.last_row = smaller_of(row + together, all.last_row);
      pack<kStrip>(at(p.a, row, depth).transposed(), block.depth, block.last_row - row, packed_a);
      multiply_block(p, block, packed_a);
    }
  }
}

template <int Rows>
void dot_rows(const Product& p, const Block& block, int64_t row) {
  int64_t column = block.first_column;
  const auto multiply = [&](auto tile) {
    const Matrix start = start_at(p, 0, row, column);
    tile(
        at(p.a, row, 0), at(p.b, 0, column).transposed(), p.depth, start, p.out + row * p.out_stride + column,
        p.out_stride);
  };
  for (; column + kDotColumns <= block.last_column; column += kDotColumns) multiply(dot_tile<Rows, kDotColumns>);
  for (; column < block.last_column; column++) multiply(dot_tile<Rows, 1>);
}

void multiply_along_depth(const Product& p, const Block& all) {
  int64_t row = all.first_row;
  for (; row + kDotRows <= all.last_row; row += kDotRows) dot_rows<kDotRows>(p, all, row);
  for (; row < all.last_row; row++) dot_rows<1>(p, all, row);
}

// Transposing panels to be read by one tile only does not pay.
bool is_along_depth(const Product& p) {
  return !p.value.x && p.a.column_stride == 1 && p.b.row_stride == 1 && p.b.column_stride != 1 && p.rows <= kDotRows;
}

// How a product is shared out: by panels of columns, or by strips of rows where the panels are too few to be shared out
// evenly.  Threads that have different rows each pack all of `b`, so many panels are better.
struct Cut {
  bool by_rows;
  int64_t pieces;
};

Cut cut(const Product& p) {
  constexpr int64_t kEnough = 16;
  const int64_t strips = (p.rows + kStrip - 1) / kStrip, panels = (p.columns + kPanel - 1) / kPanel;
  return panels < kEnough && strips > panels ? Cut{true, strips} : Cut{false, panels};
}

}  // namespace

int64_t product_pieces(const Product& p) { return cut(p).pieces; }

void product(const Product& p, int64_t begin, int64_t end) {
  Block block{0, p.depth, 0, p.rows, 0, p.columns};
  if (cut(p).by_rows) {
    block.first_row = begin * kStrip;
    block.last_row = smaller_of(end * kStrip, p.rows);
  } else {
    block.first_column = begin * kPanel;
    block.last_column = smaller_of(end * kPanel, p.columns);
  }
  if (is_along_depth(p)) return multiply_along_depth(p, block);
  multiply_packed(p, block);
}

}  // namespace fedss::FEDSS_ISA
