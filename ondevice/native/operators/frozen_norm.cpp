// Normalisation by constants (BatchNorm with frozen statistics) as operators of ExecuTorch.
#include "kernels/kernels.h"
#include "operators/operator_call.h"
#include "operators/work_sharing.h"

namespace fedss {
namespace {

// mean, variance, batch, epsilon -> [2, channels, batch]: the moments of a `Value` with a group for every channel
void frozen_moments(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &mean = call.tensor(), &variance = call.tensor();
  const int64_t batch = call.integer();
  const float epsilon = static_cast<float>(call.number());
  const int64_t channels = size(mean, 0);
  call.require(batch >= 1 && has_sizes(mean, {channels}) && has_sizes(variance, {channels}));
  float* out = call.output({2, channels, batch});
  if (!out) return;
  share(channels, channels * batch, [&](int64_t begin, int64_t end) {
    kernels().frozen_moments(data(mean), data(variance), channels, batch, epsilon, out, begin, end);
  });
}

// planes?, scale?, shift?, value -> x', gamma', beta'
void frozen_norm_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor* planes = call.optional_tensor();
  const Tensor* scale = call.optional_tensor();
  const Tensor* shift = call.optional_tensor();
  const Value value = value_of(call);
  const Shape shape = value.shape;
  call.require(value.moments != nullptr && value.groups == shape.channels && has_sizes(planes, shape));
  call.require(has_sizes(scale, {shape.batch, shape.channels}) && has_sizes(shift, {shape.batch, shape.channels}));
  const PlaneGradient gradient{data(planes), data(scale), data(shift)};
  float* x_gradient = call.output(shape);
  float* gamma_gradient = call.output({shape.channels});
  float* beta_gradient = call.output({shape.channels});
  if (!x_gradient || !gamma_gradient || !beta_gradient) return;
  share(shape.channels, 4 * shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().frozen_norm_gradient(gradient, value, x_gradient, gamma_gradient, beta_gradient, begin, end);
  });
}

const Kernel operators[] = {
    Kernel("fedss::frozen_moments.out", frozen_moments),
    Kernel("fedss::frozen_norm_gradient.out", frozen_norm_gradient),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
