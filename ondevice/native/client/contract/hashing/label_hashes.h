// R independent 2-universal hash functions that throw classes into B buckets each: the C++ twin of
// ondevice/contract/hashing/label_hashes.py, bucket for bucket.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace fedss {

constexpr int64_t kHashPrime = (int64_t{1} << 31) - 1;
constexpr int64_t kMostTables = 1024;

class LabelHashes {
 public:
  LabelHashes(int64_t num_tables, int64_t num_buckets, uint64_t seed);

  // Of what decides every bucket, in 32 bits.
  int64_t fingerprint() const;
  // The outputs of the step that a class stands for, one per table; BadFile for a class that cannot be hashed.
  std::vector<int64_t> outputs(int64_t class_id) const;

 private:
  const int64_t num_buckets_;
  std::vector<std::pair<int64_t, int64_t>> coefficients_;  // a and b of every table
};

}  // namespace fedss
