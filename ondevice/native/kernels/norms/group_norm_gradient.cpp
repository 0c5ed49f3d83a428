// The gradient of GroupNorm and of the activation after it (He & Wu 2018).
//
//   value = activation(t),  t = gamma x^ + beta,  x^ = (x - mean) r,  r = 1 / sqrt(variance + epsilon)
//
// with one mean and one r per group and image.  With u = gradient * activation'(t) and n elements in a group:
//   beta' = sum u,  gamma' = sum u x^,  x' = r (gamma u - mean_n(gamma u) - x^ mean_n(gamma u x^))
// The sums come first; u is kept meanwhile where x' will be.
#include "kernels/norms/small_planes.h"
#include "kernels/registers/activation.h"
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

// The gradient along a row of images: as it lies in memory, or computed into `row`.
template <Form F>
inline const float* row_of(const PlaneGradient& gradient, Shape shape, int64_t channel, Images images, float* row) {
  const int64_t plane = shape.plane();
  if constexpr (F == Form::planes) return gradient.planes + channel * shape.row() + images.first * plane;
  for (int64_t image = images.first; image < images.last; image++) {
    const PartOfGradient<F> g(gradient, shape, channel, image);
    float* to = row + (image - images.first) * plane;
    if constexpr (F == Form::shift) {
      spread(g.shift, plane, to);
    } else {
      for_each_lane(plane, [&](int64_t i, auto kind) { store_as(to + i, g.at(i, kind)); });
    }
  }
  return row;
}

// What belongs to an image, along its part of a row; and what is summed up there.
struct Rows {
  float mean[kRow], r[kRow], u_sum[kRow], u_x_sum[kRow], of_x[kRow], constant[kRow];
  float gradient[2][kRow];
};

// Keeps u of N channels, from `channel` on, and adds it to all sums.
template <Activation A, Form F, int N>
inline void add_channels(
    const PlaneGradient& gradient, const Value& value, int64_t channel, Images images, Outputs out, Rows& rows) {
  const Shape shape = value.shape;
  const int64_t size = (images.last - images.first) * shape.plane();
  const int64_t at = channel * shape.row() + images.first * shape.plane();
  const float *x[N], *g[N];
  float *u_kept[N], gamma[N];
  AffineSlope<A> slope[N];
  Vector u_sum[N] = {}, u_x_sum[N] = {};
  float u_rest[N] = {}, u_x_rest[N] = {};
  for (int n = 0; n < N; n++) {
    x[n] = value.x + at + n * shape.row();
    u_kept[n] = out.x + at + n * shape.row();
    g[n] = row_of<F>(gradient, shape, channel + n, images, rows.gradient[n]);
    gamma[n] = value.gamma[channel + n];
    slope[n] = AffineSlope<A>(gamma[n], value.beta[channel + n]);
  }
  const auto add = [&](int64_t i, auto kind, auto& u_sums, auto& u_x_sums) __attribute__((always_inline)) {
    const auto mean = load_as(rows.mean + i, kind), r = load_as(rows.r + i, kind);
    auto u_of_row = load_as(rows.u_sum + i, kind), u_x_of_row = load_as(rows.u_x_sum + i, kind);
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
      const auto normalised = (load_as(x[n] + i, kind) - mean) * r;
      const auto u = slope[n].times(load_as(g[n] + i, kind), normalised), u_x = u * normalised;
      store_as(u_kept[n] + i, u);
      u_sums[n] += u;
      u_x_sums[n] += u_x;
      u_of_row += u * gamma[n];
      u_x_of_row += u_x * gamma[n];
    }
    store_as(rows.u_sum + i, u_of_row);
    store_as(rows.u_x_sum + i, u_x_of_row);
  };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) add(i, Vector{}, u_sum, u_x_sum);
  for (; i < size; i++) add(i, 0.0f, u_rest, u_x_rest);
  for (int n = 0; n < N; n++) {
    out.beta[channel + n] += sum_of(u_sum[n]) + u_rest[n];
    out.gamma[channel + n] += sum_of(u_x_sum[n]) + u_x_rest[n];
  }
}

// x' where u was kept.
template <int N>
inline void finish_channels(const Value& value, int64_t channel, Images images, const Rows& rows, float* x_gradient) {
  const Shape shape = value.shape;
  const int64_t at = channel * shape.row() + images.first * shape.plane();
  const float* x[N];
  float *u[N], gamma[N];
  for (int n = 0; n < N; n++) {
    x[n] = value.x + at + n * shape.row();
    u[n] = x_gradient + at + n * shape.row();
    gamma[n] = value.gamma[channel + n];
  }
  for_each_lane((images.last - images.first) * shape.plane(), [&](int64_t i, auto kind) {
    const auto mean = load_as(rows.mean + i, kind), r = load_as(rows.r + i, kind);
    const auto of_x = load_as(rows.of_x + i, kind), constant = load_as(rows.constant + i, kind);
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
      const auto of_group = (load_as(x[n] + i, kind) - mean) * of_x + constant;
      store_as(u[n] + i, load_as(u[n] + i, kind) * r * gamma[n] + of_group);
    }
  });
}

// Below this many pixels: those of 6 x 6 take fewer instructions on their own.
constexpr int64_t kRowsBelow = 32;

// The same for small planes, all images of a channel side by side and two channels at a time.
template <Activation A, Form F>
void gradient_of_rows(const PlaneGradient& gradient, const Value& value, int64_t group, Images images, Outputs out) {
  const GroupMoments moments(value, group);
  const int64_t plane = value.shape.plane(), channels = value.shape.channels / value.groups;
  const int64_t size = (images.last - images.first) * plane;
  Rows rows;
  std::memset(rows.u_sum, 0, size * sizeof(float));
  std::memset(rows.u_x_sum, 0, size * sizeof(float));
  for (int64_t image = images.first; image < images.last; image++) {
    spread(moments.mean[image], plane, rows.mean + (image - images.first) * plane);
    spread(moments.r[image], plane, rows.r + (image - images.first) * plane);
  }
  for_each_channel<2>(channels, [&]<int N>(int64_t channel) {
    add_channels<A, F, N>(gradient, value, group * channels + channel, images, out, rows);
  });
  for (int64_t image = images.first; image < images.last; image++) {
    const int64_t at = (image - images.first) * plane;
    const double u = sum_of(rows.u_sum + at, plane), u_x = sum_of(rows.u_x_sum + at, plane), r = moments.r[image];
    const Correction correction(u, u_x / r, r, static_cast<double>(channels * plane));
    spread(correction.of_x, plane, rows.of_x + at);
    spread(correction.constant, plane, rows.constant + at);
  }
  for_each_channel<2>(channels, [&]<int N>(int64_t channel) {
    finish_channels<N>(value, group * channels + channel, images, rows, out.x);
  });
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
    const auto gradient_of = value.shape.plane() < kRowsBelow ? gradient_of_rows<A, F> : gradient_of_planes<A, F>;
    for (int64_t group = begin; group < end; group++)
      for_each_run_of_images(value.shape, [&](Images images) { gradient_of(gradient, value, group, images, out); });
  };
  with_activation(value.activation, [&]<Activation A>() {
    if (!gradient.planes) return of_form.template operator()<A, Form::shift>();
    if (gradient.scale || gradient.shift) return of_form.template operator()<A, Form::scaled>();
    of_form.template operator()<A, Form::planes>();
  });
}

}  // namespace fedss::FEDSS_ISA
