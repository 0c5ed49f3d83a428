// Dense and depthwise convolutions as operators of ExecuTorch.  A dense one is, image by image, a matrix product with
// the image's patches; a depthwise one reads its input through GroupNorm and activation.
#include <memory>
#include <utility>

#include "kernels/kernels.h"
#include "operators/operator_call.h"
#include "operators/work_sharing.h"

namespace fedss {
namespace {

// What a dense convolution works on: planes [C, B, H, W], or the images as they come in, [B, C, H, W].
struct DenseInput {
  const float* data;
  Shape shape;
  int64_t channel_stride, image_stride;
};

DenseInput dense_input(const Tensor& x, bool batch_first) {
  Shape shape = shape_of(x);
  if (batch_first) std::swap(shape.channels, shape.batch);
  if (batch_first) return {data(x), shape, shape.plane(), shape.channels * shape.plane()};
  return {data(x), shape, shape.row(), shape.plane()};
}

// The patch matrix of one image after the other, in one piece of memory.
class Patches {
 public:
  Patches(Shape x_shape, Shape out_shape, Window window)
      : rows(x_shape.channels * window.kernel * window.kernel),
        columns(out_shape.plane()),
        values(new float[rows * columns]) {}
  const int64_t rows, columns;
  const std::unique_ptr<float[]> values;
};

void gather(const DenseInput& x, int64_t image, Shape out_shape, Window window, Patches& patches) {
  share(patches.rows, patches.rows * patches.columns, [&](int64_t begin, int64_t end) {
    kernels().gather_patches(
        x.data + image * x.image_stride, x.channel_stride, x.shape, out_shape, window, patches.values.get(), begin,
        end);
  });
}

// x, weight, bias?, stride, padding, batch_first
void convolution(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &x_tensor = call.planes(), &weight = call.planes();
  const Tensor* bias = call.optional_tensor();
  const Window window{size(weight, 2), call.integer(), call.integer()};
  const DenseInput x = dense_input(x_tensor, call.boolean());
  const Shape shape = convolved(size(weight, 0), x.shape, window);
  call.require(fits(window, x.shape) && has_sizes(bias, {shape.channels}));
  call.require(has_sizes(weight, {shape.channels, x.shape.channels, window.kernel, window.kernel}));
  float* out = call.output(shape);
  if (!out) return;
  Patches patches(x.shape, shape, window);
  for (int64_t image = 0; image < shape.batch; image++) {
    gather(x, image, shape, window, patches);
    multiply(
        {shape.channels,
         patches.columns,
         patches.rows,
         row_major(data(weight), patches.rows),
         row_major(patches.values.get(), patches.columns),
         {data(bias), 1, 0},
         out + image * shape.plane(),
         shape.row()});
  }
}

// gradient, weight, stride, padding, height, width
void convolution_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &weight = call.planes();
  const Window window{size(weight, 2), call.integer(), call.integer()};
  const Shape out_shape = shape_of(gradient);
  const int64_t height = call.integer(), width = call.integer();
  const Shape shape{size(weight, 1), out_shape.batch, height, width};
  call.require(fits(window, shape) && has_sizes(gradient, convolved(out_shape.channels, shape, window)));
  call.require(has_sizes(weight, {out_shape.channels, shape.channels, window.kernel, window.kernel}));
  float* out = call.output(shape);
  if (!out) return;
  Patches patches(shape, out_shape, window);
  for (int64_t image = 0; image < shape.batch; image++) {
    multiply(
        {patches.rows,
         patches.columns,
         out_shape.channels,
         row_major(data(weight), patches.rows).transposed(),
         row_major(data(gradient) + image * out_shape.plane(), out_shape.row()),
         {},
         patches.values.get(),
         patches.columns});
    share(shape.channels, patches.rows * patches.columns, [&](int64_t begin, int64_t end) {
      kernels().scatter_patches(
          patches.values.get(), out_shape, window, out + image * shape.plane(), shape.row(), shape, begin, end);
    });
  }
}

// gradient, x, kernel, stride, padding, batch_first
void convolution_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &x_tensor = call.planes();
  const Window window{call.integer(), call.integer(), call.integer()};
  const DenseInput x = dense_input(x_tensor, call.boolean());
  const Shape out_shape = shape_of(gradient);
  call.require(fits(window, x.shape) && has_sizes(gradient, convolved(out_shape.channels, x.shape, window)));
  float* out = call.output({out_shape.channels, x.shape.channels, window.kernel, window.kernel});
  if (!out) return;
  Patches patches(x.shape, out_shape, window);
  for (int64_t image = 0; image < out_shape.batch; image++) {
    gather(x, image, out_shape, window, patches);
    const Matrix so_far = image ? row_major(out, patches.rows) : Matrix{};
    multiply(
        {out_shape.channels, patches.rows, patches.columns,
         row_major(data(gradient) + image * out_shape.plane(), out_shape.row()),
         row_major(patches.values.get(), patches.columns).transposed(), so_far, out, patches.rows});
  }
}

