// The C++ twin of ondevice/client/samplers/word_negatives.py, draw for draw.
#include <algorithm>
#include <iterator>

#include "client/samplers/samplers.h"

namespace fedss {
namespace {

// As in ondevice/contract/tokens.py.
constexpr int64_t kNumSpecial = 4;
const std::string kTokens = "tokens";

class WordNegatives final : public Sampler {
 public:
  explicit WordNegatives(int64_t num_negatives) : num_negatives_(num_negatives) {}

  RowSample draw(const SamplingView& view) const override {
    const int64_t num_rows = num_rows_of(view.plan);
    const std::vector<int64_t> predicted = positives_of(view.labels, num_rows);
    std::vector<int64_t> tokens = view.numbers(kTokens);
    for (int64_t special = 0; special < kNumSpecial; special++) tokens.push_back(special);
    const std::vector<int64_t> read = positives_of(tokens, num_rows, kTokens);
    std::vector<int64_t> positives;
    std::set_union(predicted.begin(), predicted.end(), read.begin(), read.end(), std::back_inserter(positives));
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
