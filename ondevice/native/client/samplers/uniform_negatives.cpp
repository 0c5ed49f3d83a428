// The C++ twin of ondevice/client/samplers/uniform_negatives.py, draw for draw.
#include <algorithm>
#include <iterator>

#include "client/samplers/samplers.h"

namespace fedss {
namespace {

class UniformNegatives final : public Sampler {
 public:
  UniformNegatives(int64_t num_negatives, bool exclude_positives)
      : num_negatives_(num_negatives), exclude_positives_(exclude_positives) {}

  RowSample draw(const SamplingView& view) const override {
    const int64_t num_rows = num_rows_of(view.plan);
    const std::vector<int64_t> positives = positives_of(view.labels, num_rows);
    const int64_t num_others = num_rows - static_cast<int64_t>(positives.size());
    const int64_t count = std::min(num_negatives_, num_others);
    const std::vector<int64_t> negatives = draw_negatives(view, positives, count);
    std::vector<int64_t> ids;
    std::merge(positives.begin(), positives.end(), negatives.begin(), negatives.end(), std::back_inserter(ids));
    // Eq. 3-5: minus the log expected count, 0 for a positive; Eq. 7: the other positives push nothing away.
    const float positive = exclude_positives_ ? kExcluded : 0;
    const float negative = negatives_adjustment(count, num_others);
    std::vector<float> adjust;
    for (const int64_t id : ids)
      adjust.push_back(std::binary_search(positives.begin(), positives.end(), id) ? positive : negative);
    return columns_sample(std::move(ids), std::move(adjust));
  }

 private:
  const int64_t num_negatives_;
  const bool exclude_positives_;
};

}  // namespace

std::unique_ptr<Sampler> make_uniform_negatives(Fields& settings) {
  return std::make_unique<UniformNegatives>(
      settings.count("num_negatives", 0), settings.flag("exclude_positives", false));
}

}  // namespace fedss
