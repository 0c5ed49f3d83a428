// Examples as the extractor sees them, for samplers that look near: the C++ twin of ondevice/client/embedding.py.
#pragma once

#include <cstdint>
#include <vector>

#include "client/contract/vocabulary.h"
#include "client/device_files.h"
#include "client/samplers/sampling.h"
#include "client/step/exported_program.h"

namespace fedss {

// All places of those at `positions` through `embed.pte`, a micro-batch at a time.  `weights` has the dense parameters,
// and of every table that the extractor reads the rows `ids`.
Embeddings embed_places(
    const Artifact&, const StepPlace&, const StepArrays& weights, const RowIds& ids, const ExampleSet&,
    const std::vector<int64_t>& positions);

}  // namespace fedss
