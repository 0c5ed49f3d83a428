#include "client/samplers/sampling.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "client/contract/failure.h"
#include "client/contract/portable_random.h"
#include "client/contract/tokens.h"

namespace fedss {

int64_t num_rows_of(const RoundPlan& plan) {
  const auto found = plan.table_sizes.find(kColumns);
  if (found == plan.table_sizes.end())
    throw BadFile("the plan has no table '" + kColumns + "', which its sampler draws from; choose another sampler");
  return found->second;
}

std::vector<int64_t> positives_of(const std::vector<int64_t>& labels, int64_t num_rows, const std::string& what) {
  std::vector<int64_t> positives = labels;
  std::sort(positives.begin(), positives.end());
  positives.erase(std::unique(positives.begin(), positives.end()), positives.end());
  if (positives.empty()) throw BadFile("the client holds no examples, so it has no classes to ask for");
  if (positives.front() < 0 || positives.back() >= num_rows)
    throw BadFile(
        what + " reach from " + std::to_string(positives.front()) + " to " + std::to_string(positives.back()) +
        "; expected 0 to " + std::to_string(num_rows - 1));
  return positives;
}

std::vector<int64_t> own_words(const SamplingView& view, int64_t num_rows) {
  const std::vector<int64_t> predicted = positives_of(view.labels, num_rows);
  const std::vector<int64_t> read = read_words(view, num_rows);
  std::vector<int64_t> words;
  std::set_union(predicted.begin(), predicted.end(), read.begin(), read.end(), std::back_inserter(words));
  return words;
}

std::vector<int64_t> read_words(const SamplingView& view, int64_t num_rows) {
  std::vector<int64_t> tokens = view.numbers(kTokens);
  for (int64_t special = 0; special < kNumSpecial; special++) tokens.push_back(special);
  return positives_of(tokens, num_rows, kTokens);
}

std::vector<int64_t> draw_negatives(const SamplingView& view, const std::vector<int64_t>& positives, int64_t count) {
  PortableRandom random(view.private_seed, static_cast<uint64_t>(view.plan.round_index), kNegatives);
  const int64_t num_positives = static_cast<int64_t>(positives.size());
  std::vector<int64_t> negatives = random.subset(count, num_rows_of(view.plan) - num_positives);
  // A rank among the other classes becomes an id by stepping over the positives before it; both lists are sorted.
  int64_t before = 0;
  for (int64_t& rank : negatives) {
    while (before < num_positives && positives[before] - before <= rank) before++;
    rank += before;
  }
  return negatives;
}

float negatives_adjustment(int64_t count, int64_t num_others) {
  const double expected_count = count ? static_cast<double>(count) / static_cast<double>(num_others) : 1;
  return static_cast<float>(-std::log(expected_count));
}

RowSample columns_sample(std::vector<int64_t> ids, std::vector<float> adjust) {
  return {{{kColumns, std::move(ids)}}, {{"adjust", std::move(adjust)}}, {}};
}

}  // namespace fedss
