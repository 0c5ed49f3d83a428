// The kernels as ExecuTorch operators `fedss::*`: reads the runtime's values, sizes the outputs, shares the work out
// among the runtime's threads.  `export/executorch_operators.py` declares the same operators to the exporter; a change
// in one is a change in the other, and the order of arguments is the contract between them.
//
// Loading this library (or linking it) registers the operators with libexecutorch.
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <memory>
#include <optional>

#include "kernels.h"

namespace fedss {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

// Below this many multiply-adds (or elements touched) waking another thread costs more than it saves.
constexpr int64_t kWorthAThread = 100000;

template <class Body>
void share(int64_t items, int64_t work, Body body) {
  const int64_t threads = work < 2 * kWorthAThread ? 1 : executorch::extension::get_thread_count();
  if (threads == 1 || items == 1) return body(0, items);
  executorch::extension::parallel_for(0, items, (items + threads - 1) / threads, body);
}

// The values of one call, taken in the order of the operator's arguments; the outputs come last.
class Call {
 public:
  Call(KernelRuntimeContext& context, Span<EValue*> values) : context_(context), values_(values) {}

  const Tensor& tensor() { return values_[at_++]->toTensor(); }
  const Tensor* optional_tensor() {
    EValue* value = values_[at_++];
    return value->isNone() ? nullptr : &value->toTensor();
  }
  int64_t integer() { return values_[at_++]->toInt(); }
  bool boolean() { return values_[at_++]->toBool(); }
  double number() { return values_[at_++]->toDouble(); }
  Activation activation() { return static_cast<Activation>(integer()); }

  // The next output, at the given size; null after a failure, which the runtime then reports.
  float* output(std::initializer_list<int64_t> sizes) {
    Tensor& out = values_[at_++]->toTensor();
    SizesType wanted[4];
    size_t count = 0;
    for (int64_t size : sizes) wanted[count++] = static_cast<SizesType>(size);
    if (out.scalar_type() != ScalarType::Float || executorch::runtime::resize_tensor(out, {wanted, count}) != Error::Ok) {
      context_.fail(Error::InvalidArgument);
      return nullptr;
    }
    return out.mutable_data_ptr<float>();
  }
  // An output of the same size as one of the arguments.
  float* output_like(const Tensor& like) {
    switch (like.dim()) {
      case 0: return output({});
      case 1: return output({like.size(0)});
      case 2: return output({like.size(0), like.size(1)});
      case 3: return output({like.size(0), like.size(1), like.size(2)});
      default: return output({like.size(0), like.size(1), like.size(2), like.size(3)});
    }
  }

