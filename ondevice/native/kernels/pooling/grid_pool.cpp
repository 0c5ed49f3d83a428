// Pooling with windows of any size, stride, padding and dilation, and with output sizes that the caller says: torch may
// round them up.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {
namespace {

// The first largest pixel of a window, as torch breaks ties; -1 for a window outside the plane.
inline int64_t largest(const float* plane, Shape shape, Grid grid, int64_t h, int64_t w) {
  int64_t best = -1;
  for (int64_t i = 0; i < grid.kernel_height; i++)
    for (int64_t j = 0; j < grid.kernel_width; j++) {
      const int64_t y = h * grid.stride_height + i * grid.dilation_height - grid.padding_height;
      const int64_t x = w * grid.stride_width + j * grid.dilation_width - grid.padding_width;
      if (y < 0 || y >= shape.height || x < 0 || x >= shape.width) continue;
      const int64_t at = y * shape.width + x;
      if (best < 0 || plane[at] > plane[best]) best = at;
    }
  return best;
}

// A window's pixels along one dimension, and how many it counts where padding counts.
struct Extent {
  int64_t first, last, padded;
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline Extent extent(int64_t position, int64_t kernel, int64_t stride, int64_t padding, int64_t size) {
  const int64_t start = position * stride - padding, end = smaller(start + kernel, size + padding);
  return {start < 0 ? 0 : start, smaller(end, size), end - start};
}

// Calls body(plane of x, pixel of the output, its place) in the order in which they lie in memory.
template <class Body>
inline void for_each_window(Shape shape, Shape out_shape, int64_t begin, int64_t end, Body body) {
  for (int64_t plane = begin * shape.batch; plane < end * shape.batch; plane++)
    for (int64_t h = 0; h < out_shape.height; h++)
      for (int64_t w = 0; w < out_shape.width; w++)
        body(plane * shape.plane(), plane * out_shape.plane() + h * out_shape.width + w, h, w);
}

// Calls body(rows, columns, 1 / the number that the sum of the window is divided by).
template <class Body>
inline void with_extents(Shape shape, Grid grid, AverageBy by, int64_t h, int64_t w, Body body) {
  const Extent rows = extent(h, grid.kernel_height, grid.stride_height, grid.padding_height, shape.height);
  const Extent columns = extent(w, grid.kernel_width, grid.stride_width, grid.padding_width, shape.width);
  const int64_t pixels = (rows.last - rows.first) * (columns.last - columns.first);
  const int64_t counted = by.count_padding ? rows.padded * columns.padded : pixels;
  body(rows, columns, 1.0f / static_cast<float>(by.divisor ? by.divisor : counted));
}

}  // namespace

void grid_max_pool(const float* x, Shape shape, Grid grid, float* out, Shape out_shape, int64_t begin, int64_t end) {
  for_each_window(shape, out_shape, begin, end, [&](int64_t plane, int64_t at, int64_t h, int64_t w) {
    const int64_t best = largest(x + plane, shape, grid, h, w);
    out[at] = best < 0 ? -INFINITY : x[plane + best];
  });
}

void grid_max_pool_gradient(
    const float* gradient, Shape out_shape, const float* x, Shape shape, Grid grid, float* x_gradient, int64_t begin,
    int64_t end) {
  std::memset(x_gradient + begin * shape.row(), 0, (end - begin) * shape.row() * sizeof(float));
  for_each_window(shape, out_shape, begin, end, [&](int64_t plane, int64_t at, int64_t h, int64_t w) {
    const int64_t best = largest(x + plane, shape, grid, h, w);
    if (best >= 0) x_gradient[plane + best] += gradient[at];
  });
}

void average_pool(
    const float* x, Shape shape, Grid grid, AverageBy by, float* out, Shape out_shape, int64_t begin, int64_t end) {
  for_each_window(shape, out_shape, begin, end, [&](int64_t plane, int64_t at, int64_t h, int64_t w) {
    with_extents(shape, grid, by, h, w, [&](Extent rows, Extent columns, float factor) {
      float sum = 0;
      for (int64_t y = rows.first; y < rows.last; y++)
        for (int64_t c = columns.first; c < columns.last; c++) sum += x[plane + y * shape.width + c];
      out[at] = sum * factor;
    });
  });
}

void average_pool_gradient(
    const float* gradient, Shape out_shape, Shape shape, Grid grid, AverageBy by, float* x_gradient, int64_t begin,
    int64_t end) {
  std::memset(x_gradient + begin * shape.row(), 0, (end - begin) * shape.row() * sizeof(float));
  for_each_window(shape, out_shape, begin, end, [&](int64_t plane, int64_t at, int64_t h, int64_t w) {
    with_extents(shape, grid, by, h, w, [&](Extent rows, Extent columns, float factor) {
      const float share = gradient[at] * factor;
      for (int64_t y = rows.first; y < rows.last; y++)
        for (int64_t c = columns.first; c < columns.last; c++) x_gradient[plane + y * shape.width + c] += share;
    });
  });
}

}  // namespace fedss::FEDSS_ISA
