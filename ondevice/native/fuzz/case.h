// What the reader of a slice expects, for the programs that test it: expected.json beside the golden messages.
#pragma once

#include <string>
#include <vector>

#include "../client/strict_json.h"
#include "../client/wire.h"

namespace fedss {

struct Case {
  Envelope envelope;
  std::vector<int64_t> class_ids;
  Expected expected;

  explicit Case(const std::string& path) {
    const MappedFile file(path);
    const Json document = parse_json({reinterpret_cast<const char*>(file.bytes().data), file.bytes().size}, path);
    envelope = {document.at("round_index"), document.at("client_id")};
    class_ids = document.at("class_ids").get<std::vector<int64_t>>();
    expected = {document.at("num_classes"), document.at("column_dim"), {}};
    for (const auto& [name, shape] : document.at("extractor_shapes").items())
      expected.extractor.push_back({name, shape.get<Dimensions>()});
  }
};

}  // namespace fedss