 private:
  KernelRuntimeContext& context_;
  Span<EValue*> values_;
  size_t at_ = 0;
};

const float* data(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }
const float* data(const Tensor* tensor) { return tensor ? data(*tensor) : nullptr; }

Shape shape_of(const Tensor& planes) { return {planes.size(0), planes.size(1), planes.size(2), planes.size(3)}; }

int64_t convolved(int64_t size, Window window) { return (size + 2 * window.padding - window.kernel) / window.stride + 1; }

Shape convolved(int64_t channels, Shape x, Window window) {
  return {channels, x.batch, convolved(x.height, window), convolved(x.width, window)};
}

// x, moments?, gamma?, beta?, activation
Normalised normalised(Call& call) {
  const Tensor& x = call.tensor();
  const Tensor* moments = call.optional_tensor();
  const Tensor* gamma = call.optional_tensor();
  const Tensor* beta = call.optional_tensor();
  const int64_t groups = moments ? moments->size(1) : 1;
  return {data(x), shape_of(x), data(moments), data(gamma), data(beta), groups, call.activation()};
}

void multiply(const Product& product) {
  share(kernels().product_panels(product), product.rows * product.columns * product.depth,
        [&](int64_t begin, int64_t end) { kernels().product(product, begin, end); });
}

Matrix row_major(const float* values, int64_t columns) { return {values, columns, 1}; }

// a, b, transpose_a, transpose_b, start? -> start + a b; start is a matrix, or a vector to add to every row
void product(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &a = call.tensor(), &b = call.tensor();
  const bool transpose_a = call.boolean(), transpose_b = call.boolean();
  const Tensor* start = call.optional_tensor();
  Product p{};
  p.rows = a.size(transpose_a ? 1 : 0);
  p.depth = a.size(transpose_a ? 0 : 1);
  p.columns = b.size(transpose_b ? 0 : 1);
  p.a = transpose_a ? row_major(data(a), a.size(1)).transposed() : row_major(data(a), a.size(1));
  p.b = transpose_b ? row_major(data(b), b.size(1)).transposed() : row_major(data(b), b.size(1));
  if (start) p.start = {data(start), start->dim() == 1 ? 0 : p.columns, 1};
  p.out = call.output({p.rows, p.columns});
  p.out_row_stride = p.columns;
  p.out_column_stride = 1;
  if (p.out) multiply(p);
}

// x, weight, bias? -> weight x: a 1x1 convolution
void pointwise(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &x = call.tensor(), &weight = call.tensor();
  const Tensor* bias = call.optional_tensor();
  const Shape shape = shape_of(x);
  const int64_t channels = weight.size(0);
  float* out = call.output({channels, shape.batch, shape.height, shape.width});
  if (!out) return;
  multiply({channels, shape.row(), shape.channels, row_major(data(weight), shape.channels), row_major(data(x), shape.row()),
            {data(bias), 1, 0}, out, shape.row(), 1});
}

// gradient, weight, start? -> start + weight^T gradient
void pointwise_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &weight = call.tensor();
  const Tensor* start = call.optional_tensor();
  const Shape shape = shape_of(gradient);
  const int64_t channels = weight.size(1);
  float* out = call.output({channels, shape.batch, shape.height, shape.width});
  if (!out) return;
  multiply({channels, shape.row(), shape.channels, row_major(data(weight), channels).transposed(),
            row_major(data(gradient), shape.row()), {data(start), shape.row(), 1}, out, shape.row(), 1});
}

// gradient, x -> gradient x^T
void pointwise_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x = call.tensor();
  const Shape shape = shape_of(x);
  const int64_t channels = gradient.size(0);
  float* out = call.output({channels, shape.channels, 1, 1});
  if (!out) return;
  multiply({channels, shape.channels, shape.row(), row_major(data(gradient), shape.row()),
            row_major(data(x), shape.row()).transposed(), {}, out, shape.channels, 1});
}

// What a dense convolution works on: planes [C, B, H, W], or the images as they come in, [B, C, H, W].
struct DenseInput {
  const float* data;
  Shape shape;
  int64_t channel_stride, image_stride;
};

DenseInput dense_input(const Tensor& x, bool batch_first) {
  const Shape shape = batch_first ? Shape{x.size(1), x.size(0), x.size(2), x.size(3)} : shape_of(x);
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
        x.data + image * x.image_stride, x.channel_stride, x.shape, out_shape, window, patches.values.get(), begin, end);
  });
}

// x, weight, bias?, stride, padding, batch_first
void convolution(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &x_tensor = call.tensor(), &weight = call.tensor();
  const Tensor* bias = call.optional_tensor();
  const Window window{weight.size(2), call.integer(), call.integer()};
  const DenseInput x = dense_input(x_tensor, call.boolean());
  const Shape shape = convolved(weight.size(0), x.shape, window);
  float* out = call.output({shape.channels, shape.batch, shape.height, shape.width});
  if (!out) return;
  Patches patches(x.shape, shape, window);
  for (int64_t image = 0; image < shape.batch; image++) {
    gather(x, image, shape, window, patches);
    multiply({shape.channels, patches.columns, patches.rows, row_major(data(weight), patches.rows),
              row_major(patches.values.get(), patches.columns), {data(bias), 1, 0}, out + image * shape.plane(), shape.row(), 1});
  }
}

