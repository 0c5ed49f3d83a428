// The C++ twin of ondevice/client/weightings/uniform.py.
#include <numeric>

#include "client/weightings/weightings.h"

namespace fedss {
namespace {

class Uniform final : public Weighting {
 public:
  std::vector<int64_t> examples(const RoundPlan&, const std::vector<int64_t>& labels, uint64_t) const override {
    std::vector<int64_t> positions(labels.size());
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  }

  std::vector<float> weights(const WeightingView&, const std::vector<int64_t>& batch) const override {
    return std::vector<float>(batch.size(), static_cast<float>(1 / static_cast<double>(batch.size())));
  }
};

}  // namespace

std::unique_ptr<Weighting> make_uniform(Fields&) { return std::make_unique<Uniform>(); }

}  // namespace fedss
