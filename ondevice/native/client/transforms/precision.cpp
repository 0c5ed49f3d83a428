// The C++ twin of ondevice/client/transforms/precision.py.
#include <algorithm>
#include <cmath>

#include "client/contract/files/small_floats.h"
#include "client/transforms/transforms.h"

namespace fedss {
namespace {

constexpr float kLargestHalf = 65504;

class Precision final : public Transform {
 public:
  explicit Precision(Dtype dtype) : dtype_(dtype) {}

  void apply(Weights& weights, const TransformView&) const override {
    if (dtype_ == Dtype::F32) return;
    for (Weight& weight : weights) narrow(weight);
  }

 private:
  void narrow(Weight& weight) const {
    if (weight.dtype != Dtype::F32)
      throw BadFile(weight.name + " was narrowed before; expected precision to be the last transform, once");
    if (dtype_ == Dtype::F16)
      for (const float value : weight.values)
        if (!(std::fabs(value) <= kLargestHalf))
          throw CheckFailed(
              weight.name + " holds " + std::to_string(value) + ", beyond fp16's 65504; send it as bf16 or fp32");
    weight.bits.resize(weight.values.size());
    std::transform(
        weight.values.begin(), weight.values.end(), weight.bits.begin(),
        dtype_ == Dtype::F16 ? float_to_half : float_to_bfloat16);
    std::vector<float>().swap(weight.values);  // there is no room for two updates
    weight.dtype = dtype_;
  }

  const Dtype dtype_;
};

}  // namespace

std::unique_ptr<Transform> make_precision(Fields& settings) {
  const std::string format = settings.word("format", "fp32");
  for (const auto& [name, dtype] : {std::pair("fp32", Dtype::F32), {"fp16", Dtype::F16}, {"bf16", Dtype::BF16}})
    if (format == name) return std::make_unique<Precision>(dtype);
  settings.fail("format is '" + format + "'; expected one of fp32, fp16, bf16");
}

}  // namespace fedss