// gradient, weight, stride, padding, height, width
void convolution_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &weight = call.tensor();
  const Window window{weight.size(2), call.integer(), call.integer()};
  const Shape out_shape = shape_of(gradient);
  const int64_t height = call.integer(), width = call.integer();
  const Shape shape{weight.size(1), out_shape.batch, height, width};
  float* out = call.output({shape.channels, shape.batch, height, width});
  if (!out) return;
  Patches patches(shape, out_shape, window);
  for (int64_t image = 0; image < shape.batch; image++) {
    multiply({patches.rows, patches.columns, out_shape.channels, row_major(data(weight), patches.rows).transposed(),
              row_major(data(gradient) + image * out_shape.plane(), out_shape.row()), {}, patches.values.get(), patches.columns, 1});
    share(shape.channels, patches.rows * patches.columns, [&](int64_t begin, int64_t end) {
      kernels().scatter_patches(
          patches.values.get(), out_shape, window, out + image * shape.plane(), shape.row(), shape, begin, end);
    });
  }
}

// gradient, x, kernel, stride, padding, batch_first
void convolution_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x_tensor = call.tensor();
  const Window window{call.integer(), call.integer(), call.integer()};
  const DenseInput x = dense_input(x_tensor, call.boolean());
  const Shape out_shape = shape_of(gradient);
  float* out = call.output({out_shape.channels, x.shape.channels, window.kernel, window.kernel});
  if (!out) return;
  Patches patches(x.shape, out_shape, window);
  for (int64_t image = 0; image < out_shape.batch; image++) {
    gather(x, image, out_shape, window, patches);
    const Matrix so_far = image ? row_major(out, patches.rows) : Matrix{};
    multiply({out_shape.channels, patches.rows, patches.columns,
              row_major(data(gradient) + image * out_shape.plane(), out_shape.row()),
              row_major(patches.values.get(), patches.columns).transposed(), so_far, out, patches.rows, 1});
  }
}

// value, weight, stride
void depthwise(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Normalised value = normalised(call);
  const Tensor& weight = call.tensor();
  const Window window{weight.size(2), call.integer(), weight.size(2) / 2};
  const Shape shape = convolved(value.shape.channels, value.shape, window);
  float* out = call.output({shape.channels, shape.batch, shape.height, shape.width});
  if (!out) return;
  share(shape.channels, shape.channels * shape.row() * window.kernel * window.kernel,
        [&](int64_t begin, int64_t end) { kernels().depthwise(value, data(weight), window, out, begin, end); });
}

// gradient, weight, stride, height, width
void depthwise_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &weight = call.tensor();
  const Window window{weight.size(2), call.integer(), weight.size(2) / 2};
  const Shape out_shape = shape_of(gradient);
  const int64_t height = call.integer(), width = call.integer();
  const Shape shape{out_shape.channels, out_shape.batch, height, width};
  float* out = call.output({shape.channels, shape.batch, height, width});
  if (!out) return;
  share(shape.channels, shape.channels * out_shape.row() * window.kernel * window.kernel, [&](int64_t begin, int64_t end) {
    kernels().depthwise_input_gradient(data(gradient), out_shape, data(weight), window, out, shape, begin, end);
  });
}

// gradient, value, kernel, stride
void depthwise_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& gradient = call.tensor();
  const Normalised value = normalised(call);
  const int64_t kernel = call.integer();
  const Window window{kernel, call.integer(), kernel / 2};
  float* out = call.output({value.shape.channels, 1, kernel, kernel});
  if (!out) return;
  share(value.shape.channels, gradient.numel() * kernel * kernel, [&](int64_t begin, int64_t end) {
    kernels().depthwise_weight_gradient(data(gradient), value, window, out, begin, end);
  });
}

// x, groups, epsilon -> [2, groups, batch]
void group_moments(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const int64_t groups = call.integer();
  const float epsilon = static_cast<float>(call.number());
  const Shape shape = shape_of(x);
  float* out = call.output({2, groups, shape.batch});
  if (!out) return;
  share(groups, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().group_moments(data(x), shape, groups, epsilon, out, begin, end);
  });
}

// planes?, scale?, shift?, value -> x', gamma', beta'
void group_norm_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  Gradient gradient;
  gradient.planes = data(call.optional_tensor());
  gradient.scale = data(call.optional_tensor());
  gradient.shift = data(call.optional_tensor());
  const Normalised value = normalised(call);
  const Shape shape = value.shape;
  float* x_gradient = call.output({shape.channels, shape.batch, shape.height, shape.width});
  float* gamma_gradient = call.output({shape.channels});
  float* beta_gradient = call.output({shape.channels});
  if (!x_gradient || !gamma_gradient || !beta_gradient) return;
  share(value.groups, 4 * shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().group_norm_gradient(gradient, value, x_gradient, gamma_gradient, beta_gradient, begin, end);
  });
}

