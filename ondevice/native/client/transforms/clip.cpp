// The C++ twin of ondevice/client/transforms/clip.py.
#include <cmath>

#include "client/transforms/transforms.h"

namespace fedss {
namespace {

// What rounding the factor and the products to float32 may add is taken off before: the bound holds, not nearly.
constexpr double kBelow = 1 - 0x1p-22;

class Clip final : public Transform {
 public:
  explicit Clip(double norm) : norm_(norm) {}

  void apply(Weights& weights, const TransformView&) const override {
    double squares = 0;
    for (const Weight& weight : weights) {
      if (weight.dtype != Dtype::F32)
        throw BadFile(weight.name + " was narrowed before; expected clip to come before precision and int8");
      double of_tensor = 0;
      for (const float value : weight.values) of_tensor += static_cast<double>(value) * value;
      squares += of_tensor;
    }
    const double length = std::sqrt(squares);
    if (length <= norm_) return;
    const float scale = static_cast<float>(kBelow * norm_ / length);
    for (Weight& weight : weights)
      for (float& value : weight.values) value *= scale;
  }

 private:
  const double norm_;
};

}  // namespace

std::unique_ptr<Transform> make_clip(Fields& settings) {
  const double norm = settings.number("norm");
  if (norm == 0) settings.fail("norm is 0; expected a positive number");
  return std::make_unique<Clip>(norm);
}

}  // namespace fedss
