#include "sampling.h"

#include <algorithm>
#include <string>

#include "../failure.h"

namespace fedss {

int64_t num_rows_of(const RoundPlan& plan) {
  const auto found = plan.table_sizes.find(kColumns);
  if (found == plan.table_sizes.end())
    throw BadFile("the plan has no table '" + kColumns + "', which its sampler draws from; choose another sampler");
  return found->second;
}

std::vector<int64_t> positives_of(const std::vector<int64_t>& labels, int64_t num_rows) {
  std::vector<int64_t> positives = labels;
  std::sort(positives.begin(), positives.end());
  positives.erase(std::unique(positives.begin(), positives.end()), positives.end());
  if (positives.empty()) throw BadFile("the client holds no examples, so it has no classes to ask for");
  if (positives.front() < 0 || positives.back() >= num_rows)
    throw BadFile(
        "labels reach from " + std::to_string(positives.front()) + " to " + std::to_string(positives.back()) +
        "; expected 0 to " + std::to_string(num_rows - 1));
  return positives;
}

RowSample columns_sample(std::vector<int64_t> ids, std::vector<float> adjust) {
  return {{{kColumns, std::move(ids)}}, {{"adjust", std::move(adjust)}}};
}

}  // namespace fedss
