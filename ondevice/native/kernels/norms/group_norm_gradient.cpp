// The gradient of GroupNorm and of the activation after it (He & Wu 2018).
//
//   value = activation(t),  t = gamma x^ + beta,  x^ = (x - mean) r,  r = 1 / sqrt(variance + epsilon)
//
// with one mean and one r per group and image.  With u = gradient * activation'(t) and n elements in a group:
//   beta' = sum u,  gamma' = sum u x^,  x' = r (gamma u - mean_n(gamma u) - x^ mean_n(gamma u x^))
// The sums come first; u is kept meanwhile where x' will be.
#include "kernels/norms/small_planes.h"
#include "kernels/registers/activation.h"
#include "kernels/registers/interleave.h"
#include "kernels/registers/scratch.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {
namespace {

// The parts of a `PlaneGradient`.  Most are planes alone; that they are is known when the loops are compiled.
enum class Form { planes, scaled, shift };

// What a `PlaneGradient` is within one plane.
template <Form F>
struct PartOfGradient {
  const float* planes;
  float scale, shift;

  PartOfGradient(const PlaneGradient& g, Shape shape, int64_t channel, int64_t image)
      : planes(F == Form::shift ? nullptr : g.planes + channel * shape.row() + image * shape.plane()),
        scale(g.scale ? g.scale[image * shape.channels + channel] : 1.0f),
        shift(g.shift ? g.shift[image * shape.channels + channel] : 0.0f) {}

  template <class T>
  inline __attribute__((always_inline)) T at(int64_t i, T kind) const {
    if constexpr (F == Form::planes) return load_as(planes + i, kind);
    if constexpr (F == Form::scaled) return load_as(planes + i, kind) * scale + shift;
    return T{} + shift;
  }
};

// The same of a plane of each of some channels, from `first` on.
template <Form F>
struct LaneGradient {
  Vector scale, shift;

  LaneGradient(const PlaneGradient& g, Shape shape, int64_t image, int64_t first, int64_t end)
      : scale(g.scale ? load_lanes(g.scale + image * shape.channels, first, end) : broadcast(1)),
        shift(g.shift ? load_lanes(g.shift + image * shape.channels, first, end) : Vector{}) {}

