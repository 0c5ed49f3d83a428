// Rows of a matrix normalised, and their softmax, each with its gradient: what Transformers have between their
// products; and the gradient of a table that rows were read from.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/registers/smooth_activation.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {

void layer_norm(
    const float* x, int64_t columns, const float* gamma, const float* beta, float epsilon, float* out, float* mean,
    float* inverse_deviation, int64_t begin, int64_t end) {
  const float count = static_cast<float>(columns);
  for (int64_t row = begin; row < end; row++) {
    const float* from = x + row * columns;
    float* to = out + row * columns;
    SlotSum sum, squares;
    for_each_slot(columns, [&](int64_t i, auto kind, int slot) { sum.add(load_as(from + i, kind), slot); });
    const float middle = sum.total() / count;
    for_each_slot(columns, [&](int64_t i, auto kind, int slot) {
      const auto off = load_as(from + i, kind) - middle;
      squares.add_product(off, off, slot);
    });
    const float inverse = 1.0f / std::sqrt(squares.total() / count + epsilon);
    mean[row] = middle;
    inverse_deviation[row] = inverse;
    for_each_lane(columns, [=](int64_t i, auto kind) {
      auto y = (load_as(from + i, kind) - middle) * inverse;
      if (gamma) y *= load_as(gamma + i, kind);
      if (beta) y += load_as(beta + i, kind);
      store_as(to + i, y);
    });
  }
}

void layer_norm_gradient(
    const float* gradient, const float* x, int64_t columns, const float* mean, const float* inverse_deviation,
    const float* gamma, float* x_gradient, int64_t begin, int64_t end) {
  const float count = static_cast<float>(columns);
  for (int64_t row = begin; row < end; row++) {
    const float *from = x + row * columns, *g = gradient + row * columns;
    const float middle = mean[row], inverse = inverse_deviation[row];
    float* to = x_gradient + row * columns;
    const auto scaled = [=](int64_t i, auto kind) {
      auto u = load_as(g + i, kind);
      if (gamma) u *= load_as(gamma + i, kind);
      return u;
    };
    SlotSum u_sum, u_x_sum;
    for_each_slot(columns, [&](int64_t i, auto kind, int slot) {
      const auto u = scaled(i, kind);
      u_sum.add(u, slot);
      u_x_sum.add_product(u, (load_as(from + i, kind) - middle) * inverse, slot);
    });
    const float u_mean = u_sum.total() / count, u_x_mean = u_x_sum.total() / count;
    for_each_lane(columns, [=](int64_t i, auto kind) {
      const auto normal = (load_as(from + i, kind) - middle) * inverse;
      store_as(to + i, (scaled(i, kind) - u_mean - normal * u_x_mean) * inverse);
    });
  }
}

void layer_norm_weight_gradient(
    const float* gradient, const float* x, int64_t rows, int64_t columns, const float* mean,
    const float* inverse_deviation, float* gamma_gradient, float* beta_gradient, int64_t begin, int64_t end) {
  float *of_gamma = gamma_gradient + begin, *of_beta = beta_gradient + begin;
  std::memset(of_gamma, 0, (end - begin) * sizeof(float));
  std::memset(of_beta, 0, (end - begin) * sizeof(float));
  for (int64_t row = 0; row < rows; row++) {
    const float *from = x + row * columns + begin, *g = gradient + row * columns + begin;
    const float middle = mean[row], inverse = inverse_deviation[row];
    for_each_lane(end - begin, [=](int64_t i, auto kind) {
      const auto u = load_as(g + i, kind);
      const auto normal = (load_as(from + i, kind) - middle) * inverse;
      store_as(of_gamma + i, load_as(of_gamma + i, kind) + u * normal);
      store_as(of_beta + i, load_as(of_beta + i, kind) + u);
    });
  }
}

void softmax(const float* x, int64_t columns, float* out, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const float* from = x + row * columns;
    float* to = out + row * columns;
    float largest = from[0];
    for (int64_t i = 1; i < columns; i++) largest = from[i] > largest ? from[i] : largest;
    const float highest = largest;
    SlotSum sum;
    for_each_slot(columns, [&](int64_t i, auto kind, int slot) {
      const auto off = load_as(from + i, kind) - highest;
      // What was masked away is far below the rest, and nothing; the exponential itself stops at its smallest number.
      const auto power = exponential(off);
      const auto y = off > decltype(kind){} - 87.0f ? power : decltype(kind){};
      store_as(to + i, y);
      sum.add(y, slot);
    });
    const float factor = 1.0f / sum.total();
    for_each_lane(columns, [=](int64_t i, auto kind) { store_as(to + i, load_as(to + i, kind) * factor); });
  }
}

void softmax_gradient(
    const float* gradient, const float* y, int64_t columns, float* x_gradient, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const float *g = gradient + row * columns, *of = y + row * columns;
    float* to = x_gradient + row * columns;
    SlotSum sum;
    for_each_slot(columns, [&](int64_t i, auto kind, int slot) {
      sum.add_product(load_as(g + i, kind), load_as(of + i, kind), slot);
    });
    const float expected = sum.total();
    for_each_lane(columns, [=](int64_t i, auto kind) {
      store_as(to + i, (load_as(g + i, kind) - expected) * load_as(of + i, kind));
    });
  }
}

void embedding_gradient(
    const float* gradient, const int64_t* ids, int64_t count, int64_t padding, float* out, int64_t rows,
    int64_t columns, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < rows; row++) std::memset(out + row * columns + begin, 0, (end - begin) * sizeof(float));
  for (int64_t at = 0; at < count; at++) {
    if (ids[at] == padding) continue;
    const float* from = gradient + at * columns + begin;
    float* to = out + ids[at] * columns + begin;
    for_each_lane(
        end - begin, [=](int64_t i, auto kind) { store_as(to + i, load_as(to + i, kind) + load_as(from + i, kind)); });
  }
}

}  // namespace fedss::FEDSS_ISA
