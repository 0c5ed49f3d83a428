// Sigmoid, SiLU, tanh, GELU and softplus with their derivatives, once for a register and once for a float.
//
// The exponential is Cephes' polynomial; erf and tanh are the rational functions of Eigen, which are within a few
// roundings of the truth.
#pragma once

#include "kernels/kernels.h"
#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

// Integers of the same width as a number or a register of them.
template <class T>
struct IntegersOf {
  typedef int32_t type __attribute__((vector_size(sizeof(T))));
};
template <>
struct IntegersOf<float> {
  typedef int32_t type;
};

template <class T>
inline T clamped(T x, float low, float high) {
  const T above = x > T{} + low ? x : T{} + low;
  return above < T{} + high ? above : T{} + high;
}

template <class T>
inline T exponential(T given) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer, in its last bits
  const T x = clamped(given, -87.0f, 88.0f);
  const T rounded = x * 1.44269504088896341f + kRound;
  const T n = rounded - kRound;
  const T r = x - n * 0.693359375f + n * 2.12194440e-4f;
  T p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  typename IntegersOf<T>::type bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits << 23) + (127 << 23);  // 2^n
  T power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

template <class T>
inline T sigmoid_of(T x) {
  return 1.0f / (exponential(-x) + 1.0f);
}

// Sigmoid, and what is left of 1, which is exact where it is small.
template <class T>
struct Sigmoid {
  explicit Sigmoid(T x) {
    const T power = exponential(-x);
    value = 1.0f / (power + 1.0f);
    rest = power * value;
  }
  T value, rest;
};

template <class T>
inline T tanh_of(T given) {
  const T x = clamped(given, -9.0f, 9.0f), square = x * x;
  T p = square * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * square - 8.60467152213735e-11f;
  p = p * square + 5.12229709037114e-08f;
  p = p * square + 1.48572235717979e-05f;
  p = p * square + 6.37261928875436e-04f;
  p = p * square + 4.89352455891786e-03f;
  T q = square * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * square + 2.26843463243900e-03f;
  q = q * square + 4.89352518554385e-03f;
  return x * p / q;
}

template <class T>
inline T erf_of(T given) {
  const T x = clamped(given, -4.0f, 4.0f), square = x * x;
  T p = square * -2.72614225801306e-10f + 2.77068142495902e-08f;
  p = p * square - 2.10102402082508e-06f;
  p = p * square - 5.69250639462346e-05f;
  p = p * square - 7.34990630326855e-04f;
  p = p * square - 2.95459980854025e-03f;
  p = p * square - 1.60960333262415e-02f;
  T q = square * -1.45660718464996e-05f - 2.13374055278905e-04f;
  q = q * square - 1.68282697438203e-03f;
  q = q * square - 7.37332916720468e-03f;
  q = q * square - 1.42647390514189e-02f;
  return x * p / q;
}

// The part of a normal distribution that lies below x.
template <class T>
inline T normal_below(T x) {
  return erf_of(x * 0.70710678118654752f) * 0.5f + 0.5f;
}

// log(1 + z) for z from 0 to 1, to a few roundings however small z is: 2 atanh(s) with s = z / (2 + z), a polynomial.
template <class T>
inline T log_of_1_plus(T z) {
  const T s = z / (z + 2.0f), square = s * s;
  T p = square * 0.28015124797821045f + 0.280008465051651f;
  p = p * square + 0.4002161920070648f;
  p = p * square + 0.6666641235351562f;
  return s * (p * square) + s * 2.0f;
}

constexpr float kGeluInner = 0.79788456080286536f, kGeluCube = 0.044715f;  // of its approximation by tanh

// (1 + tanh(inside)) / 2 is a sigmoid.
template <class T>
inline T gelu_tanh_inside(T x) {
  return (x * x * x * kGeluCube + x) * (2 * kGeluInner);
}

template <Activation A, class T>
inline T smooth_activated(T t) {
  if constexpr (A == Activation::sigmoid) return sigmoid_of(t);
  if constexpr (A == Activation::silu) return t * sigmoid_of(t);
  if constexpr (A == Activation::tanh) return tanh_of(t);
  if constexpr (A == Activation::gelu) return t * normal_below(t);
  if constexpr (A == Activation::gelu_tanh) return t * sigmoid_of(gelu_tanh_inside(t));
  if constexpr (A == Activation::softplus) {
    const T positive = t > T{} ? t : T{}, below = t > T{} ? -t : t;
    return positive + log_of_1_plus(exponential(below));
  }
  return t;
}

template <Activation A, class T>
inline T smooth_slope(T t) {
  if constexpr (A == Activation::sigmoid) {
    const Sigmoid<T> y(t);
    return y.value * y.rest;
  }
  if constexpr (A == Activation::silu) {
    const Sigmoid<T> y(t);
    return y.value * (t * y.rest + 1.0f);
  }
  if constexpr (A == Activation::tanh) {
    const T y = tanh_of(t);
    return 1.0f - y * y;
  }
  if constexpr (A == Activation::gelu) return normal_below(t) + t * exponential(t * t * -0.5f) * 0.39894228040143268f;
  if constexpr (A == Activation::gelu_tanh) {
    const Sigmoid<T> y(gelu_tanh_inside(t));
    return y.value + t * y.value * y.rest * (t * t * (3 * kGeluCube) + 1.0f) * (2 * kGeluInner);
  }
  if constexpr (A == Activation::softplus) return sigmoid_of(t);
  return T{} + 1.0f;
}

constexpr bool is_smooth(Activation activation) { return activation >= Activation::sigmoid; }

}  // namespace fedss::FEDSS_ISA