// Those that depthwise.cpp is written for.
bool is_depthwise(Window window) {
  return (window.kernel == 3 || window.kernel == 5) && (window.stride == 1 || window.stride == 2);
}

// value, weight, stride
void depthwise(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Value value = value_of(call);
  const Tensor& weight = call.planes();
  const Window window{size(weight, 2), call.integer(), size(weight, 2) / 2};
  const Shape shape = convolved(value.shape.channels, value.shape, window);
  call.require(is_depthwise(window) && fits(window, value.shape));
  call.require(has_sizes(weight, {shape.channels, 1, window.kernel, window.kernel}));
  float* out = call.output(shape);
  if (!out) return;
  share(shape.channels, shape.channels * shape.row() * window.kernel * window.kernel, [&](int64_t begin, int64_t end) {
    kernels().depthwise(value, data(weight), window, out, begin, end);
  });
}

// gradient, weight, stride, height, width
void depthwise_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &weight = call.planes();
  const Window window{size(weight, 2), call.integer(), size(weight, 2) / 2};
  const Shape out_shape = shape_of(gradient);
  const int64_t height = call.integer(), width = call.integer();
  const Shape shape{out_shape.channels, out_shape.batch, height, width};
  call.require(is_depthwise(window) && fits(window, shape));
  call.require(has_sizes(gradient, convolved(shape.channels, shape, window)));
  call.require(has_sizes(weight, {shape.channels, 1, window.kernel, window.kernel}));
  float* out = call.output(shape);
  if (!out) return;
  share(
      shape.channels, shape.channels * out_shape.row() * window.kernel * window.kernel,
      [&](int64_t begin, int64_t end) {
        kernels().depthwise_input_gradient(data(gradient), out_shape, data(weight), window, out, shape, begin, end);
      });
}

// gradient, value, kernel, stride
void depthwise_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& gradient = call.tensor();
  const Value value = value_of(call);
  const int64_t kernel = call.integer();
  const Window window{kernel, call.integer(), kernel / 2};
  call.require(is_depthwise(window) && fits(window, value.shape));
  call.require(has_sizes(gradient, convolved(value.shape.channels, value.shape, window)));
  float* out = call.output({value.shape.channels, 1, kernel, kernel});
  if (!out) return;
  share(value.shape.channels, gradient.numel() * kernel * kernel, [&](int64_t begin, int64_t end) {
    kernels().depthwise_weight_gradient(data(gradient), value, window, out, begin, end);
  });
}

const Kernel operators[] = {
    Kernel("fedss::convolution.out", convolution),
    Kernel("fedss::convolution_input_gradient.out", convolution_input_gradient),
    Kernel("fedss::convolution_weight_gradient.out", convolution_weight_gradient),
    Kernel("fedss::depthwise.out", depthwise),
    Kernel("fedss::depthwise_input_gradient.out", depthwise_input_gradient),
    Kernel("fedss::depthwise_weight_gradient.out", depthwise_weight_gradient),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
