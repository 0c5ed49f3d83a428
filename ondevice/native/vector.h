// One SIMD register of floats, as wide as the instruction set we are compiled for: GCC's vector extension, so that the
// same source becomes AVX2, SSE2 or NEON.  Every kernel file is compiled once per instruction set into a namespace of
// its own (FEDSS_ISA), and `dispatch.cpp` picks one when the process starts.  For that to be safe the kernel files must
// define nothing outside that namespace: no standard containers, whose inline code the linker would share among the
// instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

namespace fedss::FEDSS_ISA {

#if defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Mask __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);  // compiles to one unaligned load
  return value;
}

inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

inline Vector broadcast(float value) { return Vector{} + value; }

inline float sum(Vector value) {
  float total = 0;
  for (int lane = 0; lane < kLanes; lane++) total += value[lane];
  return total;
}

inline Vector smaller(Vector a, Vector b) { return a < b ? a : b; }
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }
inline float smaller(float a, float b) { return a < b ? a : b; }
inline float larger(float a, float b) { return a > b ? a : b; }

// Calls body(i, Vector{}) for every whole register in [0, count) and body(i, 0.0f) for what is left: the type of the
// second argument tells the body which of `load_as` to use, so that a formula is written once.
template <class Body>
inline void for_each_lane(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Vector{});
  for (; i < count; i++) body(i, 0.0f);
}
inline Vector load_as(const float* from, Vector) { return load(from); }
inline float load_as(const float* from, float) { return *from; }
inline void store_as(float* to, Vector value) { store(to, value); }
inline void store_as(float* to, float value) { *to = value; }

}  // namespace fedss::FEDSS_ISA
