#include "client/embedding.h"

#include <algorithm>

#include "client/contract/failure.h"
#include "client/step/training_step.h"

namespace fedss {

namespace {

// One embedding after the other.  Where an example has fewer places than others there are zeros, which are left out.
void add_places(Embeddings& found, const Dimensions& shape, const float* made, size_t count) {
  for (const float* one = made; one < made + count; one += found.dim)
    if (shape.size() == 1 || std::any_of(one, one + found.dim, [](float value) { return value != 0; }))
      found.values.insert(found.values.end(), one, one + found.dim);
}

}  // namespace

Embeddings embed_places(
    const Artifact& artifact, const StepPlace& place, const StepArrays& weights, const RowIds& ids,
    const ExampleSet& examples, const std::vector<int64_t>& positions) {
  if (place.runtime != "executorch")
    throw UsageError(
        "--runtime is '" + place.runtime + "', which only trains; the plan's sampler embeds, which takes executorch");
  set_threads(place.threads);
  ExportedProgram program(artifact, "embed.pte");
  const StepSignature signature = artifact.signature.of_embedding();
  const RowSample sample{ids, {}, {}};
  const BatchGatherer gatherer(signature, examples, sample);
  MicroBatch batch = empty_batch(signature, artifact.bounds);
  StepArrays arrays;
  for (const ArraySpec& spec : signature.trained()) arrays[spec.name] = weights.at(spec.name);
  add_batch(arrays, batch);
  std::vector<ArrayView> inputs;
  for (const ArraySpec& spec : signature.of_role({Role::dense})) inputs.push_back(arrays.at(spec.name));
  for (const ArraySpec& spec : signature.embedded()) inputs.push_back(arrays.at(spec.name));
  // A last batch is filled up with padding; what becomes of that is left out.
  const std::vector<float> unweighted(positions.size());
  const size_t per_example = element_count(artifact.embedding);
  std::vector<float> made(element_count(artifact.embedded()));
  Embeddings found{artifact.embedding.back(), {}};
  for (size_t first = 0; first < positions.size(); first += artifact.micro_batch()) {
    gatherer.fill(batch, positions, unweighted, first);
    check_arrays(signature, arrays, artifact.bounds);
    program.run(inputs, {{made.data(), artifact.embedded()}});
    const size_t count = std::min<size_t>(artifact.micro_batch(), positions.size() - first);
    add_places(found, artifact.embedding, made.data(), count * per_example);
  }
  return found;
}

}  // namespace fedss
