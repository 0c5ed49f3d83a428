#include "client/questions.h"

#include <algorithm>

#include "client/contract/failure.h"
#include "client/embedding.h"
#include "client/step/training_step.h"

namespace fedss {
namespace {

// What `read` makes of an answer; BadFile names its file.
template <class Read>
auto read_answer(const MappedFile& answer, const Read& read) {
  try {
    return read(answer.bytes());
  } catch (const BadFile& error) {
    throw BadFile(answer.path() + ": " + error.what());
  }
}

}  // namespace

Expected expected_slice(const StepSignature& signature, const RoundPlan& plan) {
  Expected expected{{}, plan.table_sizes, {}, plan.sides};
  for (const ArraySpec& spec : signature.trained()) {
    if (spec.role == Role::dense) {
      expected.dense.push_back({spec.name, spec.sizes({})});
      continue;
    }
    if (!plan.table_sizes.count(spec.name))
      throw BadFile("the step has a table '" + spec.name + "', of which the plan says nothing; export for this model");
    expected.table_dims.push_back({spec.name, spec.shape[1].number});
  }
  return expected;
}

SliceViews slice_from(const MappedFile& answer, Envelope envelope, const RowIds& ids, const Expected& expected) {
  return read_answer(answer, [&](Bytes message) { return read_slice(message, envelope, ids, expected); });
}

const Artifact& WireQuestions::artifact() {
  if (!artifact_) artifact_.emplace(place_.artifact);
  return *artifact_;
}

int64_t WireQuestions::dim() {
  for (const ArraySpec& table : artifact().signature.tables())
    if (table.name == kColumns) return table.shape[1].number;
  throw BadFile("the step has no table '" + kColumns + "', which the plan's sampler looks rows up in; choose another");
}

Embeddings WireQuestions::embeddings(const std::vector<int64_t>& ids) {
  const std::vector<ArraySpec> embedded = artifact().signature.embedded();
  const bool reads =
      std::any_of(embedded.begin(), embedded.end(), [](const ArraySpec& spec) { return spec.role == Role::table; });
  // Where the extractor reads no rows, the client's own would tell its classes for nothing: a slice has one row at
  // least, and the first says nothing of anyone.
  const RowIds asked{{kColumns, reads ? ids : std::vector<int64_t>{0}}};
  const Expected expected = expected_slice(artifact().signature, plan_);
  answer_ = &ask_(request_to_bytes(envelope_, asked));
  const SliceViews slice = slice_from(*answer_, envelope_, asked, expected);
  Arrays weights;
  for (const TensorView& tensor : slice.weights) {
    weights.emplace_back(element_count(tensor.shape));
    tensor.floats(weights.back().data());
  }
  release_pages();
  dense_.emplace(slice.weights.begin(), slice.weights.begin() + static_cast<ptrdiff_t>(expected.dense.size()));
  StepArrays arrays;
  add_weights(
      arrays, artifact().signature, weights, {{rows_of(kColumns), static_cast<int64_t>(asked[0].second.size())}});
  return embed_places(artifact(), place_, arrays, asked, examples_, positions_);
}

Rows WireQuestions::look_up(const Lookup& lookup) {
  const int64_t num_rows = num_rows_of(plan_), entries = dim();
  return read_answer(ask_(lookup_to_bytes(envelope_, lookup)), [&](Bytes message) {
    return found_from_bytes(message, envelope_, kColumns, num_rows, entries);
  });
}

void WireQuestions::release_pages() const {
  if (answer_) answer_->release_pages();
}

}  // namespace fedss
