// The C++ twin of ondevice/client/samplers/positives.py.
#include "client/samplers/samplers.h"

namespace fedss {
namespace {

class Positives final : public Sampler {
 public:
  RowSample draw(const SamplingView& view) const override {
    std::vector<int64_t> ids = positives_of(view.labels, num_rows_of(view.plan));
    std::vector<float> adjust(ids.size());
    return columns_sample(std::move(ids), std::move(adjust));
  }
};

}  // namespace

std::unique_ptr<Sampler> make_positives(Fields&) { return std::make_unique<Positives>(); }

}  // namespace fedss
