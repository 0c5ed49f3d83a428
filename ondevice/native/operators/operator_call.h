// One call of an operator by ExecuTorch: the runtime's values read in order, outputs sized, operators registered.
// `export/executorch/operators.py` declares the same operators to the exporter; a change in one is a change in the
// other, and the order of arguments is the contract between them.
#pragma once

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <initializer_list>

#include "kernels/kernels.h"

namespace fedss {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

// Sizes that may be asked of any tensor; one that it does not have is 0, which then fits nothing.
inline int64_t size(const Tensor& tensor, int64_t dim) { return dim < tensor.dim() ? tensor.size(dim) : 0; }

inline bool has_sizes(const Tensor& tensor, std::initializer_list<int64_t> sizes) {
  if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
  int64_t dim = 0;
  for (int64_t wanted : sizes)
    if (tensor.size(dim++) != wanted) return false;
  return true;
}
inline bool has_sizes(const Tensor& planes, Shape shape) {
  return has_sizes(planes, {shape.channels, shape.batch, shape.height, shape.width});
}
// A tensor that was left out fits.
inline bool has_sizes(const Tensor* tensor, std::initializer_list<int64_t> sizes) {
  return !tensor || has_sizes(*tensor, sizes);
}
inline bool has_sizes(const Tensor* planes, Shape shape) { return !planes || has_sizes(*planes, shape); }

// The values of one call, taken in the order of the operator's arguments; the outputs come last.  Kernels trust the
// sizes that they are given, so every operator first requires that those of its arguments agree.
class Call {
 public:
  Call(KernelRuntimeContext& context, Span<EValue*> values) : context_(context), values_(values) {}

  const Tensor& tensor() {
    const Tensor& tensor = values_[at_++]->toTensor();
    require(tensor.scalar_type() == ScalarType::Float);
    return tensor;
  }
  const Tensor& bytes() {
    const Tensor& tensor = values_[at_++]->toTensor();
    require(tensor.scalar_type() == ScalarType::Byte);
    return tensor;
  }
  const Tensor& ids() {
    const Tensor& tensor = values_[at_++]->toTensor();
    require(tensor.scalar_type() == ScalarType::Long);
    return tensor;
  }
  // One of four dimensions.
  const Tensor& planes() {
    const Tensor& planes = tensor();
    require(planes.dim() == 4);
    return planes;
  }
  const Tensor* optional_tensor() {
    if (values_[at_]->isNone()) {
      at_++;
      return nullptr;
    }
    return &tensor();
  }
  int64_t integer() { return values_[at_++]->toInt(); }
  bool boolean() { return values_[at_++]->toBool(); }
  double number() { return values_[at_++]->toDouble(); }
  executorch::aten::ArrayRef<int64_t> integers() { return values_[at_++]->toIntList(); }
  // Two of them, for height and width.
  executorch::aten::ArrayRef<int64_t> pair() {
    const auto given = integers();
    require(given.size() == 2);
    return failed_ ? executorch::aten::ArrayRef<int64_t>(kOnes) : given;
  }
  Activation activation() {
    const int64_t index = integer();
    require(index >= 0 && index <= static_cast<int64_t>(Activation::softplus));
    return static_cast<Activation>(index);
  }

  // What does not hold fails the call: there are no outputs then, and the runtime reports it.
  void require(bool holds) {
    if (holds || failed_) return;
    failed_ = true;
    context_.fail(Error::InvalidArgument);
  }

  bool failed() const { return failed_; }

  // The next output, at the given size; null after a failure.
  float* output(std::initializer_list<int64_t> sizes) {
    SizesType wanted[4];
    size_t count = 0;
    for (int64_t size : sizes) wanted[count++] = static_cast<SizesType>(size);
    return output(executorch::aten::ArrayRef<SizesType>(wanted, count));
  }
  float* output(Shape shape) { return output({shape.channels, shape.batch, shape.height, shape.width}); }
  // An output of the same size as one of the arguments.
  float* output_like(const Tensor& like) { return output(like.sizes()); }
  float* output(executorch::aten::ArrayRef<SizesType> sizes) {
    Tensor& out = values_[at_++]->toTensor();
    require(out.scalar_type() == ScalarType::Float);
    if (!failed_) require(executorch::runtime::resize_tensor(out, sizes) == Error::Ok);
    return failed_ ? nullptr : out.mutable_data_ptr<float>();
  }

 private:
  static constexpr int64_t kOnes[2] = {1, 1};
  KernelRuntimeContext& context_;
  Span<EValue*> values_;
  size_t at_ = 0;
  bool failed_ = false;
};

inline const float* data(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }
inline const float* data(const Tensor* tensor) { return tensor ? data(*tensor) : nullptr; }

inline Shape shape_of(const Tensor& planes) {
  return {size(planes, 0), size(planes, 1), size(planes, 2), size(planes, 3)};
}

// Whether a window lies in the padded planes at least once.
inline bool fits(Window window, Shape x) {
  const int64_t limit = 1 << 20;  // far beyond any window, and far from where sums of sizes overflow
  if (window.kernel < 1 || window.kernel > limit || window.stride < 1 || window.stride > limit) return false;
  if (window.padding < 0 || window.padding > limit || x.height < 1 || x.width < 1) return false;
  return x.height + 2 * window.padding >= window.kernel && x.width + 2 * window.padding >= window.kernel;
}

// Whether, besides, every window of a pooling has a pixel to choose.
inline bool pools(Window window, Shape x) { return fits(window, x) && window.padding < window.kernel; }

// For a window that fits.
inline int64_t convolved(int64_t size, Window window) {
  return (size + 2 * window.padding - window.kernel) / window.stride + 1;
}

inline Shape convolved(int64_t channels, Shape x, Window window) {
  if (!fits(window, x)) return {};
  return {channels, x.batch, convolved(x.height, window), convolved(x.width, window)};
}

// x, moments?, gamma?, beta?, activation
inline Value value_of(Call& call) {
  const Tensor& x = call.planes();
  const Tensor* moments = call.optional_tensor();
  const Tensor* gamma = call.optional_tensor();
  const Tensor* beta = call.optional_tensor();
  const Shape shape = shape_of(x);
  const int64_t groups = moments ? size(*moments, 1) : 1;
  call.require(groups >= 1 && shape.channels % groups == 0);
  call.require(!moments == !gamma && !moments == !beta);
  call.require(has_sizes(moments, {2, groups, shape.batch}));
  call.require(has_sizes(gamma, {shape.channels}) && has_sizes(beta, {shape.channels}));
  return {data(x), shape, data(moments), data(gamma), data(beta), groups, call.activation()};
}

}  // namespace fedss
