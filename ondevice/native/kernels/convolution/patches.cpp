// Dense convolutions as matrix products: the patches that an image's kernel positions see, as a matrix, and back.
//
//   patches[c * kernel * kernel + i * kernel + j, h * width + w]
//     = image[c, h * stride + i - padding, w * stride + j - padding]
#include "kernels/kernels.h"
#include "kernels/registers/columns.h"

namespace fedss::FEDSS_ISA {
namespace {

// The output columns [first, last) whose input column lies inside the image, for tap column j.
struct Inside {
  int64_t first, last;
};

inline Inside inside(int64_t tap, Window window, int64_t in, int64_t out) {
  const int64_t before = window.padding - tap;  // > 0: the first positions look left of the image
  int64_t first = before > 0 ? (before + window.stride - 1) / window.stride : 0;
  const int64_t room = in - 1 + before;
  int64_t last = room < 0 ? 0 : room / window.stride + 1;
  if (last > out) last = out;
  if (first > last) first = last;
  return {first, last};
}

// to[w] = line[2 w] of columns [first, last).  One by one they were half of the stem's instructions.
inline void copy_every_second(const float* line, Inside columns, float* to) {
  int64_t w = columns.first;
  // What is loaded ends before the column after these: it is never more than the line has.
  for (; w + kLanes < columns.last; w += kLanes)
    store(to + w, __builtin_shuffle(load(line + 2 * w), load(line + 2 * w + kLanes), kEven));
  for (; w < columns.last; w++) to[w] = line[2 * w];
}

}  // namespace

void gather_patches(
    const float* image, int64_t channel_stride, Shape x_shape, Shape out_shape, Window window, float* patches,
    int64_t begin, int64_t end) {
  const int64_t taps = window.kernel * window.kernel;
  for (int64_t row = begin; row < end; row++) {
    const int64_t channel = row / taps, i = row % taps / window.kernel, j = row % window.kernel;
    const Inside columns = inside(j, window, x_shape.width, out_shape.width);
    const float* from = image + channel * channel_stride;
    for (int64_t h = 0; h < out_shape.height; h++) {
      float* to = patches + row * out_shape.plane() + h * out_shape.width;
      const int64_t y = h * window.stride + i - window.padding;
      if (y < 0 || y >= x_shape.height) {
        std::memset(to, 0, out_shape.width * sizeof(float));
        continue;
      }
      const float* line = from + y * x_shape.width + j - window.padding;
      for (int64_t w = 0; w < columns.first; w++) to[w] = 0;
      if (window.stride == 1) {
        std::memcpy(to + columns.first, line + columns.first, (columns.last - columns.first) * sizeof(float));
      } else if (window.stride == 2) {
        copy_every_second(line, columns, to);
      } else {
        for (int64_t w = columns.first; w < columns.last; w++) to[w] = line[w * window.stride];
      }
      for (int64_t w = columns.last; w < out_shape.width; w++) to[w] = 0;
    }
  }
}

void scatter_patches(
    const float* patches, Shape out_shape, Window window, float* image, int64_t channel_stride, Shape x_shape,
    int64_t begin, int64_t end) {
  for (int64_t channel = begin; channel < end; channel++) {
    float* to = image + channel * channel_stride;
    std::memset(to, 0, x_shape.plane() * sizeof(float));
    for (int64_t i = 0; i < window.kernel; i++)
      for (int64_t j = 0; j < window.kernel; j++) {
        const Inside columns = inside(j, window, x_shape.width, out_shape.width);
        const float* from = patches + ((channel * window.kernel + i) * window.kernel + j) * out_shape.plane();
        for (int64_t h = 0; h < out_shape.height; h++) {
          const int64_t y = h * window.stride + i - window.padding;
          if (y < 0 || y >= x_shape.height) continue;
          float* line = to + y * x_shape.width + j - window.padding;
          for (int64_t w = columns.first; w < columns.last; w++)
            line[w * window.stride] += from[h * out_shape.width + w];
        }
      }
  }
}

}  // namespace fedss::FEDSS_ISA
