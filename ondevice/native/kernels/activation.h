// The activations and their derivatives, once for a register and once for a float.
#pragma once

#include "kernels/kernels.h"
#include "kernels/vector.h"

namespace fedss::FEDSS_ISA {

template <Activation A, class T>
inline T activated(T t) {
  if constexpr (A == Activation::relu) return larger(t, T{});
  if constexpr (A == Activation::hardsigmoid) return smaller(larger(t * (1.0f / 6) + 0.5f, T{}), T{} + 1.0f);
  if constexpr (A == Activation::hardswish) return t * activated<Activation::hardsigmoid>(t);
  return t;
}

// gradient * activation'(t)
template <Activation A, class T>
inline T through_activation(T gradient, T t) {
  if constexpr (A == Activation::relu) return t > T{} ? gradient : T{};
  if constexpr (A == Activation::hardsigmoid) {
    const T inside = larger(t, -t);
    return inside < T{} + 3.0f ? gradient * (1.0f / 6) : T{};
  }
  if constexpr (A == Activation::hardswish) {
    // t / 3 + 1/2 between the kinks at -3 and 3, then 0 and 1: the clamped line jumps there, as the derivative does.
    const T slope = t * (1.0f / 3) + 0.5f;
    return t <= T{} - 3.0f ? T{} : (t < T{} + 3.0f ? gradient * slope : gradient);
  }
  return gradient;
}

// Calls body with the activation as a compile-time constant.
template <class Body>
inline void with_activation(Activation activation, Body body) {
  switch (activation) {
    case Activation::none: return body.template operator()<Activation::none>();
    case Activation::relu: return body.template operator()<Activation::relu>();
    case Activation::hardswish: return body.template operator()<Activation::hardswish>();
    case Activation::hardsigmoid: return body.template operator()<Activation::hardsigmoid>();
  }
}

// GroupNorm of one plane is x * scale + shift.
struct PlaneAffine {
  float mean, inverse_deviation, scale, shift;
};

inline int64_t group_of(const Value& value, int64_t channel) { return channel / (value.shape.channels / value.groups); }

inline PlaneAffine plane_affine(const Value& value, int64_t channel, int64_t group, int64_t image) {
  if (!value.gamma) return {0, 1, 1, 0};
  const int64_t batch = value.shape.batch;
  const float mean = value.moments[group * batch + image];
  const float inverse_deviation = value.moments[(value.groups + group) * batch + image];
  const float scale = inverse_deviation * value.gamma[channel];
  return {mean, inverse_deviation, scale, value.beta[channel] - mean * scale};
}

}  // namespace fedss::FEDSS_ISA
