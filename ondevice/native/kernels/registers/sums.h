// Sums over planes: four registers at a time, each with a sum of its own, so that no addition waits for the one before
// and the loop's own instructions are few.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/registers/vector.h"

namespace fedss::FEDSS_ISA {

constexpr int kSlots = 4;

// Calls body(i, kind, slot) for every register in [0, count), then for what is left of one (see `for_each_lane`).
template <class Body>
inline __attribute__((always_inline)) void for_each_slot(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kSlots * kLanes <= count; i += kSlots * kLanes)
#pragma GCC unroll 4
    for (int slot = 0; slot < kSlots; slot++) body(i + slot * kLanes, Vector{}, slot);
  for (; i + kLanes <= count; i += kLanes) body(i, Vector{}, 0);
  if constexpr (kLanes > 4) {
    if (i + 4 <= count) {
      body(i, Quad{}, 0);
      i += 4;
    }
  }
  for (; i < count; i++) body(i, 0.0f, 0);
}

// A large plane is added up part by part: over a flat picture all numbers are the same, every addition to a long sum of
// them rounds the same way, and what that is off goes with the number of additions.  Parts also stay in the first
// cache.
constexpr int64_t kPart = 1024;

// Calls body(first, count) for every part of [0, count).
template <class Body>
inline __attribute__((always_inline)) void for_each_part(int64_t count, Body body) {
  for (int64_t first = 0; first < count; first += kPart) body(first, count - first < kPart ? count - first : kPart);
}

inline float sum_of(Quad value) {
#if defined(__aarch64__)
  return vaddvq_f32(value);
#else
  return (value[0] + value[1]) + (value[2] + value[3]);
#endif
}

#if defined(__AVX2__)
inline float sum_of(Vector value) {
  Quad halves[2];
  std::memcpy(halves, &value, sizeof value);
  return sum_of(halves[0] + halves[1]);
}
#endif

// A sum over such a loop.
class SlotSum {
 public:
  template <class T>
  inline __attribute__((always_inline)) void add(T value, int slot) {
    if constexpr (sizeof(T) == sizeof(Vector)) {
      lanes_[slot] += value;
    } else if constexpr (sizeof(T) == sizeof(Quad)) {
      quad_ += value;
    } else {
      rest_ += value;
    }
  }
  // Adds a * b: one instruction where the product is needed nowhere else.
  template <class T>
  inline __attribute__((always_inline)) void add_product(T a, T b, int slot) {
    if constexpr (sizeof(T) == sizeof(Vector)) {
      lanes_[slot] += a * b;
    } else if constexpr (sizeof(T) == sizeof(Quad)) {
      quad_ += a * b;
    } else {
      rest_ += a * b;
    }
  }
  float total() const {
    const Vector lanes = (lanes_[0] + lanes_[1]) + (lanes_[2] + lanes_[3]);
    if constexpr (kLanes > 4) return sum_of(lanes) + sum_of(quad_) + rest_;
    return sum_of(lanes) + rest_;
  }

 private:
  Vector lanes_[kSlots] = {};
  Quad quad_ = {};  // where kLanes is more than 4
  float rest_ = 0;
};

}  // namespace fedss::FEDSS_ISA
