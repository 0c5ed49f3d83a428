// The activations and their derivatives, once for a register and once for a float.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/kernels.h"
#include "kernels/registers/smooth_activation.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

// The value, or the bound where it lies beyond; what is no number stays that.  One instruction each, where compilers
// make a comparison and a choice of it.
template <class T>
inline T at_least(T value, T bound) {
  return bound > value ? bound : value;
}
template <class T>
inline T at_most(T value, T bound) {
  return bound < value ? bound : value;
}
#if defined(__aarch64__)
inline Quad at_least(Quad value, Quad bound) { return vmaxq_f32(value, bound); }
inline Quad at_most(Quad value, Quad bound) { return vminq_f32(value, bound); }
#elif defined(__x86_64__)
inline Quad at_least(Quad value, Quad bound) { return _mm_max_ps(bound, value); }
inline Quad at_most(Quad value, Quad bound) { return _mm_min_ps(bound, value); }
#if defined(__AVX2__)
inline Vector at_least(Vector value, Vector bound) { return _mm256_max_ps(bound, value); }
inline Vector at_most(Vector value, Vector bound) { return _mm256_min_ps(bound, value); }
#endif
#endif

template <Activation A, class T>
inline T activated(T t) {
  if constexpr (A == Activation::relu) return at_least(t, T{});
  if constexpr (A == Activation::hardsigmoid) return at_most(at_least(t * (1.0f / 6) + 0.5f, T{}), T{} + 1.0f);
  if constexpr (A == Activation::hardswish) return t * activated<Activation::hardsigmoid>(t);
  if constexpr (A == Activation::relu6) return at_most(at_least(t, T{}), T{} + 6.0f);
  if constexpr (is_smooth(A)) return smooth_activated<A>(t);
  return t;
}

// gradient * activation'(t)
template <Activation A, class T>
inline T through_activation(T gradient, T t) {
  if constexpr (A == Activation::relu) return t > T{} ? gradient : T{};
  if constexpr (A == Activation::hardsigmoid) {
    const T inside = at_least(t, -t);
    return inside < T{} + 3.0f ? gradient * (1.0f / 6) : T{};
  }
  if constexpr (A == Activation::hardswish) {
    // t / 3 + 1/2 between the kinks at -3 and 3, then 0 and 1: the clamped line jumps there, as the derivative does.
    const T slope = t * (1.0f / 3) + 0.5f;
    return t <= T{} - 3.0f ? T{} : (t < T{} + 3.0f ? gradient * slope : gradient);
  }
  if constexpr (A == Activation::relu6) {
    const T above = t > T{} ? gradient : T{};
    return t < T{} + 6.0f ? above : T{};
  }
  if constexpr (is_smooth(A)) return gradient * smooth_slope<A>(t);
  return gradient;
}

// activation(x scale + shift); scale and shift are numbers of a plane, or registers with numbers of several channels.
template <Activation A, class Coefficient>
class ActivatedAffine {
 public:
  // With a = t / sqrt 6 hardswish is a * (a + 3 / sqrt 6, kept between 0 and sqrt 6): the division by 6 is done once.
  ActivatedAffine(Coefficient scale, Coefficient shift)
      : scale_(A == Activation::hardswish ? scale * (1 / kRoot) : scale),
        shift_(A == Activation::hardswish ? shift * (1 / kRoot) : shift) {}

  template <class T>
  T operator()(T x) const {
    const T t = x * scale_ + shift_;
    if constexpr (A == Activation::hardswish) return t * at_most(at_least(t + 3 / kRoot, T{}), T{} + kRoot);
    return activated<A>(t);
  }

 private:
  static constexpr float kRoot = 2.4494897427831781f;
  Coefficient scale_, shift_;
};

// gradient * activation'(x scale + shift), scale and shift as above.
template <Activation A, class Coefficient = float>
class AffineSlope {
 public:
  AffineSlope(Coefficient scale, Coefficient shift)
      : scale_(A == Activation::hardswish ? scale * (1.0f / 3) : scale),
        shift_(A == Activation::hardswish ? shift * (1.0f / 3) + 0.5f : shift) {}

  template <class T>
  inline __attribute__((always_inline)) T times(T gradient, T x) const {
    if constexpr (A == Activation::none) return gradient;
    // Above 0 where x scale is above -shift: one instruction less than adding the shift.
    if constexpr (A == Activation::relu) return x * scale_ > T{} - shift_ ? gradient : T{};
    if constexpr (A == Activation::hardswish) {
      // The line of `through_activation`, which is -1/2 and 3/2 where t is -3 and 3.
      const T line = x * scale_ + shift_;
      const T slope = line < T{} + 1.5f ? line : T{} + 1.0f;
      return gradient * (line > T{} - 0.5f ? slope : T{});
    }
    return through_activation<A>(gradient, x * scale_ + shift_);
  }

 private:
  Coefficient scale_, shift_;
};

// Calls body with the activation as a compile-time constant.
template <class Body>
inline void with_activation(Activation activation, Body body) {
  switch (activation) {
    case Activation::none: return body.template operator()<Activation::none>();
    case Activation::relu: return body.template operator()<Activation::relu>();
    case Activation::hardswish: return body.template operator()<Activation::hardswish>();
    case Activation::hardsigmoid: return body.template operator()<Activation::hardsigmoid>();
    case Activation::relu6: return body.template operator()<Activation::relu6>();
    case Activation::sigmoid: return body.template operator()<Activation::sigmoid>();
    case Activation::silu: return body.template operator()<Activation::silu>();
    case Activation::tanh: return body.template operator()<Activation::tanh>();
    case Activation::gelu: return body.template operator()<Activation::gelu>();
    case Activation::gelu_tanh: return body.template operator()<Activation::gelu_tanh>();
    case Activation::softplus: return body.template operator()<Activation::softplus>();
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
