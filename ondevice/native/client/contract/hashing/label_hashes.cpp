#include "client/contract/hashing/label_hashes.h"

#include <string>

#include "client/contract/failure.h"
#include "client/contract/portable_random.h"

namespace fedss {

LabelHashes::LabelHashes(int64_t num_tables, int64_t num_buckets, uint64_t seed) : num_buckets_(num_buckets) {
  PortableRandom random(seed, 0, 0);
  for (int64_t table = 0; table < num_tables; table++) {
    const int64_t multiplier = 1 + static_cast<int64_t>(random.below(kHashPrime - 1));
    coefficients_.emplace_back(multiplier, static_cast<int64_t>(random.below(kHashPrime)));
  }
}

int64_t LabelHashes::fingerprint() const {
  uint64_t state = mix(static_cast<uint64_t>(num_buckets_));
  for (const auto& [multiplier, offset] : coefficients_) {
    state = mix(state + static_cast<uint64_t>(multiplier));
    state = mix(state + static_cast<uint64_t>(offset));
  }
  return static_cast<int64_t>(state >> 32);
}

std::vector<int64_t> LabelHashes::outputs(int64_t class_id) const {
  if (class_id < 0 || class_id >= kHashPrime)
    throw BadFile("classes hold " + std::to_string(class_id) + "; expected 0 to " + std::to_string(kHashPrime - 1));
  std::vector<int64_t> found;
  for (const auto& [multiplier, offset] : coefficients_) {
    const int64_t first = static_cast<int64_t>(found.size()) * num_buckets_;
    found.push_back(first + (multiplier * class_id + offset) % kHashPrime % num_buckets_);
  }
  return found;
}

}  // namespace fedss
