// SimHash of a client's embeddings: the C++ twin of ondevice/contract/hashing/simhash.py, bucket for bucket.  A sign is
// taken of a sum of whole numbers, which no machine rounds: what lies on a plane falls to the same side here as on the
// server.
//
// Rows are hashed by the server alone.  A norm bound changes them, and of a query no sign, so it is not known here.
#pragma once

#include <cstdint>
#include <vector>

namespace fedss {

constexpr int64_t kMaxBits = 30, kMaxTables = 4096;

class SimHash {
 public:
  // Raises BadFile for vectors that are too long for exact sums.
  SimHash(int64_t num_bits, int64_t num_tables, int64_t dim, uint64_t seed);

  // Of what decides every bucket, in 32 bits, whatever the vectors' size.
  int64_t fingerprint() const;
  // Vectors of `dim` finite numbers, one behind the other -> the buckets that any of them falls into, sorted.
  std::vector<int64_t> buckets_of_queries(const std::vector<float>& queries) const;

 private:
  const int64_t num_bits_, num_tables_, dim_;
  std::vector<int32_t> planes_;  // [dim, L · K]
};

}  // namespace fedss
