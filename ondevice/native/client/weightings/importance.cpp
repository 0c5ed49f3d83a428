// The C++ twin of ondevice/client/weightings/importance.py, operation for operation.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "client/contract/failure.h"
#include "client/weightings/virtual_clients.h"
#include "client/weightings/weightings.h"

namespace fedss {
namespace {

const std::string kClassShare = "class_share";  // the side array: p(y) of every row

class Importance final : public Weighting {
 public:
  explicit Importance(int64_t num_examples) : num_examples_(num_examples) {}

  std::vector<int64_t> examples(
      const RoundPlan& plan, const std::vector<int64_t>& labels, uint64_t private_seed) const override {
    if (num_examples_) return drawn_examples(num_examples_, plan, labels, private_seed);
    std::vector<int64_t> positions(labels.size());
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  }

  std::vector<float> weights(const WeightingView& view, const std::vector<int64_t>& batch) const override {
    const auto shares = view.sides.find(kClassShare);
    if (shares == view.sides.end())
      throw BadFile("the slice has no side array '" + kClassShare + "', which importance weights are made of");
    const std::vector<int64_t>& ids = ids_of(view.ids, kColumns);
    std::vector<double> ratio;
    double total = 0, least = 0;
    for (const int64_t position : batch) {
      const int64_t label = view.labels[position];
      const size_t row = std::lower_bound(ids.begin(), ids.end(), label) - ids.begin();
      const double target = shares->second.at(row);
      const auto held = std::count(view.labels.begin(), view.labels.end(), label);
      // q_k up to a factor, which the sum takes out again.
      ratio.push_back(target / static_cast<double>(held));
      total += ratio.back();
      least = std::min(least, target);
    }
    if (least < 0 || !(total > 0) || !std::isfinite(total))
      throw BadFile("the entries of " + kClassShare + " for a batch are no shares of classes; expected 0 or more");
    std::vector<float> weights;
    for (const double part : ratio) weights.push_back(static_cast<float>(part / total));
    return weights;
  }

 private:
  const int64_t num_examples_;  // as virtual clients draw them; 0 takes every example once
};

}  // namespace

std::unique_ptr<Weighting> make_importance(Fields& settings) {
  return std::make_unique<Importance>(settings.count("num_examples", 0));
}

}  // namespace fedss
