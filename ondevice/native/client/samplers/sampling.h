// What a sampler sees, and what it gives, and the arithmetic that samplers share: the C++ twin of
// ondevice/client/samplers/sampling.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/contract/messages/lookup.h"
#include "client/contract/vocabulary.h"

namespace fedss {

// Places of examples as the extractor sees them, [any, dim].
struct Embeddings {
  int64_t dim;
  std::vector<float> values;
};

// What a sampler may ask the server before it has its sample (client/questions.h).
class Questions {
 public:
  virtual ~Questions() = default;
  // Entries of a row of the classifier's table.
  virtual int64_t dim() = 0;
  // All places of the examples that take part through φ of this round; `ids` are rows that they read.
  virtual Embeddings embeddings(const std::vector<int64_t>& ids) = 0;
  // The rows of the classifier's table that the server finds.
  virtual Rows look_up(const Lookup&) = 0;
};

// What a client lets its sampler see.  None of it leaves the device but by the sampler's own questions.
struct SamplingView {
  const RoundPlan& plan;
  const std::vector<int64_t>& labels;
  uint64_t private_seed;
  // All values of a feature of whole numbers, of the examples that take part; BadFile where there is no such feature.
  std::function<std::vector<int64_t>(const std::string& name)> numbers;
  Questions& questions;  // for samplers whose draw takes more than one exchange with the server
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
// P_k over a table of words that is read and predicted from: all words of both kinds, and the special tokens.
std::vector<int64_t> own_words(const SamplingView&, int64_t num_rows);
// The words of the client's texts, and the special tokens, sorted.
std::vector<int64_t> read_words(const SamplingView&, int64_t num_rows);
// N_k: sorted, uniform without replacement from the classes that are not positives.
std::vector<int64_t> draw_negatives(const SamplingView&, const std::vector<int64_t>& positives, int64_t count);
// Eq. 3-5: minus the log expected count of each of `num_others` classes of which `count` were drawn.
float negatives_adjustment(int64_t count, int64_t num_others);
// A draw over the classifier's table.
RowSample columns_sample(std::vector<int64_t> ids, std::vector<float> adjust);

}  // namespace fedss
