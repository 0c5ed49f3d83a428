// The C++ twin of ondevice/client/weightings/virtual_clients.py, draw for draw.
#include "client/weightings/virtual_clients.h"

#include "client/contract/failure.h"
#include "client/contract/portable_random.h"
#include "client/weightings/weightings.h"

namespace fedss {
namespace {

class VirtualClients final : public Weighting {
 public:
  explicit VirtualClients(int64_t num_examples) : num_examples_(num_examples) {}

  std::vector<int64_t> examples(
      const RoundPlan& plan, const std::vector<int64_t>& labels, uint64_t private_seed) const override {
    return drawn_examples(num_examples_, plan, labels, private_seed);
  }

  std::vector<float> weights(const WeightingView&, const std::vector<int64_t>& batch) const override {
    return std::vector<float>(batch.size(), static_cast<float>(1 / static_cast<double>(batch.size())));
  }

 private:
  const int64_t num_examples_;
};

}  // namespace

std::vector<int64_t> drawn_examples(
    int64_t count, const RoundPlan& plan, const std::vector<int64_t>& labels, uint64_t private_seed) {
  if (labels.empty()) throw BadFile("the client holds no examples, so there is nothing to draw from");
  PortableRandom random(private_seed, static_cast<uint64_t>(plan.round_index), kExampleDraw);
  const int64_t held = static_cast<int64_t>(labels.size());
  if (held >= count) return random.subset(count, held);
  std::vector<int64_t> positions(count);
  for (int64_t& position : positions) position = static_cast<int64_t>(random.below(static_cast<uint64_t>(held)));
  return positions;
}

std::unique_ptr<Weighting> make_virtual_clients(Fields& settings) {
  return std::make_unique<VirtualClients>(settings.count("num_examples", 1));
}

}  // namespace fedss
