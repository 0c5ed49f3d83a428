// The C++ twin of ondevice/client/samplers/uniform_negatives.py, draw for draw.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "../portable_random.h"
#include "samplers.h"

namespace fedss {
namespace {

std::vector<int64_t> draw_negatives(
    const std::vector<int64_t>& positives, int64_t count, int64_t num_rows, PortableRandom& random) {
  std::vector<int64_t> negatives = random.subset(count, num_rows - static_cast<int64_t>(positives.size()));
  // A rank among the other classes becomes an id by stepping over the positives before it; both lists are sorted.
  int64_t before = 0;
  for (int64_t& rank : negatives) {
    while (before < static_cast<int64_t>(positives.size()) && positives[before] - before <= rank) before++;
    rank += before;
  }
  return negatives;
}

class UniformNegatives final : public Sampler {
 public:
  UniformNegatives(int64_t num_negatives, bool exclude_positives)
      : num_negatives_(num_negatives), exclude_positives_(exclude_positives) {}

  RowSample draw(const SamplingView& view) const override {
    const int64_t num_rows = num_rows_of(view.plan);
    const std::vector<int64_t> positives = positives_of(view.labels, num_rows);
    const int64_t num_others = num_rows - static_cast<int64_t>(positives.size());
    const int64_t count = std::min(num_negatives_, num_others);
    PortableRandom random(view.private_seed, static_cast<uint64_t>(view.plan.round_index), kNegatives);
    const std::vector<int64_t> negatives = draw_negatives(positives, count, num_rows, random);
    std::vector<int64_t> ids;
    std::merge(positives.begin(), positives.end(), negatives.begin(), negatives.end(), std::back_inserter(ids));
    // Eq. 3-5: minus the log expected count, 0 for a positive; Eq. 7: the other positives push nothing away.
    const float positive = exclude_positives_ ? kExcluded : 0;
    const double expected_count = count ? static_cast<double>(count) / static_cast<double>(num_others) : 1;
    const float negative = static_cast<float>(-std::log(expected_count));
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
