// What the reader of a slice expects, for the programs that test it: expected.json beside the golden messages.
#pragma once

#include <string>
#include <vector>

#include "client/contract/files/strict_json.h"
#include "client/contract/messages/lookup.h"
#include "client/contract/wire.h"
#include "client/samplers/samplers.h"
#include "client/transforms/transforms.h"
#include "client/weightings/weightings.h"

namespace fedss {

struct Case {
  Envelope envelope;
  RowIds ids;
  Expected expected;

  explicit Case(const std::string& path) {
    const MappedFile file(path);
    const Json document = parse_json({reinterpret_cast<const char*>(file.bytes().data), file.bytes().size}, path);
    envelope = {document.at("round_index"), document.at("client_id")};
    for (const auto& [table, rows] : document.at("ids").items())
      ids.push_back({table, rows.get<std::vector<int64_t>>()});
    for (const auto& [name, shape] : document.at("dense").items())
      expected.dense.push_back({name, shape.get<Dimensions>()});
    for (const auto& [table, size] : document.at("table_sizes").items()) expected.table_sizes[table] = size;
    for (const auto& [table, dim] : document.at("table_dims").items()) expected.table_dims.push_back({table, dim});
    for (const auto& [side, table] : document.at("sides").items()) expected.sides.push_back({side, table});
  }

  // The answer to a look-up of the first table's rows.
  Rows read_found(Bytes message) const {
    const auto& [table, dim] = expected.table_dims.front();
    return found_from_bytes(message, envelope, table, expected.table_sizes.at(table), dim);
  }
};

// A plan that this client can follow: read, and everything that it names is there.  Raises BadFile.
inline std::pair<Envelope, RoundPlan> usable_plan(Bytes message) {
  auto read = read_plan(message);
  chosen(kSamplers, read.second.sampler, "sampler");
  chosen(kWeightings, read.second.weighting, "weighting");
  chosen_transforms(read.second.transforms);
  return read;
}

}  // namespace fedss
