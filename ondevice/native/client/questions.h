// What a sampler may ask the server before it has its sample: where its data lies, and which rows are near.  The C++
// twin of ondevice/client/questions.py.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/contract/artifact.h"
#include "client/contract/link.h"
#include "client/contract/wire.h"
#include "client/device_files.h"
#include "client/samplers/sampling.h"
#include "client/step/exported_program.h"

namespace fedss {

// What a slice must look like for this step.
Expected expected_slice(const StepSignature&, const RoundPlan&);

// The slice in an answer; BadFile names its file.
SliceViews slice_from(const MappedFile& answer, Envelope, const RowIds&, const Expected&);

// Of one client in one round: the questions of its sampler, as messages.
class WireQuestions final : public Questions {
 public:
  WireQuestions(
      Envelope envelope, const RoundPlan& plan, const Ask& ask, const StepPlace& place, const ExampleSet& examples,
      const std::vector<int64_t>& positions)
      : envelope_(envelope), plan_(plan), ask_(ask), place_(place), examples_(examples), positions_(positions) {}

  int64_t dim() override;
  Embeddings embeddings(const std::vector<int64_t>& ids) override;
  Rows look_up(const Lookup&) override;

  // Opened when it is first needed: a client that only asks for rows needs none.
  const Artifact& artifact();
  // φ, once a sampler has asked for embeddings: views of that answer, so that the last question can do without.
  const std::optional<std::vector<TensorView>>& dense() const { return dense_; }
  // Of that answer, if there is one; they are read again when they are next touched.
  void release_pages() const;

 private:
  const Envelope envelope_;
  const RoundPlan& plan_;
  const Ask& ask_;
  const StepPlace& place_;
  const ExampleSet& examples_;
  const std::vector<int64_t>& positions_;  // of the examples that take part
  std::optional<Artifact> artifact_;
  std::optional<std::vector<TensorView>> dense_;
  const MappedFile* answer_ = nullptr;
};

}  // namespace fedss
