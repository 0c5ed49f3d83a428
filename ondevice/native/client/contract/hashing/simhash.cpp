#include "client/contract/hashing/simhash.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "client/contract/failure.h"
#include "client/contract/portable_random.h"

namespace fedss {
namespace {

constexpr int kVectorBits = 20;
constexpr int64_t kMaxDim = 16'384;

// Times the power of two that brings the largest entry to 20 bits, rounded.
std::vector<int64_t> whole_numbers(const float* vector, int64_t dim) {
  float largest = 0;
  for (int64_t i = 0; i < dim; i++) largest = std::max(largest, std::abs(vector[i]));
  int exponent;
  std::frexp(largest, &exponent);
  std::vector<int64_t> whole;
  for (int64_t i = 0; i < dim; i++)
    whole.push_back(
        static_cast<int64_t>(std::nearbyint(std::ldexp(static_cast<double>(vector[i]), kVectorBits - exponent))));
  return whole;
}

}  // namespace

SimHash::SimHash(int64_t num_bits, int64_t num_tables, int64_t dim, uint64_t seed)
    : num_bits_(num_bits), num_tables_(num_tables), dim_(dim) {
  if (dim >= kMaxDim)
    throw BadFile(
        "vectors have " + std::to_string(dim) + " entries; SimHash takes at most " + std::to_string(kMaxDim - 1));
  PortableRandom random(seed, 0, 0);
  planes_.resize(dim * num_tables * num_bits);
  // The sum of twelve uniform numbers of 16 bits (Irwin and Hall), about 0.
  for (int32_t& entry : planes_) {
    entry = -6 * 65'535;
    for (int i = 0; i < 12; i++) entry += static_cast<int32_t>(random.next() >> 48);
  }
}

int64_t SimHash::fingerprint() const {
  uint64_t state = mix(mix(static_cast<uint64_t>(num_bits_)) + static_cast<uint64_t>(num_tables_));
  for (int64_t i = 0; i < num_tables_ * num_bits_; i++)
    state = mix(state + static_cast<uint64_t>(static_cast<int64_t>(planes_[i])));
  return static_cast<int64_t>(state >> 32);
}

std::vector<int64_t> SimHash::buckets_of_queries(const std::vector<float>& queries) const {
  const int64_t num_planes = num_tables_ * num_bits_;
  std::set<int64_t> buckets;
  std::vector<int64_t> sums(num_planes);
  for (size_t first = 0; first < queries.size(); first += dim_) {
    std::fill(sums.begin(), sums.end(), 0);
    const std::vector<int64_t> whole = whole_numbers(queries.data() + first, dim_);
    for (int64_t i = 0; i < dim_; i++)
      for (int64_t j = 0; j < num_planes; j++) sums[j] += whole[i] * planes_[i * num_planes + j];
    for (int64_t table = 0; table < num_tables_; table++) {
      int64_t bucket = table << num_bits_;
      for (int64_t bit = 0; bit < num_bits_; bit++)
        bucket += static_cast<int64_t>(sums[table * num_bits_ + bit] > 0) << bit;
      buckets.insert(bucket);
    }
  }
  return {buckets.begin(), buckets.end()};
}

}  // namespace fedss
