// GroupNorm, activations, sums and pooling over planes as operators of ExecuTorch.
#include "kernels/kernels.h"
#include "operators/operator_call.h"
#include "operators/work_sharing.h"

namespace fedss {
namespace {

// x, groups, epsilon -> [2, groups, batch]
void group_moments(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.planes();
  const int64_t groups = call.integer();
  const float epsilon = static_cast<float>(call.number());
  const Shape shape = shape_of(x);
  call.require(groups >= 1 && shape.channels % groups == 0);
  float* out = call.output({2, groups, shape.batch});
  if (!out) return;
  share(groups, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().group_moments(data(x), shape, groups, epsilon, out, begin, end);
  });
}

// planes?, scale?, shift?, value -> x', gamma', beta'
void group_norm_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor* planes = call.optional_tensor();
  const Tensor* scale = call.optional_tensor();
  const Tensor* shift = call.optional_tensor();
  const Value value = value_of(call);
  const Shape shape = value.shape;
  call.require(value.moments != nullptr && has_sizes(planes, shape));
  call.require(has_sizes(scale, {shape.batch, shape.channels}) && has_sizes(shift, {shape.batch, shape.channels}));
  const PlaneGradient gradient{data(planes), data(scale), data(shift)};
  float* x_gradient = call.output(shape);
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
  const Value value = value_of(call);
  const Tensor *gate = call.optional_tensor(), *residual = call.optional_tensor();
  const Shape shape = value.shape;
  call.require(has_sizes(gate, {shape.batch, shape.channels}) && has_sizes(residual, shape));
  float* out = call.output(shape);
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().materialise(value, data(gate), data(residual), out, begin, end);
  });
}

// value -> [batch, channels]
void pooled_mean(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Value value = value_of(call);
  const Shape shape = value.shape;
  float* out = call.output({shape.batch, shape.channels});
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().pooled_mean(value, out, begin, end);
  });
}

// gradient, value -> [batch, channels]: the sum over a plane of their product
void pooled_product(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& gradient = call.tensor();
  const Value value = value_of(call);
  const Shape shape = value.shape;
  call.require(has_sizes(gradient, shape));
  float* out = call.output({shape.batch, shape.channels});
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().pooled_product(data(gradient), value, out, begin, end);
  });
}

// x -> [channels]
void channel_sums(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.planes();
  const Shape shape = shape_of(x);
  float* out = call.output({shape.channels});
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().channel_sums(data(x), shape, out, begin, end);
  });
}

// images, scale, shift -> images * scale - shift; bytes [batch, channels, height, width] and twice [channels, 1, 1]
void pixels(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& images = call.bytes();
  const Tensor &scale = call.tensor(), &shift = call.tensor();
  const int64_t batch = size(images, 0), channels = size(images, 1), height = size(images, 2), width = size(images, 3);
  call.require(images.dim() == 4 && has_sizes(scale, {channels, 1, 1}) && has_sizes(shift, {channels, 1, 1}));
  float* out = call.output({batch, channels, height, width});
  if (!out) return;
  share(batch * channels, images.numel(), [&](int64_t begin, int64_t end) {
    kernels().pixels(
        images.const_data_ptr<uint8_t>(), channels, height * width, data(scale), data(shift), out, begin, end);
  });
}

// x, activation
void activate(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const Activation activation = call.activation();
  float* out = call.output_like(x);
  if (!out) return;
  share(x.numel(), x.numel(), [&](int64_t begin, int64_t end) {
    kernels().activate(data(x), activation, out, begin, end);
  });
}

// gradient, x, activation
void activation_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x = call.tensor();
  const Activation activation = call.activation();
  call.require(gradient.sizes() == x.sizes());
  float* out = call.output_like(x);
  if (!out) return;
  share(x.numel(), x.numel(), [&](int64_t begin, int64_t end) {
    kernels().activation_gradient(data(gradient), data(x), activation, out, begin, end);
  });
}

// x, kernel, stride, padding
void max_pool(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.planes();
  const Window window{call.integer(), call.integer(), call.integer()};
  const Shape shape = shape_of(x), out_shape = convolved(shape.channels, shape, window);
  call.require(pools(window, shape));
  float* out = call.output(out_shape);
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().max_pool(data(x), shape, window, out, out_shape, begin, end);
  });
}

// gradient, x, kernel, stride, padding
void max_pool_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x = call.planes();
  const Window window{call.integer(), call.integer(), call.integer()};
  const Shape shape = shape_of(x);
  call.require(pools(window, shape) && has_sizes(gradient, convolved(shape.channels, shape, window)));
  float* out = call.output_like(x);
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().max_pool_gradient(data(gradient), shape_of(gradient), data(x), shape, window, out, begin, end);
  });
}

const Kernel operators[] = {
    Kernel("fedss::group_moments.out", group_moments),
    Kernel("fedss::group_norm_gradient.out", group_norm_gradient),
    Kernel("fedss::materialise.out", materialise),
    Kernel("fedss::pooled_mean.out", pooled_mean),
    Kernel("fedss::pooled_product.out", pooled_product),
    Kernel("fedss::channel_sums.out", channel_sums),
    Kernel("fedss::pixels.out", pixels),
    Kernel("fedss::activate.out", activate),
    Kernel("fedss::activation_gradient.out", activation_gradient),
    Kernel("fedss::max_pool.out", max_pool),
    Kernel("fedss::max_pool_gradient.out", max_pool_gradient),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
