// Normalisation by constants: BatchNorm whose statistics no longer move.  The forward pass is that of any `Value`, with
// a group for every channel; only the gradient differs, because the moments do not depend on x.
#include <cmath>

#include "kernels/registers/activation.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {
namespace {

struct Outputs {
  float *x, *gamma, *beta;
};

// All images of a channel have the same moments, so that they are one plane, unless the gradient has numbers per image.
template <Activation A, bool PerImage>
void gradient_of_channels(
    const PlaneGradient& gradient, const Value& given, const Outputs& outputs, int64_t begin, int64_t end) {
  const Value value = given;  // copies of our own, which no output can lie upon
  const Outputs out = outputs;
  const Shape shape = value.shape;
  const int64_t run = PerImage ? shape.plane() : shape.row();
  for (int64_t channel = begin; channel < end; channel++) {
    const PlaneAffine affine = plane_affine(value, channel, group_of(value, channel), 0);
    const AffineSlope<A> slope(affine.scale, affine.shift);
    double u_total = 0, u_x_total = 0;
    for (int64_t image = 0; image < (PerImage ? shape.batch : 1); image++) {
      const int64_t at = channel * shape.row() + image * run, number = image * shape.channels + channel;
      const float factor = PerImage && gradient.scale ? gradient.scale[number] : 1.0f;
      const float shift = PerImage && gradient.shift ? gradient.shift[number] : 0.0f;
      for_each_part(run, [&](int64_t first, int64_t count) {
        const float *x = value.x + at + first, *planes = gradient.planes ? gradient.planes + at + first : nullptr;
        float* x_gradient = out.x + at + first;
        SlotSum u_sum, u_x_sum;
        for_each_slot(count, [&](int64_t i, auto kind, int slot) {
          const auto from = load_as(x + i, kind);
          auto g = kind;
          if (PerImage) {
            g = decltype(kind){} + shift;
            if (planes) g += load_as(planes + i, kind) * factor;
          } else {
            g = load_as(planes + i, kind);
          }
          const auto u = slope.times(g, from);
          u_sum.add(u, slot);
          u_x_sum.add_product(u, from - affine.mean, slot);
          store_as(x_gradient + i, u * affine.scale);
        });
        u_total += u_sum.total();
        u_x_total += u_x_sum.total();
      });
    }
    out.beta[channel] = static_cast<float>(u_total);
    out.gamma[channel] = static_cast<float>(u_x_total * affine.inverse_deviation);
  }
}

}  // namespace

void frozen_moments(
    const float* mean, const float* variance, int64_t channels, int64_t batch, float epsilon, float* moments,
    int64_t begin, int64_t end) {
  for (int64_t channel = begin; channel < end; channel++) {
    const float inverse_deviation = 1.0f / std::sqrt(variance[channel] + epsilon);
    for (int64_t image = 0; image < batch; image++) {
      moments[channel * batch + image] = mean[channel];
      moments[(channels + channel) * batch + image] = inverse_deviation;
    }
  }
}

void frozen_norm_gradient(
    const PlaneGradient& gradient, const Value& value, float* x_gradient, float* gamma_gradient, float* beta_gradient,
    int64_t begin, int64_t end) {
  const Outputs out{x_gradient, gamma_gradient, beta_gradient};
  const bool per_image = !gradient.planes || gradient.scale || gradient.shift;
  with_activation(value.activation, [&]<Activation A>() {
    if (per_image) return gradient_of_channels<A, true>(gradient, value, out, begin, end);
    gradient_of_channels<A, false>(gradient, value, out, begin, end);
  });
}

}  // namespace fedss::FEDSS_ISA
