// One call of an operator by ExecuTorch: the runtime's values read in order, outputs sized, operators registered.
// `export/lower_executorch_operators.py` declares the same operators to the exporter; a change in one is a change in the
// other, and the order of arguments is the contract between them.
#pragma once

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <initializer_list>

#include "kernels.h"

namespace fedss {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

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

inline const float* data(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }
inline const float* data(const Tensor* tensor) { return tensor ? data(*tensor) : nullptr; }

inline Shape shape_of(const Tensor& planes) { return {planes.size(0), planes.size(1), planes.size(2), planes.size(3)}; }

inline int64_t convolved(int64_t size, Window window) { return (size + 2 * window.padding - window.kernel) / window.stride + 1; }

inline Shape convolved(int64_t channels, Shape x, Window window) {
  return {channels, x.batch, convolved(x.height, window), convolved(x.width, window)};
}

// x, moments?, gamma?, beta?, activation
inline Normalised normalised(Call& call) {
  const Tensor& x = call.tensor();
  const Tensor* moments = call.optional_tensor();
  const Tensor* gamma = call.optional_tensor();
  const Tensor* beta = call.optional_tensor();
  const int64_t groups = moments ? moments->size(1) : 1;
  return {data(x), shape_of(x), data(moments), data(gamma), data(beta), groups, call.activation()};
}

}  // namespace fedss
