// The C++ twin of ondevice/client/transforms/int8.py: the same bytes for the same differences, seed and round.
#include <algorithm>
#include <cmath>
#include <limits>

#include "client/contract/portable_random.h"
#include "client/transforms/transforms.h"

namespace fedss {
namespace {

constexpr float kLargest = 127;

// Rounded up: no quotient is beyond 127.  A float times 127 is exact as a double.
float scale_of(float largest) {
  const float scale = largest / kLargest;
  const bool too_small = static_cast<double>(scale) * 127 < largest;
  return too_small ? std::nextafter(scale, std::numeric_limits<float>::infinity()) : scale;
}

class Int8 final : public Transform {
 public:
  void apply(Weights& weights, const TransformView& view) const override {
    PortableRandom random(view.private_seed, static_cast<uint64_t>(view.round_index), kRounding);
    for (Weight& weight : weights) narrow(weight, random);
  }

 private:
  static void narrow(Weight& weight, PortableRandom& random) {
    if (weight.dtype != Dtype::F32)
      throw BadFile(weight.name + " was narrowed before; expected int8 to be the last transform, once");
    const size_t rows = weight.shape.size() > 1 ? static_cast<size_t>(weight.shape[0]) : 1;
    const size_t row_size = rows ? weight.values.size() / rows : 0;
    weight.whole_numbers.resize(weight.values.size());
    for (size_t row = 0; row < rows; row++) {
      const float* values = weight.values.data() + row * row_size;
      float largest = 0;
      for (size_t i = 0; i < row_size; i++) {
        if (!std::isfinite(values[i]))
          throw CheckFailed(weight.name + " holds NaN or infinity: local training diverged; use a lower learning rate");
        largest = std::max(largest, std::fabs(values[i]));
      }
      weight.scales.push_back(scale_of(largest));
      const double divisor = weight.scales.back() > 0 ? weight.scales.back() : 1;
      for (size_t i = 0; i < row_size; i++) {
        const double quotient = values[i] / divisor, below = std::floor(quotient);
        const bool up = random.uniform() < quotient - below;
        weight.whole_numbers[row * row_size + i] = static_cast<int8_t>(below + up);
      }
    }
    std::vector<float>().swap(weight.values);  // there is no room for two updates
    weight.dtype = Dtype::I8;
  }
};

}  // namespace

std::unique_ptr<Transform> make_int8(Fields&) { return std::make_unique<Int8>(); }

}  // namespace fedss
