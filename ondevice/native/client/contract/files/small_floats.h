// The two 16-bit floats that weights may travel in, to and from float32; rounded as numpy does: to nearest,
// ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fedss {

inline float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);  // infinity or NaN
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
  return sign ? -magnitude : magnitude;
}

// For magnitudes up to 65504, the largest half.
inline uint16_t float_to_half(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f)  // subnormal: a multiple of 2^-24; 1024 of them are the smallest normal number
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  return static_cast<uint16_t>(sign | ((bits - (112u << 23) + 0xFFF + (bits >> 13 & 1)) >> 13));
}

}  // namespace fedss
