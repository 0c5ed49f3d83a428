// GroupNorm and the activation after it (He & Wu 2018): moments, the value, its means, and the gradient.
//
//   value = activation(t),  t = gamma (x - mean) r + beta,  r = 1 / sqrt(variance + epsilon)
//
// with one mean and one r per group and image.  With u = gradient * activation'(t) and n elements in a group:
//   beta' = sum u,  gamma' = sum u x^,  x' = r (gamma u - mean_n(gamma u) - x^ mean_n(gamma u x^)),  x^ = (x - mean) r
#include <cmath>

#include "kernels/activation.h"

namespace fedss::FEDSS_ISA {
namespace {

// What a `PlaneGradient` is within one plane.
struct PartOfGradient {
  const float* planes;  // null: 0
  float scale, shift;
};

inline PartOfGradient part_of(const PlaneGradient& g, Shape shape, int64_t channel, int64_t image) {
  const int64_t vector_at = image * shape.channels + channel;
  return {
      g.planes ? g.planes + channel * shape.row() + image * shape.plane() : nullptr,
      g.scale ? g.scale[vector_at] : 1.0f, g.shift ? g.shift[vector_at] : 0.0f};
}

template <class T>
inline T gradient_at(const PartOfGradient& g, int64_t i, T kind) {
  return g.planes ? load_as(g.planes + i, kind) * g.scale + g.shift : T{} + g.shift;
}

// Planes in the order in which they lie in memory.
template <class Body>
inline void for_each_plane(const Value& value, int64_t begin, int64_t end, Body body) {
  for (int64_t channel = begin; channel < end; channel++) {
    const int64_t group = value.gamma ? group_of(value, channel) : 0;
    for (int64_t image = 0; image < value.shape.batch; image++) {
      const int64_t at = channel * value.shape.row() + image * value.shape.plane();
      body(channel, image, at, plane_affine(value, channel, group, image));
    }
  }
}

// Per-image sums of a group are kept on the stack, for this many images at a time: the images of a channel lie side by
// side, and going along them is going along memory.
constexpr int64_t kImagesAtATime = 64;

struct Images {
  int64_t first, last;
};

template <class Body>
inline void for_each_run_of_images(int64_t batch, Body body) {
  for (int64_t first = 0; first < batch; first += kImagesAtATime)
    body(Images{first, first + kImagesAtATime < batch ? first + kImagesAtATime : batch});
}

template <Activation A>
void group_gradient(
    const PlaneGradient& gradient, const Value& value, int64_t group, Images images, float* x_gradient,
    float* gamma_gradient, float* beta_gradient) {
  const Shape shape = value.shape;
  const int64_t plane = shape.plane(), channels = shape.channels / value.groups;
  double u_sums[kImagesAtATime] = {}, u_x_sums[kImagesAtATime] = {};  // of gamma u and of gamma u x^
  for (int64_t channel = group * channels; channel < (group + 1) * channels; channel++) {
    for (int64_t image = images.first; image < images.last; image++) {
      const PlaneAffine affine = plane_affine(value, channel, group, image);
      const PartOfGradient g = part_of(gradient, shape, channel, image);
      const float* x = value.x + channel * shape.row() + image * plane;
      Accumulator u_sum, u_x_sum;
      for_each_lane(plane, [&](int64_t i, auto kind) {
        const auto at = load_as(x + i, kind);
        const auto u = through_activation<A>(gradient_at(g, i, kind), at * affine.scale + affine.shift);
        u_sum.add(u);
        u_x_sum.add(u * (at - affine.mean));
      });
      const float u = u_sum.total(), u_x = u_x_sum.total() * affine.inverse_deviation;
      beta_gradient[channel] += u;
      gamma_gradient[channel] += u_x;
      u_sums[image - images.first] += static_cast<double>(value.gamma[channel]) * u;
      u_x_sums[image - images.first] += static_cast<double>(value.gamma[channel]) * u_x;
    }
  }
  const double share = 1.0 / static_cast<double>(channels * plane);
  for (int64_t channel = group * channels; channel < (group + 1) * channels; channel++) {
    for (int64_t image = images.first; image < images.last; image++) {
      const PlaneAffine affine = plane_affine(value, channel, group, image);
      const PartOfGradient g = part_of(gradient, shape, channel, image);
      const float r = affine.inverse_deviation;
      const float of_x = -r * r * static_cast<float>(u_x_sums[image - images.first] * share);
      const float constant = -r * static_cast<float>(u_sums[image - images.first] * share);
      const int64_t at = channel * shape.row() + image * plane;
      const float* x = value.x + at;
      float* out = x_gradient + at;
      for_each_lane(plane, [&](int64_t i, auto kind) {
        const auto x_at = load_as(x + i, kind);
        const auto u = through_activation<A>(gradient_at(g, i, kind), x_at * affine.scale + affine.shift);
        store_as(out + i, u * affine.scale + ((x_at - affine.mean) * of_x + constant));
      });
    }
  }
}

// The numbers of a flat plane all round the same way as they are added up.  From so many on, the mean is corrected by
// what it is off: the mean of what it leaves.
constexpr int64_t kLongSum = 16 * kLanes;

// What is known of an image's group so far; planes join it one by one (Chan, Golub & LeVeque 1983).
struct Moments {
  double mean = 0, squares = 0, count = 0;
  void join(double plane_mean, double plane_squares, double elements) {
    const double apart = plane_mean - mean, joined = count + elements;
    squares += plane_squares + apart * apart * count * elements / joined;
    mean += apart * elements / joined;
    count = joined;
  }
};

}  // namespace

void group_moments(const float* x, Shape shape, int64_t groups, float epsilon, float* out, int64_t begin, int64_t end) {
  const int64_t plane = shape.plane(), channels = shape.channels / groups;
  for (int64_t group = begin; group < end; group++)
    for_each_run_of_images(shape.batch, [&](Images images) {
      Moments moments[kImagesAtATime];
      for (int64_t channel = group * channels; channel < (group + 1) * channels; channel++)
        for (int64_t image = images.first; image < images.last; image++) {
          // In two passes, of which the second reads the cache: no cancellation.  It also says what the first one's
          // mean is off: over a flat plane every addition rounds the same way.
          const float* from = x + channel * shape.row() + image * plane;
          Accumulator total, squares, left;
          for_each_lane(plane, [&](int64_t i, auto kind) { total.add(load_as(from + i, kind)); });
          const float mean = total.total() / static_cast<float>(plane);
          if (plane < kLongSum) {
            for_each_lane(plane, [&](int64_t i, auto kind) {
              const auto centred = load_as(from + i, kind) - mean;
              squares.add(centred * centred);
            });
          } else {
            for_each_lane(plane, [&](int64_t i, auto kind) {
              const auto centred = load_as(from + i, kind) - mean;
              left.add(centred);
              squares.add(centred * centred);
            });
          }
          const double elements = static_cast<double>(plane), off = left.total() / elements;
          moments[image - images.first].join(mean + off, squares.total() - off * off * elements, elements);
        }
      for (int64_t image = images.first; image < images.last; image++) {
        const Moments& m = moments[image - images.first];
        out[group * shape.batch + image] = static_cast<float>(m.mean);
        out[(groups + group) * shape.batch + image] = static_cast<float>(1 / std::sqrt(m.squares / m.count + epsilon));
      }
    });
}

void group_norm_gradient(
    const PlaneGradient& gradient, const Value& value, float* x_gradient, float* gamma_gradient, float* beta_gradient,
    int64_t begin, int64_t end) {
  const int64_t channels = value.shape.channels / value.groups;
  for (int64_t channel = begin * channels; channel < end * channels; channel++)
    gamma_gradient[channel] = beta_gradient[channel] = 0;
  with_activation(value.activation, [&]<Activation A>() {
    for (int64_t group = begin; group < end; group++)
      for_each_run_of_images(value.shape.batch, [&](Images images) {
        group_gradient<A>(gradient, value, group, images, x_gradient, gamma_gradient, beta_gradient);
      });
  });
}

void materialise(const Value& value, const float* gate, const float* residual, float* out, int64_t begin, int64_t end) {
  with_activation(value.activation, [&]<Activation A>() {
    for_each_plane(value, begin, end, [&](int64_t channel, int64_t image, int64_t at, PlaneAffine affine) {
      const float factor = gate ? gate[image * value.shape.channels + channel] : 1.0f;
      for_each_lane(value.shape.plane(), [&](int64_t i, auto kind) {
        auto y = activated<A>(load_as(value.x + at + i, kind) * affine.scale + affine.shift) * factor;
        if (residual) y += load_as(residual + at + i, kind);
        store_as(out + at + i, y);
      });
    });
  });
}

void pooled_mean(const Value& value, float* out, int64_t begin, int64_t end) {
  with_activation(value.activation, [&]<Activation A>() {
    for_each_plane(value, begin, end, [&](int64_t channel, int64_t image, int64_t at, PlaneAffine affine) {
      Accumulator total;
      for_each_lane(value.shape.plane(), [&](int64_t i, auto kind) {
        total.add(activated<A>(load_as(value.x + at + i, kind) * affine.scale + affine.shift));
      });
      out[image * value.shape.channels + channel] = total.total() / static_cast<float>(value.shape.plane());
    });
  });
}

void pooled_product(const float* gradient, const Value& value, float* out, int64_t begin, int64_t end) {
  with_activation(value.activation, [&]<Activation A>() {
    for_each_plane(value, begin, end, [&](int64_t channel, int64_t image, int64_t at, PlaneAffine affine) {
      Accumulator total;
      for_each_lane(value.shape.plane(), [&](int64_t i, auto kind) {
        const auto y = activated<A>(load_as(value.x + at + i, kind) * affine.scale + affine.shift);
        total.add(y * load_as(gradient + at + i, kind));
      });
      out[image * value.shape.channels + channel] = total.total();
    });
  });
}

void channel_sums(const float* x, Shape shape, float* out, int64_t begin, int64_t end) {
  for (int64_t channel = begin; channel < end; channel++) {
    Accumulator total;
    for_each_lane(shape.row(), [&](int64_t i, auto kind) { total.add(load_as(x + channel * shape.row() + i, kind)); });
    out[channel] = total.total();
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
