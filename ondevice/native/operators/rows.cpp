// What Transformers are made of as operators of ExecuTorch: rows normalised, their softmax, products of many matrices,
// dimensions in another order, and the gradient of a table of embeddings.
#include "kernels/kernels.h"
#include "operators/operator_call.h"
#include "operators/work_sharing.h"

namespace fedss {
namespace {

// How often a row of so many numbers fits into a tensor; 0 if it has no such rows.
int64_t rows_of(const Tensor& tensor, int64_t columns) {
  return columns > 0 && tensor.numel() % columns == 0 ? tensor.numel() / columns : 0;
}

// x, columns, gamma?, beta?, epsilon -> the rows of `columns` numbers normalised, their means, 1 / their deviations
void layer_norm(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const int64_t columns = call.integer(), rows = rows_of(x, columns);
  const Tensor *gamma = call.optional_tensor(), *beta = call.optional_tensor();
  const float epsilon = static_cast<float>(call.number());
  call.require(rows > 0 && has_sizes(gamma, {columns}) && has_sizes(beta, {columns}));
  float* out = call.output_like(x);
  float* mean = call.output({rows});
  float* inverse_deviation = call.output({rows});
  if (!out || !mean || !inverse_deviation) return;
  share(rows, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().layer_norm(data(x), columns, data(gamma), data(beta), epsilon, out, mean, inverse_deviation, begin, end);
  });
}

// gradient, x, columns, mean, inverse_deviation, gamma? -> x', gamma', beta'
void layer_norm_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &x = call.tensor();
  const int64_t columns = call.integer(), rows = rows_of(x, columns);
  const Tensor &mean = call.tensor(), &inverse_deviation = call.tensor();
  const Tensor* gamma = call.optional_tensor();
  call.require(rows > 0 && gradient.numel() == x.numel() && has_sizes(gamma, {columns}));
  call.require(has_sizes(mean, {rows}) && has_sizes(inverse_deviation, {rows}));
  float* x_gradient = call.output_like(x);
  float* gamma_gradient = call.output({columns});
  float* beta_gradient = call.output({columns});
  if (!x_gradient || !gamma_gradient || !beta_gradient) return;
  share(rows, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().layer_norm_gradient(
        data(gradient), data(x), columns, data(mean), data(inverse_deviation), data(gamma), x_gradient, begin, end);
  });
  share(columns, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().layer_norm_weight_gradient(
        data(gradient), data(x), rows, columns, data(mean), data(inverse_deviation), gamma_gradient, beta_gradient,
        begin, end);
  });
}

// x, columns -> the softmax of its rows of `columns` numbers
void softmax(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const int64_t columns = call.integer(), rows = rows_of(x, columns);
  call.require(rows > 0);
  float* out = call.output_like(x);
  if (!out) return;
  share(rows, x.numel(), [&](int64_t begin, int64_t end) { kernels().softmax(data(x), columns, out, begin, end); });
}

// gradient, y, columns -> x', where y is the softmax of x
void softmax_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &y = call.tensor();
  const int64_t columns = call.integer(), rows = rows_of(y, columns);
  call.require(rows > 0 && gradient.numel() == y.numel());
  float* out = call.output_like(y);
  if (!out) return;
  share(rows, y.numel(), [&](int64_t begin, int64_t end) {
    kernels().softmax_gradient(data(gradient), data(y), columns, out, begin, end);
  });
}

// gradient, ids, rows, padding -> [rows, columns]: every row of the gradient added to the row that was read
void embedding_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.tensor(), &ids = call.ids();
  const int64_t rows = call.integer(), padding = call.integer();
  const int64_t columns = gradient.dim() ? size(gradient, gradient.dim() - 1) : 0;
  call.require(rows > 0 && columns > 0 && gradient.numel() == ids.numel() * columns);
  float* out = call.output({rows, columns});
  if (!out) return;
  const int64_t* const places = ids.const_data_ptr<int64_t>();
  for (int64_t at = 0; at < ids.numel(); at++) call.require(places[at] >= 0 && places[at] < rows);
  if (call.failed()) return;
  share(columns, rows * columns + gradient.numel(), [&](int64_t begin, int64_t end) {
    kernels().embedding_gradient(data(gradient), places, ids.numel(), padding, out, rows, columns, begin, end);
  });
}

