// The C++ twin of ondevice/client/samplers/all_rows.py.
#include <numeric>

#include "client/samplers/samplers.h"

namespace fedss {
namespace {

class AllRows final : public Sampler {
 public:
  RowSample draw(const SamplingView& view) const override {
    const int64_t num_rows = num_rows_of(view.plan);
    positives_of(view.labels, num_rows);  // labels out of range are an error here as everywhere
    std::vector<int64_t> ids(num_rows);
    std::iota(ids.begin(), ids.end(), 0);
    return columns_sample(std::move(ids), std::vector<float>(num_rows));
  }
};

}  // namespace

std::unique_ptr<Sampler> make_all_rows(Fields&) { return std::make_unique<AllRows>(); }

}  // namespace fedss
