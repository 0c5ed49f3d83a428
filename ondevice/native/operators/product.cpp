// Matrix products and 1x1 convolutions, which are matrix products of planes, as operators of ExecuTorch.
#include "kernels/kernels.h"
#include "operators/operator_call.h"
#include "operators/work_sharing.h"

namespace fedss {
namespace {

// a, b, transpose_a, transpose_b, start? -> start + a b; start is a matrix, or a vector to add to every row
void product(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &a = call.tensor(), &b = call.tensor();
  const bool transpose_a = call.boolean(), transpose_b = call.boolean();
  const Tensor* start = call.optional_tensor();
  Product p{};
  p.rows = size(a, transpose_a ? 1 : 0);
  p.depth = size(a, transpose_a ? 0 : 1);
  p.columns = size(b, transpose_b ? 0 : 1);
  call.require(a.dim() == 2 && b.dim() == 2 && size(b, transpose_b ? 1 : 0) == p.depth);
  call.require(has_sizes(start, {p.columns}) || has_sizes(start, {p.rows, p.columns}));
  p.a = transpose_a ? row_major(data(a), size(a, 1)).transposed() : row_major(data(a), size(a, 1));
  p.b = transpose_b ? row_major(data(b), size(b, 1)).transposed() : row_major(data(b), size(b, 1));
  if (start) p.start = {data(start), start->dim() == 1 ? 0 : p.columns, 1};
  p.out = call.output({p.rows, p.columns});
  p.out_stride = p.columns;
  if (p.out) multiply(p);
}

// The planes that a 1x1 convolution reads: as they lie, or a value of them times a gate.
struct Input {
  const float* x;
  Shape shape;
  Value value = {};
  const float* gate = nullptr;
};

// weight x + bias
Product convolution_of(const Input& input, const Tensor& weight, const Tensor* bias, float* out) {
  const Shape shape = input.shape;
  return {
      size(weight, 0),
      shape.row(),
      shape.channels,
      row_major(data(weight), shape.channels),
      row_major(input.x, shape.row()),
      {data(bias), 1, 0},
      out,
      shape.row(),
      input.value,
      input.gate};
}

// gradient x^T
Product weight_gradient_of(const Input& input, const Tensor& gradient, float* out) {
  const Shape shape = input.shape;
  return {
      size(gradient, 0),
      shape.channels,
      shape.row(),
      row_major(data(gradient), shape.row()),
      row_major(input.x, shape.row()).transposed(),
      {},
      out,
      shape.channels,
      input.value,
      input.gate};
}

// x, weight, bias? -> weight x: a 1x1 convolution
void pointwise(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &x = call.planes(), &weight = call.planes();
  const Tensor* bias = call.optional_tensor();
  const Shape shape = shape_of(x);
  const int64_t channels = size(weight, 0);
  call.require(has_sizes(weight, {channels, shape.channels, 1, 1}) && has_sizes(bias, {channels}));
  float* out = call.output({channels, shape.batch, shape.height, shape.width});
  if (out) multiply(convolution_of({data(x), shape}, weight, bias, out));
}

// value, gate?, weight, bias? -> weight (value * gate)
void pointwise_value(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Value value = value_of(call);
  const Tensor* gate = call.optional_tensor();
  const Tensor& weight = call.planes();
  const Tensor* bias = call.optional_tensor();
  const Shape shape = value.shape;
  const int64_t channels = size(weight, 0);
  call.require(has_sizes(weight, {channels, shape.channels, 1, 1}) && has_sizes(bias, {channels}));
  call.require(has_sizes(gate, {shape.batch, shape.channels}));
  float* out = call.output({channels, shape.batch, shape.height, shape.width});
  if (out) multiply(convolution_of({value.x, shape, value, data(gate)}, weight, bias, out));
}

// gradient, weight, start? -> start + weight^T gradient
void pointwise_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &weight = call.planes();
  const Tensor* start = call.optional_tensor();
  const Shape shape = shape_of(gradient);
  const int64_t channels = size(weight, 1);
  call.require(has_sizes(weight, {shape.channels, channels, 1, 1}));
  call.require(has_sizes(start, {channels, shape.batch, shape.height, shape.width}));
  float* out = call.output({channels, shape.batch, shape.height, shape.width});
  if (!out) return;
  multiply(
      {channels,
       shape.row(),
       shape.channels,
       row_major(data(weight), channels).transposed(),
       row_major(data(gradient), shape.row()),
       {data(start), shape.row(), 1},
       out,
       shape.row()});
}

// gradient, x -> gradient x^T
void pointwise_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &x = call.planes();
  const Shape shape = shape_of(x);
  const int64_t channels = size(gradient, 0);
  call.require(has_sizes(gradient, {channels, shape.batch, shape.height, shape.width}));
  float* out = call.output({channels, shape.channels, 1, 1});
  if (out) multiply(weight_gradient_of({data(x), shape}, gradient, out));
}

// gradient, value, gate? -> gradient (value * gate)^T
void pointwise_value_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& gradient = call.planes();
  const Value value = value_of(call);
  const Tensor* gate = call.optional_tensor();
  const Shape shape = value.shape;
  const int64_t channels = size(gradient, 0);
  call.require(has_sizes(gradient, {channels, shape.batch, shape.height, shape.width}));
  call.require(has_sizes(gate, {shape.batch, shape.channels}));
  float* out = call.output({channels, shape.channels, 1, 1});
  if (out) multiply(weight_gradient_of({value.x, shape, value, data(gate)}, gradient, out));
}

const Kernel operators[] = {
    Kernel("fedss::product.out", product),
    Kernel("fedss::pointwise.out", pointwise),
    Kernel("fedss::pointwise_value.out", pointwise_value),
    Kernel("fedss::pointwise_input_gradient.out", pointwise_input_gradient),
    Kernel("fedss::pointwise_weight_gradient.out", pointwise_weight_gradient),
    Kernel("fedss::pointwise_value_weight_gradient.out", pointwise_value_weight_gradient),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
