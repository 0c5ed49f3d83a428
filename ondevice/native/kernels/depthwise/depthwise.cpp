// Depthwise convolution, kernel 3 or 5, stride 1 or 2, and its two gradients: narrow planes one way, wide ones another.
#include "kernels/depthwise/depthwise.h"

namespace fedss::FEDSS_ISA {

void depthwise(const Value& value, const float* weight, Window window, float* out, int64_t begin, int64_t end) {
  const auto way = value.shape.width <= kWidestNarrow ? narrow::depthwise : wide::depthwise;
  way(value, weight, window, out, begin, end);
}

void depthwise_input_gradient(
    const float* gradient, Shape out_shape, const float* weight, Window window, float* x_gradient, Shape x_shape,
    int64_t begin, int64_t end) {
  const auto way = x_shape.width <= kWidestNarrow ? narrow::input_gradient : wide::input_gradient;
  way(gradient, out_shape, weight, window, x_gradient, x_shape, begin, end);
}

void depthwise_weight_gradient(
    const float* gradient, const Value& value, Window window, float* out, int64_t begin, int64_t end) {
  const auto way = value.shape.width <= kWidestNarrow ? narrow::weight_gradient : wide::weight_gradient;
  way(gradient, value, window, out, begin, end);
}

}  // namespace fedss::FEDSS_ISA
