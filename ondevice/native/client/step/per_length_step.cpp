#include "client/step/per_length_step.h"

#include <map>

namespace fedss {
namespace {

// The programs of one length, opened when a text first needs them.
struct OfLength {
  OfLength(const Artifact& whole, int64_t size, const OpenOne& open)
      : artifact(whole.of_length(size)),
        step(open(artifact)),
        texts(whole.lengths, artifact.signature, artifact.bounds) {}

  const Artifact artifact;
  const std::unique_ptr<TrainingStep> step;
  CutTexts texts;
};

class PerLengthStep final : public TrainingStep {
 public:
  PerLengthStep(const Artifact& artifact, OpenOne open) : TrainingStep(artifact), open_(std::move(open)) {}

  int64_t planned_bytes() override { return longest().planned_bytes(); }
  std::vector<int64_t> profile() override { return longest().profile(); }

 protected:
  float run_checked(const StepArrays& arrays, Arrays& gradients) override {
    OfLength& shortest = of(artifact_.lengths.holding(signature(), arrays));
    return shortest.step->run(shortest.texts.cut(arrays), gradients);
  }

 private:
  OfLength& of(int64_t size) { return opened_.try_emplace(size, artifact_, size, open_).first->second; }
  TrainingStep& longest() { return *of(artifact_.lengths.sizes.back()).step; }

  const OpenOne open_;
  std::map<int64_t, OfLength> opened_;
};

}  // namespace

std::unique_ptr<TrainingStep> open_per_length_step(const Artifact& artifact, OpenOne open) {
  return std::make_unique<PerLengthStep>(artifact, std::move(open));
}

}  // namespace fedss
