#include "client/contract/messages/lookup.h"

#include "client/contract/messages/checked_tensors.h"

namespace fedss {

std::string lookup_to_bytes(Envelope envelope, const Lookup& lookup) {
  std::vector<OutTensor> tensors;
  if (lookup.buckets.empty()) {
    const int64_t count = static_cast<int64_t>(lookup.queries.size()) / lookup.dim;
    tensors.push_back({"queries", Dtype::F32, {count, lookup.dim}, lookup.queries.data()});
  } else {
    const int64_t count = static_cast<int64_t>(lookup.buckets.size());
    tensors.push_back({"buckets", Dtype::I64, {count}, lookup.buckets.data()});
    tensors.push_back({"fingerprint", Dtype::I64, {1}, &lookup.fingerprint});
  }
  return tensors_to_bytes(tensors, metadata_of("lookup", envelope));
}

Rows found_from_bytes(Bytes message, Envelope envelope, const std::string& table, int64_t num_rows, int64_t dim) {
  const TensorFile file = decoded(message, "found", envelope);
  expect_names(file.tensors, {"rows." + table, "table." + table});
  Rows found{row_ids(file.tensors, table, num_rows), {}};
  const TensorView values = floats(file.tensors, "table." + table, {static_cast<int64_t>(found.ids.size()), dim});
  found.values.resize(element_count(values.shape));
  values.floats(found.values.data());
  return found;
}

}  // namespace fedss