  Vector at() const { return shift; }
  Vector at(Vector pixel) const { return F == Form::planes ? pixel : pixel * scale + shift; }
};

// 1 in as many lanes, 0 in the others.
inline Vector lanes_before(int64_t count) {
  Vector ones = broadcast(1);
  for (int64_t lane = count; lane < kLanes; lane++) ones[lane] = 0;
  return ones;
}

struct Outputs {
  float *x, *gamma, *beta;
};

// What x' takes from the sums of an image's group: x' = gamma r u + (x - mean) of_x + constant.
struct Correction {
  float of_x, constant;
  // The sums of gamma u and of gamma u (x - mean) over n elements.
  Correction(double u_sum, double u_x_sum, double r, double n)
      : of_x(static_cast<float>(-r * r * r * u_x_sum / n)), constant(static_cast<float>(-r * u_sum / n)) {}
};

struct GroupMoments {
  const float *mean, *r;  // [batch]
  GroupMoments(const Value& value, int64_t group)
      : mean(value.moments + group * value.shape.batch), r(mean + value.groups * value.shape.batch) {}
};

template <Activation A, Form F>
void gradient_of_planes(const PlaneGradient& gradient, const Value& value, int64_t group, Images images, Outputs out) {
  const Shape shape = value.shape;
  const GroupMoments moments(value, group);
  const int64_t plane = shape.plane(), channels = shape.channels / value.groups;
  double u_sums[kImages] = {}, u_x_sums[kImages] = {};  // of gamma u and of gamma u (x - mean)
  for (int64_t channel = group * channels; channel < (group + 1) * channels; channel++) {
    const float gamma = value.gamma[channel];
    for (int64_t image = images.first; image < images.last; image++) {
      const float mean = moments.mean[image], r = moments.r[image];
      const AffineSlope<A> slope(gamma * r, value.beta[channel]);
      const PartOfGradient<F> g(gradient, shape, channel, image);
      const int64_t at = channel * shape.row() + image * plane;
      const float* x = value.x + at;
      float* u_kept = out.x + at;
      double u_total = 0, u_x_total = 0;
      for_each_part(plane, [&](int64_t first, int64_t size) {
        SlotSum u_sum, u_x_sum;
        for_each_slot(size, [&](int64_t i, auto kind, int slot) {
          const auto centred = load_as(x + first + i, kind) - mean;
          const auto u = slope.times(g.at(first + i, kind), centred);
          store_as(u_kept + first + i, u);
          u_sum.add(u, slot);
          u_x_sum.add_product(u, centred, slot);
        });
        u_total += u_sum.total(), u_x_total += u_x_sum.total();
      });
      out.beta[channel] += static_cast<float>(u_total);
      out.gamma[channel] += static_cast<float>(u_x_total * r);
      u_sums[image - images.first] += gamma * u_total;
      u_x_sums[image - images.first] += gamma * u_x_total;
    }
  }
  for (int64_t image = images.first; image < images.last; image++) {
    const float mean = moments.mean[image], r = moments.r[image];
    const double n = static_cast<double>(channels * plane);
    const Correction correction(u_sums[image - images.first], u_x_sums[image - images.first], r, n);
    for (int64_t channel = group * channels; channel < (group + 1) * channels; channel++) {
      const float scale = value.gamma[channel] * r;
      const float* x = value.x + channel * shape.row() + image * plane;
      float* u = out.x + channel * shape.row() + image * plane;
      for_each_slot(plane, [&](int64_t i, auto kind, int) {
        const auto of_group = (load_as(x + i, kind) - mean) * correction.of_x + correction.constant;
        store_as(u + i, load_as(u + i, kind) * scale + of_group);
      });
    }
  }
}

// The same for small planes, a register of channels at a time: no sum runs across lanes until all of a group is added
// up, and there is hardly anything to do per plane.  u and x - mean are `kept` meanwhile, side by side.
template <Activation A, Form F>
void gradient_of_lanes(
    const PlaneGradient& gradient, const Value& value, int64_t group, Images images, Outputs out, float* kept) {
  const Shape shape = value.shape;
  const GroupMoments moments(value, group);
  const int64_t plane = shape.plane(), row = shape.row(), channels = shape.channels / value.groups;
  const int64_t begin = group * channels, end = begin + channels;
  for (int64_t image = images.first; image < images.last; image++) {
    const float mean = moments.mean[image], r = moments.r[image];
    const int64_t at = image * plane;
    Vector u_of_group = {}, u_x_of_group = {};  // gamma u and gamma u (x - mean)
    float* to = kept;
    for (int64_t first = begin; first < end; first += kLanes) {
      const Vector gamma = load_lanes(value.gamma, first, end);
      const AffineSlope<A, Vector> slope(gamma * r, load_lanes(value.beta, first, end));
      const LaneGradient<F> g(gradient, shape, image, first, end);
      Vector u_sum = {}, u_x_sum = {};
      const auto add = [&](int64_t, Vector x, auto... given) __attribute__((always_inline)) {
        const Vector centred = x - mean, u = slope.times(g.at(given...), centred);
        store(to, u);
        store(to + kLanes, centred);
        to += 2 * kLanes;
        u_sum += u;
        u_x_sum += u * centred;
      };
      const LaneRows<const float> x(value.x + at, row, first, end);
      if constexpr (F == Form::shift) {
        for_each_pixel(plane, add, x);
      } else {
        for_each_pixel(plane, add, x, LaneRows<const float>(gradient.planes + at, row, first, end));
      }
      store_lanes(out.beta, first, end, load_lanes(out.beta, first, end) + u_sum);
      store_lanes(out.gamma, first, end, load_lanes(out.gamma, first, end) + u_x_sum * r);
      const Vector counted = gamma * lanes_before(end - first);
      u_of_group += counted * u_sum;
      u_x_of_group += counted * u_x_sum;
    }
    const Correction correction(sum_of(u_of_group), sum_of(u_x_of_group), r, static_cast<double>(channels * plane));
    const float* from = kept;
    for (int64_t first = begin; first < end; first += kLanes) {
      const Vector scale = load_lanes(value.gamma, first, end) * r;
      separate(plane, LaneRows<float>(out.x + at, row, first, end), [&](int64_t) __attribute__((always_inline)) {
        const Vector of_group = load(from + kLanes) * correction.of_x + correction.constant;
        const Vector x_gradient = load(from) * scale + of_group;
        from += 2 * kLanes;
        return x_gradient;
      });
    }
  }
}

}  // namespace

void group_norm_gradient(
    const PlaneGradient& gradient, const Value& value, float* x_gradient, float* gamma_gradient, float* beta_gradient,
    int64_t begin, int64_t end) {
  const Outputs out{x_gradient, gamma_gradient, beta_gradient};
  const int64_t channels = value.shape.channels / value.groups;
  for (int64_t channel = begin * channels; channel < end * channels; channel++)
    gamma_gradient[channel] = beta_gradient[channel] = 0;
  const auto of_form = [&]<Activation A, Form F>() {
    const bool small = is_small(value.shape);
    const int64_t in_registers = (channels + kLanes - 1) / kLanes * kLanes;
    Scratch kept(small ? 2 * in_registers * value.shape.plane() : 1);
    for (int64_t group = begin; group < end; group++)
      for_each_run_of_images(value.shape, [&](Images images) {
        if (small) return gradient_of_lanes<A, F>(gradient, value, group, images, out, kept.data());
        gradient_of_planes<A, F>(gradient, value, group, images, out);
      });
  };
  with_activation(value.activation, [&]<Activation A>() {
    if (!gradient.planes) return of_form.template operator()<A, Form::shift>();
    if (gradient.scale || gradient.shift) return of_form.template operator()<A, Form::scaled>();
    of_form.template operator()<A, Form::planes>();
  });
}

}  // namespace fedss::FEDSS_ISA
