// The C++ twin of ondevice/client/samplers/word_negatives.py, draw for draw.
#include <algorithm>
#include <iterator>

#include "client/contract/tokens.h"
#include "client/samplers/samplers.h"

namespace fedss {
namespace {

class WordNegatives final : public Sampler {
 public:
  explicit WordNegatives(int64_t num_negatives) : num_negatives_(num_negatives) {}

  RowSample draw(const SamplingView& view) const override {
    const int64_t num_rows = num_rows_of(view.plan);
    const std::vector<int64_t> positives = own_words(view, num_rows);
    const int64_t num_others = num_rows - static_cast<int64_t>(positives.size());
    const int64_t count = std::min(num_negatives_, num_others);
    const std::vector<int64_t> negatives = draw_negatives(view, positives, count);
    std::vector<int64_t> ids;
    std::merge(positives.begin(), positives.end(), negatives.begin(), negatives.end(), std::back_inserter(ids));
    const float negative = negatives_adjustment(count, num_others);
    std::vector<float> adjust;
    for (const int64_t id : ids) {
      const bool is_positive = std::binary_search(positives.begin(), positives.end(), id);
      adjust.push_back(id < kNumSpecial ? kExcluded : is_positive ? 0 : negative);
    }
    return columns_sample(std::move(ids), std::move(adjust));
  }

 private:
  const int64_t num_negatives_;
};

}  // namespace

std::unique_ptr<Sampler> make_word_negatives(Fields& settings) {
  return std::make_unique<WordNegatives>(settings.count("num_negatives", 0));
}

}  // namespace fedss