// a, b, transpose_a, transpose_b -> [n, rows, columns]: matrix by matrix
void batched_product(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &a = call.tensor(), &b = call.tensor();
  const bool transpose_a = call.boolean(), transpose_b = call.boolean();
  const int64_t count = size(a, 0);
  Product p{};
  p.rows = size(a, transpose_a ? 2 : 1);
  p.depth = size(a, transpose_a ? 1 : 2);
  p.columns = size(b, transpose_b ? 1 : 2);
  call.require(a.dim() == 3 && b.dim() == 3 && size(b, 0) == count && size(b, transpose_b ? 2 : 1) == p.depth);
  float* out = call.output({count, p.rows, p.columns});
  if (!out) return;
  p.out_stride = p.columns;
  const auto multiply_some = [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n++) {
      Product one = p;
      const Matrix of_a = row_major(data(a) + n * p.rows * p.depth, size(a, 2));
      const Matrix of_b = row_major(data(b) + n * p.depth * p.columns, size(b, 2));
      one.a = transpose_a ? of_a.transposed() : of_a;
      one.b = transpose_b ? of_b.transposed() : of_b;
      one.out = out + n * p.rows * p.columns;
      kernels().product(one, 0, kernels().product_pieces(one));
    }
  };
  share(count, count * p.rows * p.columns * p.depth, multiply_some);
}

// x, order -> x with its dimensions in this order
void permute(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.tensor();
  const auto order = call.integers();
  constexpr int64_t kMost = 8;
  const int64_t rank = x.dim();
  call.require(rank >= 1 && rank <= kMost && static_cast<int64_t>(order.size()) == rank);
  SizesType made[kMost] = {};
  int64_t stride_of[kMost] = {}, stride = 1, seen = 0;
  for (int64_t dim = rank - 1; dim >= 0 && dim < kMost; dim--) {
    stride_of[dim] = stride;
    stride *= x.size(dim);
  }
  // Neighbours that stay neighbours are one dimension; four at least, so that the kernel has its own.
  int64_t sizes[kMost + 4], strides[kMost + 4], kept = 0;
  for (int64_t at = 0; at < rank && at < kMost && at < static_cast<int64_t>(order.size()); at++) {
    const int64_t dim = order[at];
    call.require(dim >= 0 && dim < rank && !(seen >> dim & 1));
    if (dim < 0 || dim >= rank) return;
    seen |= int64_t{1} << dim;
    made[at] = static_cast<SizesType>(x.size(dim));
    if (x.size(dim) == 1) continue;
    if (kept && strides[kept - 1] == stride_of[dim] * x.size(dim)) {
      sizes[kept - 1] *= x.size(dim);
      strides[kept - 1] = stride_of[dim];
    } else {
      sizes[kept] = x.size(dim);
      strides[kept++] = stride_of[dim];
    }
  }
  float* out = call.output(executorch::aten::ArrayRef<SizesType>(made, rank));
  if (!out) return;
  const int64_t missing = kept < 4 ? 4 - kept : 0;
  for (int64_t at = kept - 1; at >= 0 && missing; at--) {
    sizes[at + missing] = sizes[at];
    strides[at + missing] = strides[at];
  }
  for (int64_t at = 0; at < missing; at++) sizes[at] = 1, strides[at] = x.numel();
  kept += missing;
  // What lies before the last four is walked here.
  int64_t outer = 1;
  for (int64_t at = 0; at < kept - 4; at++) outer *= sizes[at];
  const Extents inner{sizes[kept - 4], sizes[kept - 3], sizes[kept - 2], sizes[kept - 1]};
  const Extents steps{strides[kept - 4], strides[kept - 3], strides[kept - 2], strides[kept - 1]};
  const int64_t numbers = outer ? x.numel() / outer : 0;
  for (int64_t n = 0; n < outer; n++) {
    int64_t from = 0, rest = n;
    for (int64_t at = kept - 5; at >= 0; at--) {
      from += rest % sizes[at] * strides[at];
      rest /= sizes[at];
    }
    share(inner.first * inner.second, numbers, [&](int64_t begin, int64_t end) {
      kernels().permute(data(x) + from, inner, steps, out + n * numbers, begin, end);
    });
  }
}

const Kernel operators[] = {
    Kernel("fedss::layer_norm.out", layer_norm),
    Kernel("fedss::layer_norm_gradient.out", layer_norm_gradient),
    Kernel("fedss::softmax.out", softmax),
    Kernel("fedss::softmax_gradient.out", softmax_gradient),
    Kernel("fedss::embedding_gradient.out", embedding_gradient),
    Kernel("fedss::batched_product.out", batched_product),
    Kernel("fedss::permute.out", permute),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