// value, gate?, residual? -> value * gate + residual
void materialise(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Normalised value = normalised(call);
  const Tensor *gate = call.optional_tensor(), *residual = call.optional_tensor();
  const Shape shape = value.shape;
  float* out = call.output({shape.channels, shape.batch, shape.height, shape.width});
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().materialise(value, data(gate), data(residual), out, begin, end);
  });
}

// value -> [batch, channels]
void pooled_mean(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Normalised value = normalised(call);
  const Shape shape = value.shape;
  float* out = call.output({shape.batch, shape.channels});
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(),
        [&](int64_t begin, int64_t end) { kernels().pooled_mean(value, out, begin, end); });
}

// gradient, value -> [batch, channels]: the sum over a plane of their product
void pooled_product(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& gradient = call.tensor();
  const Normalised value = normalised(call);
  const Shape shape = value.shape;
  float* out = call.output({shape.batch, shape.channels});
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(),
        [&](int64_t begin, int64_t end) { kernels().pooled_product(data(gradient), value, out, begin, end); });
}

// x -> [channels]
void channel_sums(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const Shape shape = shape_of(x);
  float* out = call.output({shape.channels});
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) { kernels().channel_sums(data(x), shape, out, begin, end); });
}

// x, activation
void activate(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const Activation activation = call.activation();
  float* out = call.output_like(x);
  if (!out) return;
  share(x.numel(), x.numel(), [&](int64_t begin, int64_t end) { kernels().activate(data(x), activation, out, begin, end); });
}

// gradient, x, activation
void activation_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x = call.tensor();
  const Activation activation = call.activation();
  float* out = call.output_like(x);
  if (!out) return;
  share(x.numel(), x.numel(), [&](int64_t begin, int64_t end) {
    kernels().activation_gradient(data(gradient), data(x), activation, out, begin, end);
  });
}

// x, kernel, stride, padding
void max_pool(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const Window window{call.integer(), call.integer(), call.integer()};
  const Shape shape = shape_of(x), out_shape = convolved(shape.channels, shape, window);
  float* out = call.output({out_shape.channels, out_shape.batch, out_shape.height, out_shape.width});
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().max_pool(data(x), shape, window, out, out_shape, begin, end);
  });
}

// gradient, x, kernel, stride, padding
void max_pool_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x = call.tensor();
  const Window window{call.integer(), call.integer(), call.integer()};
  const Shape shape = shape_of(x);
  float* out = call.output_like(x);
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().max_pool_gradient(data(gradient), shape_of(gradient), data(x), shape, window, out, begin, end);
  });
}

const Kernel operators[] = {
    Kernel("fedss::product.out", product),
    Kernel("fedss::pointwise.out", pointwise),
    Kernel("fedss::pointwise_input_gradient.out", pointwise_input_gradient),
    Kernel("fedss::pointwise_weight_gradient.out", pointwise_weight_gradient),
    Kernel("fedss::convolution.out", convolution),
    Kernel("fedss::convolution_input_gradient.out", convolution_input_gradient),
    Kernel("fedss::convolution_weight_gradient.out", convolution_weight_gradient),
    Kernel("fedss::depthwise.out", depthwise),
    Kernel("fedss::depthwise_input_gradient.out", depthwise_input_gradient),
    Kernel("fedss::depthwise_weight_gradient.out", depthwise_weight_gradient),
    Kernel("fedss::group_moments.out", group_moments),
    Kernel("fedss::group_norm_gradient.out", group_norm_gradient),
    Kernel("fedss::materialise.out", materialise),
    Kernel("fedss::pooled_mean.out", pooled_mean),
    Kernel("fedss::pooled_product.out", pooled_product),
    Kernel("fedss::channel_sums.out", channel_sums),
    Kernel("fedss::activate.out", activate),
    Kernel("fedss::activation_gradient.out", activation_gradient),
    Kernel("fedss::max_pool.out", max_pool),
    Kernel("fedss::max_pool_gradient.out", max_pool_gradient),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
