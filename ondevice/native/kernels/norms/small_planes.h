// Small planes, several images at a time.  The images of a channel lie side by side: a row of them is as good as one
// large plane once the numbers that belong to an image are spread along its part of the row.
#pragma once

#include "kernels/kernels.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {

// Below this many pixels a sum over a plane and its last few pixels cost more than the plane.
constexpr int64_t kSmallPlane = 64;

// What is kept on the stack: numbers of so many images, rows of so many pixels and of a register beyond them.
constexpr int64_t kImages = 64, kRow = 1024 + kLanes;

inline bool is_small(Shape shape) { return shape.plane() < kSmallPlane; }

struct Images {
  int64_t first, last;
};

// Calls body with as many images at a time as there is room for.
template <class Body>
inline void for_each_run_of_images(Shape shape, Body body) {
  const int64_t fitting = is_small(shape) ? (kRow - kLanes) / shape.plane() : kImages;
  const int64_t run = fitting < kImages ? fitting : kImages;
  for (int64_t first = 0; first < shape.batch; first += run)
    body(Images{first, first + run < shape.batch ? first + run : shape.batch});
}

// Writes whole registers: what lies beyond the plane belongs to the next image, which is spread afterwards.
inline void spread(float value, int64_t plane, float* row) {
  for (int64_t i = 0; i < plane; i += kLanes) store(row + i, broadcast(value));
}

// The sum of an image's part of a row.
inline float sum_of(const float* row, int64_t plane) {
  SlotSum total;
  for_each_slot(plane, [&](int64_t i, auto kind, int slot) { total.add(load_as(row + i, kind), slot); });
  return total.total();
}

// Calls body<N>(channel) for N channels from there on, as many as At at a time, then one by one: what is kept along the
// row is read and written once for all of them.
template <int At, class Body>
inline void for_each_channel(int64_t channels, Body body) {
  int64_t channel = 0;
  for (; channel + At <= channels; channel += At) body.template operator()<At>(channel);
  for (; channel < channels; channel++) body.template operator()<1>(channel);
}

}  // namespace fedss::FEDSS_ISA
