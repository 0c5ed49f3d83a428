// Values over planes: written out, averaged, multiplied and summed; and activations on their own.
#include "kernels/norms/small_planes.h"
#include "kernels/registers/activation.h"
#include "kernels/registers/lane_affine.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {
namespace {

// Calls body(channel, image, where the plane begins, its value as a function of x) for planes in the order in which
// they lie in memory.
template <Activation A, class Body>
inline void for_each_plane(const Value& given, int64_t begin, int64_t end, Body body) {
  const Value value = given;  // a copy of our own, which no output can lie upon
  for (int64_t channel = begin; channel < end; channel++) {
    const int64_t group = value.gamma ? group_of(value, channel) : 0;
    for (int64_t image = 0; image < value.shape.batch; image++) {
      const int64_t at = channel * value.shape.row() + image * value.shape.plane();
      const PlaneAffine affine = plane_affine(value, channel, group, image);
      body(channel, image, at, value.x + at, ActivatedAffine<A, float>(affine.scale, affine.shift));
    }
  }
}

// Calls body(i, kind) for all of a plane.  Where it is no multiple of a register the last one overlaps the one before:
// what it writes twice is the same.
template <class Body>
inline __attribute__((always_inline)) void for_each_overlapping(int64_t count, Body body) {
  if (count < kLanes) return for_each_lane(count, body);
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) body(i + part * kLanes, Vector{});
  for (; i + kLanes <= count; i += kLanes) body(i, Vector{});
  if (i < count) body(count - kLanes, Vector{});
}

// The sum of what add(i, kind, slot, sum) adds to it in [0, count).
template <class Add>
inline __attribute__((always_inline)) double sum_over(int64_t count, Add add) {
  double total = 0;
  for_each_part(count, [&](int64_t first, int64_t size) {
    SlotSum sum;
    for_each_slot(size, [&](int64_t i, auto kind, int slot) { add(first + i, kind, slot, sum); });
    total += sum.total();
  });
  return total;
}

// Sums over small planes, a register of channels at a time: nothing is added up across lanes, and the sums of
// neighbouring channels lie side by side.  Plane by plane 3 x 3 pixels took three times the instructions.
// out[image, channel] = factor * the sum over the plane of add(pixel's value, the same pixel of each of `planes`...)
template <Activation A, class Add, class... Planes>
void sum_lanes(
    const Value& given, float factor, float* out, int64_t begin, int64_t end, Add add, const Planes*... planes) {
  const Value value = given;
  const int64_t plane = value.shape.plane(), row = value.shape.row();
  for (int64_t first = begin; first < end; first += kLanes)
    for (int64_t image = 0; image < value.shape.batch; image++) {
      const LaneAffine affine = lane_affine(value, first, end, image);
      const ActivatedAffine<A, Vector> value_of(affine.scale, affine.shift);
      Vector total = {};
      for_each_pixel(
          plane, [&](int64_t, Vector x, auto... others) { total += add(value_of(x), others...); },
          LaneRows<const float>(value.x + image * plane, row, first, end),
          LaneRows<const float>(planes + image * plane, row, first, end)...);
      store_lanes(out + image * value.shape.channels, first, end, total * factor);
    }
}

// With the gate and the residual known to be there or not when the loop is compiled.
template <Activation A, bool Gated, bool Residual>
void write_out(const Value& value, const float* gate, const float* residual, float* out, int64_t begin, int64_t end) {
  const int64_t channels = value.shape.channels, plane = value.shape.plane();
  for_each_plane<A>(value, begin, end, [=](int64_t channel, int64_t image, int64_t at, const float* x, auto value_of) {
    const float factor = Gated ? gate[image * channels + channel] : 1.0f;
    const float* added = Residual ? residual + at : nullptr;
    float* to = out + at;
    for_each_overlapping(plane, [=](int64_t i, auto kind) {
      auto y = value_of(load_as(x + i, kind));
      if constexpr (Gated) y *= factor;
      if constexpr (Residual) y += load_as(added + i, kind);
      store_as(to + i, y);
    });
  });
}

}  // namespace

void materialise(const Value& value, const float* gate, const float* residual, float* out, int64_t begin, int64_t end) {
  with_activation(value.activation, [&]<Activation A>() {
    const auto write = gate ? (residual ? write_out<A, true, true> : write_out<A, true, false>)
                            : (residual ? write_out<A, false, true> : write_out<A, false, false>);
    write(value, gate, residual, out, begin, end);
  });
}

void pooled_mean(const Value& value, float* out, int64_t begin, int64_t end) {
  const int64_t channels = value.shape.channels, plane = value.shape.plane();
  with_activation(value.activation, [&]<Activation A>() {
    if (is_small(value.shape))
      return sum_lanes<A>(value, 1 / static_cast<float>(plane), out, begin, end, [](Vector y) { return y; });
    for_each_plane<A>(
        value, begin, end,
        [=](int64_t channel, int64_t image, [[maybe_unused]] int64_t at, const float* x, auto value_of) {
          const double total = sum_over(plane, [=](int64_t i, auto kind, int slot, SlotSum& sum) {
            sum.add(value_of(load_as(x + i, kind)), slot);
          });
          out[image * channels + channel] = static_cast<float>(total / static_cast<double>(plane));
        });
  });
}

void pooled_product(const float* gradient, const Value& value, float* out, int64_t begin, int64_t end) {
  const int64_t channels = value.shape.channels, plane = value.shape.plane();
  with_activation(value.activation, [&]<Activation A>() {
    if (is_small(value.shape))
      return sum_lanes<A>(value, 1, out, begin, end, [](Vector y, Vector g) { return y * g; }, gradient);
    for_each_plane<A>(
        value, begin, end,
        [=](int64_t channel, int64_t image, [[maybe_unused]] int64_t at, const float* x, auto value_of) {
          const double total = sum_over(plane, [=](int64_t i, auto kind, int slot, SlotSum& sum) {
            sum.add_product(value_of(load_as(x + i, kind)), load_as(gradient + at + i, kind), slot);
          });
          out[image * channels + channel] = static_cast<float>(total);
        });
  });
}

void channel_sums(const float* x, Shape shape, float* out, int64_t begin, int64_t end) {
  for (int64_t channel = begin; channel < end; channel++) {
    const float* row = x + channel * shape.row();
    const double total = sum_over(
        shape.row(), [=](int64_t i, auto kind, int slot, SlotSum& sum) { sum.add(load_as(row + i, kind), slot); });
    out[channel] = static_cast<float>(total);
  }
}

void activate(const float* x, Activation activation, float* out, int64_t begin, int64_t end) {
  with_activation(activation, [&]<Activation A>() {
    for_each_lane(end - begin, [&](int64_t i, auto kind) {
      store_as(out + begin + i, activated<A>(load_as(x + begin + i, kind)));
    });
  });
}

void activation_gradient(
    const float* gradient, const float* x, Activation activation, float* out, int64_t begin, int64_t end) {
  with_activation(activation, [&]<Activation A>() {
    for_each_lane(end - begin, [&](int64_t i, auto kind) {
      store_as(
          out + begin + i, through_activation<A>(load_as(gradient + begin + i, kind), load_as(x + begin + i, kind)));
    });
  });
}

}  // namespace fedss::FEDSS_ISA
