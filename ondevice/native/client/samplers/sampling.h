// What a sampler sees, and what it gives, and the arithmetic that samplers share: the C++ twin of
// ondevice/client/samplers/sampling.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/contract/link.h"
#include "client/contract/vocabulary.h"

namespace fedss {

// What a client lets its sampler see.  None of it leaves the device but by the sampler's own questions.
struct SamplingView {
  const RoundPlan& plan;
  const std::vector<int64_t>& labels;
  uint64_t private_seed;
  const Ask& ask;  // for samplers whose draw takes more than one exchange with the server
  // All values of a feature of whole numbers, of the examples that take part; BadFile where there is no such feature.
  std::function<std::vector<int64_t>(const std::string& name)> numbers;
};

// Draws the rows of one client and round; the same view gives the same sample, here and in Python.
class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual RowSample draw(const SamplingView&) const = 0;
};

// How many rows the classifier's table has on the server.
int64_t num_rows_of(const RoundPlan&);
// P_k: the classes that the client holds, sorted.
std::vector<int64_t> positives_of(
    const std::vector<int64_t>& labels, int64_t num_rows, const std::string& what = "labels");
// N_k: sorted, uniform without replacement from the classes that are not positives.
std::vector<int64_t> draw_negatives(const SamplingView&, const std::vector<int64_t>& positives, int64_t count);
// Eq. 3-5: minus the log expected count of each of `num_others` classes of which `count` were drawn.
float negatives_adjustment(int64_t count, int64_t num_others);
// A draw over the classifier's table.
RowSample columns_sample(std::vector<int64_t> ids, std::vector<float> adjust);

}  // namespace fedss
