// The moments of GroupNorm: mean and 1 / standard deviation of every group of channels, image by image.
//
// Numbers are centred before they are squared, so that nothing cancels: an estimate of the mean comes first, from a
// quarter of the numbers.  A quarter's mean is at most sqrt 3 standard deviations from that of all, whatever the
// numbers are, so the squares are at most 4 times as large as those around the mean itself.  What the estimate is off
// is then known: it is the mean of what it leaves.  That also takes out the rounding of a flat plane, where every
// addition rounds the same way.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/norms/small_planes.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {
namespace {

inline int64_t quarter_of(int64_t count) { return (count + 3) / 4; }

// What is known of an image's group so far; parts join it one by one (Chan, Golub & LeVeque 1983).
struct Moments {
  double mean = 0, squares = 0, count = 0;
  // A part of so many elements: its numbers less `centre` have sum `left`, their squares sum `squared`.
  void join(double centre, double left, double squared, double elements) {
    const double off = left / elements, part_mean = centre + off;
    const double apart = part_mean - mean, joined = count + elements;
    squares += squared - off * left + apart * apart * count * elements / joined;
    mean += apart * elements / joined;
    count = joined;
  }
  void write(float epsilon, float* to_mean, float* to_inverse_deviation) const {
    const double variance = squares / count;
    *to_mean = static_cast<float>(mean);
    *to_inverse_deviation = static_cast<float>(1 / std::sqrt((variance > 0 ? variance : 0) + epsilon));
  }
};

void join_part(const float* x, int64_t size, Moments& moments) {
  // Not less than a few registers: a quarter of a plane costs no more than that.
  const int64_t some = size < 4 * kLanes ? size : quarter_of(size);
  SlotSum estimate, left, squares;
  for_each_slot(some, [&](int64_t i, auto kind, int slot) { estimate.add(load_as(x + i, kind), slot); });
  const float centre = estimate.total() / static_cast<float>(some);
  for_each_slot(size, [&](int64_t i, auto kind, int slot) {
    const auto centred = load_as(x + i, kind) - centre;
    left.add(centred, slot);
    squares.add_product(centred, centred, slot);
  });
  moments.join(centre, left.total(), squares.total(), static_cast<double>(size));
}

// Where planes are small, a group's channels are added up pixel by pixel first, all images side by side.
void moments_of_rows(
    const float* x, Shape shape, int64_t channels, Images images, float epsilon, float* means, float* deviations) {
  const int64_t plane = shape.plane(), stride = shape.row(), size = (images.last - images.first) * plane;
  const int64_t some = quarter_of(channels);
  x += images.first * plane;
  float centre[kRow], left[kRow], squares[kRow];
  std::memset(left, 0, size * sizeof(float));
  std::memset(squares, 0, size * sizeof(float));
  for_each_channel<4>(some, [&]<int N>(int64_t first) {
    const float* from = x + first * stride;
    for_each_lane(size, [&](int64_t i, auto kind) {
      auto total = load_as(left + i, kind);
#pragma GCC unroll 4
      for (int channel = 0; channel < N; channel++) total += load_as(from + channel * stride + i, kind);
      store_as(left + i, total);
    });
  });
  for (int64_t at = 0; at < size; at += plane)
    spread(sum_of(left + at, plane) / static_cast<float>(some * plane), plane, centre + at);
  std::memset(left, 0, size * sizeof(float));
  for_each_channel<4>(channels, [&]<int N>(int64_t first) {
    const float* from = x + first * stride;
    for_each_lane(size, [&](int64_t i, auto kind) {
      const auto around = load_as(centre + i, kind);
      auto left_here = load_as(left + i, kind), squares_here = load_as(squares + i, kind);
#pragma GCC unroll 4
      for (int channel = 0; channel < N; channel++) {
        const auto centred = load_as(from + channel * stride + i, kind) - around;
        left_here += centred;
        squares_here += centred * centred;
      }
      store_as(left + i, left_here);
      store_as(squares + i, squares_here);
    });
  });
  for (int64_t image = images.first; image < images.last; image++) {
    const int64_t at = (image - images.first) * plane;
    Moments moments;
    moments.join(
        centre[at], sum_of(left + at, plane), sum_of(squares + at, plane), static_cast<double>(channels * plane));
    moments.write(epsilon, means + image, deviations + image);
  }
}

void moments_of_planes(
    const float* x, Shape shape, int64_t channels, Images images, float epsilon, float* means, float* deviations) {
  Moments moments[kImages];
  for (int64_t channel = 0; channel < channels; channel++)
    for (int64_t image = images.first; image < images.last; image++) {
      const float* plane = x + channel * shape.row() + image * shape.plane();
      for_each_part(shape.plane(), [&](int64_t first, int64_t size) {
        join_part(plane + first, size, moments[image - images.first]);
      });
    }
  for (int64_t image = images.first; image < images.last; image++)
    moments[image - images.first].write(epsilon, means + image, deviations + image);
}

}  // namespace

void group_moments(const float* x, Shape shape, int64_t groups, float epsilon, float* out, int64_t begin, int64_t end) {
  const int64_t channels = shape.channels / groups;
  const auto moments_of = is_small(shape) ? moments_of_rows : moments_of_planes;
  for (int64_t group = begin; group < end; group++)
    for_each_run_of_images(shape, [&](Images images) {
      moments_of(
          x + group * channels * shape.row(), shape, channels, images, epsilon, out + group * shape.batch,
          out + (groups + group) * shape.batch);
    });
}

}  // namespace fedss::FEDSS_ISA
