#include "class_sampling.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "failure.h"
#include "portable_random.h"

namespace fedss {
namespace {

// Removes a class exactly: exp underflows to 0.
constexpr float kExcluded = -1e9f;

int64_t num_negatives(const RoundPlan& plan, int64_t num_others) {
  if (plan.method == Method::positives_only) return 0;
  if (plan.method == Method::full_softmax) return num_others;
  return std::min(plan.num_negatives, num_others);
}

std::vector<int64_t> draw_negatives(const std::vector<int64_t>& positives, int64_t count, const RoundPlan& plan, uint64_t seed) {
  PortableRandom random(seed, static_cast<uint64_t>(plan.envelope.round_index), kNegatives);
  std::vector<int64_t> negatives = random.subset(count, plan.num_classes - static_cast<int64_t>(positives.size()));
  // A rank among the other classes becomes an id by stepping over the positives before it; both lists are sorted.
  int64_t before = 0;
  for (int64_t& rank : negatives) {
    while (before < static_cast<int64_t>(positives.size()) && positives[before] - before <= rank) before++;
    rank += before;
  }
  return negatives;
}

}  // namespace

ClassSample sample_classes(const std::vector<int64_t>& labels, const RoundPlan& plan, uint64_t private_seed) {
  std::vector<int64_t> positives = labels;
  std::sort(positives.begin(), positives.end());
  positives.erase(std::unique(positives.begin(), positives.end()), positives.end());
  if (positives.empty()) throw BadFile("the client holds no examples, so it has no classes to ask for");
  if (positives.front() < 0 || positives.back() >= plan.num_classes)
    throw BadFile("labels reach from " + std::to_string(positives.front()) + " to " + std::to_string(positives.back()) +
                  "; expected 0 to " + std::to_string(plan.num_classes - 1));
  const int64_t num_others = plan.num_classes - static_cast<int64_t>(positives.size());
  const int64_t count = num_negatives(plan, num_others);
  const std::vector<int64_t> negatives = draw_negatives(positives, count, plan, private_seed);
  ClassSample sample;
  std::merge(positives.begin(), positives.end(), negatives.begin(), negatives.end(), std::back_inserter(sample.class_ids));
  // Eq. 3-5: minus the log expected count, 0 for a positive; Eq. 7: the other positives push nothing away.
  const float positive = plan.method == Method::negatives_only ? kExcluded : -0.0f;
  const float negative = count ? -static_cast<float>(std::log(static_cast<double>(count) / static_cast<double>(num_others))) : 0;
  for (const int64_t id : sample.class_ids)
    sample.adjust.push_back(std::binary_search(positives.begin(), positives.end(), id) ? positive : negative);
  return sample;
}

}  // namespace fedss
