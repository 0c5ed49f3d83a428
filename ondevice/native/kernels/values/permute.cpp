// A tensor with its dimensions in another order, as it then lies in memory.
#include "kernels/kernels.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {
namespace {

constexpr int64_t kBlock = 16;  // a square of so many rows and columns stays in the cache while it is turned

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

void permute(const float* x, Extents sizes, Extents strides, float* out, int64_t begin, int64_t end) {
  const int64_t rows = sizes.third, columns = sizes.fourth, row = strides.third, column = strides.fourth;
  for (int64_t item = begin; item < end; item++) {
    const float* from = x + item / sizes.second * strides.first + item % sizes.second * strides.second;
    float* to = out + item * rows * columns;
    if (column == 1) {
      for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * columns, from + r * row, columns * sizeof(float));
      continue;
    }
    for (int64_t r = 0; r < rows; r += kBlock)
      for (int64_t c = 0; c < columns; c += kBlock) {
        const int64_t last_row = smaller(r + kBlock, rows), last_column = smaller(c + kBlock, columns);
        for (int64_t i = r; i < last_row; i++)
          for (int64_t j = c; j < last_column; j++) to[i * columns + j] = from[i * row + j * column];
      }
  }
}

}  // namespace fedss::FEDSS_ISA
