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
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);  // compiles to one unaligned load
  return value;
}

inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

inline Vector broadcast(float value) { return Vector{} + value; }

// A formula that is written once for a register, for half of a wide one and for a single float takes the kind of number
// as its last argument: body(i, kind{}), and reads and writes with these.
template <class T>
inline T load_as(const float* from, T) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
inline void store_as(float* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Calls body for every whole register in [0, count), then for what is left: small planes are mostly rest.
template <class Body>
inline void for_each_lane(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Vector{});
  if constexpr (kLanes > 4) {
    if (i + 4 <= count) {
      body(i, Quad{});
      i += 4;
    }
  }
  for (; i < count; i++) body(i, 0.0f);
}

}  // namespace fedss::FEDSS_ISA
