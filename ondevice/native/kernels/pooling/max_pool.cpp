// Max-pooling and its gradient.  The gradient finds the maximum again instead of keeping indices: the runtime's own
// kernel, which keeps them, returns wrong gradients (seen in ExecuTorch 1.4.1 and 1.5.1).
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {
namespace {

// The position of the first largest element of a window, as torch breaks ties; -1 if it lies outside the plane, which
// the operators rule out and the kernels leave alone.
inline int64_t largest(const float* plane, Shape shape, Window window, int64_t h, int64_t w) {
  int64_t best = -1;
  for (int64_t i = 0; i < window.kernel; i++)
    for (int64_t j = 0; j < window.kernel; j++) {
      const int64_t y = h * window.stride + i - window.padding, x = w * window.stride + j - window.padding;
      if (y < 0 || y >= shape.height || x < 0 || x >= shape.width) continue;
      const int64_t at = y * shape.width + x;
      if (best < 0 || plane[at] > plane[best]) best = at;
    }
  return best;
}

template <class Body>
inline void for_each_window(Shape shape, Shape out_shape, int64_t begin, int64_t end, Body body) {
  for (int64_t plane = begin * shape.batch; plane < end * shape.batch; plane++)
    for (int64_t h = 0; h < out_shape.height; h++)
      for (int64_t w = 0; w < out_shape.width; w++)
        body(plane * shape.plane(), plane * out_shape.plane() + h * out_shape.width + w, h, w);
}

}  // namespace

void max_pool(const float* x, Shape shape, Window window, float* out, Shape out_shape, int64_t begin, int64_t end) {
  for_each_window(shape, out_shape, begin, end, [&](int64_t plane, int64_t at, int64_t h, int64_t w) {
    const int64_t best = largest(x + plane, shape, window, h, w);
    out[at] = best < 0 ? -INFINITY : x[plane + best];
  });
}

void max_pool_gradient(
    const float* gradient, Shape out_shape, const float* x, Shape shape, Window window, float* x_gradient,
    int64_t begin, int64_t end) {
  std::memset(x_gradient + begin * shape.row(), 0, (end - begin) * shape.row() * sizeof(float));
  for_each_window(shape, out_shape, begin, end, [&](int64_t plane, int64_t at, int64_t h, int64_t w) {
    const int64_t best = largest(x + plane, shape, window, h, w);
    if (best >= 0) x_gradient[plane + best] += gradient[at];
  });
}

}  // namespace fedss::FEDSS_ISA
