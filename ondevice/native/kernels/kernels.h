// The kernel library's interface: plain pointers and sizes, no runtime.  `operators/*.cpp` register it.
//
// Activations and their gradients lie as [channels, batch, height, width], so that a 1x1 convolution and both of its
// gradients are single matrix products of [channels, batch * height * width] matrices without any copy.  Per-example
// vectors (pooled features, gates, embeddings) lie as [batch, channels].
//
// The output of GroupNorm and of the activation after it is never stored.  It is a function of the convolution's output
// and of four numbers per channel and image, so whoever reads it recomputes it while reading: see `Value`.
//
// Every kernel works on a range of independent items [begin, end), so that the caller may give ranges to threads.
#pragma once

#include <cstdint>

namespace fedss {

enum class Activation : int64_t {
  none = 0,
  relu = 1,
  hardswish = 2,
  hardsigmoid = 3,
  relu6 = 4,
  sigmoid = 5,
  silu = 6,
  tanh = 7,
  gelu = 8,
  gelu_tanh = 9,
  softplus = 10
};

struct Shape {
  int64_t channels, batch, height, width;
  int64_t plane() const { return height * width; }
  int64_t row() const { return batch * plane(); }  // everything of one channel
};

// A matrix seen through strides: transposing is swapping them.  One of the two is 1 (or 0, to repeat a vector).
struct Matrix {
  const float* data;
  int64_t row_stride, column_stride;
  Matrix transposed() const { return {data, column_stride, row_stride}; }
};

inline Matrix row_major(const float* values, int64_t columns) { return {values, columns, 1}; }

// activation(GroupNorm(x)): x as it lies in memory, and what turns it into the value.  Without gamma it is x itself.
struct Value {
  const float* x;
  Shape shape;
  const float* moments;  // [2, groups, batch]: mean, then 1 / standard deviation
  const float* gamma;    // [channels], or null
  const float* beta;     // [channels]
  int64_t groups;
  Activation activation;
};

// out [rows, columns] = start + a [rows, depth] * b [depth, columns]; start may be null, meaning 0.
struct Product {
  int64_t rows, columns, depth;
  Matrix a, b, start;
  float* out;
  int64_t out_stride;
  // With an x: `b` is x [channels, batch * plane] or its transpose, and what is multiplied is the value times the gate.
  Value value = {};
  const float* gate = nullptr;  // [batch, channels], or null
};

// A gradient with respect to a `Value`: planes * scale + shift; each part may be null (planes and
// shift then count as 0, scale as 1).  Squeeze-and-excite and average pooling have gradients of this form.
struct PlaneGradient {
  const float* planes;  // [channels, batch, height, width]
  const float* scale;   // [batch, channels]
  const float* shift;   // [batch, channels]
};

struct Window {
  int64_t kernel, stride, padding;
};

// A window with sizes of its own in height and in width.
struct Grid {
  int64_t kernel_height, kernel_width, stride_height, stride_width;
  int64_t padding_height, padding_width, dilation_height, dilation_width;
};

// What the sum of a window is divided by: a number, or, where that is 0, its pixels with or without the padding.
struct AverageBy {
  int64_t divisor, count_padding;
};

// Sizes or strides of four dimensions.
struct Extents {
  int64_t first, second, third, fourth;
};

struct Kernels {
  const char* instruction_set;
#define FEDSS_KERNEL(returns, name, ...) returns (*name)(__VA_ARGS__);
#include "kernels/kernel_list.h"
#undef FEDSS_KERNEL
};

const Kernels& kernels();  // for this processor

}  // namespace fedss

// The build for one instruction set by its name, or null if this processor lacks it: for tests, which try every one.
extern "C" const fedss::Kernels* fedss_kernels(const char* instruction_set);
