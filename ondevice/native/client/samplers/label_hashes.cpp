// The C++ twin of ondevice/client/samplers/label_hashes.py.
#include "client/contract/hashing/label_hashes.h"

#include "client/samplers/samplers.h"

namespace fedss {
namespace {

class HashedLabels final : public Sampler {
 public:
  explicit HashedLabels(const LabelHashes& hashes) : hashes_(hashes) {}

  RowSample draw(const SamplingView&) const override {
    return {{}, {}, [hashes = hashes_](int64_t class_id) { return hashes.outputs(class_id); }};
  }

 private:
  const LabelHashes hashes_;
};

}  // namespace

std::unique_ptr<Sampler> make_label_hashes(Fields& settings) {
  const int64_t num_tables = settings.count("num_tables", 1);
  const int64_t num_buckets = settings.count("num_buckets", 1);
  const int64_t seed = settings.count("seed", 0);
  const int64_t told = settings.count("fingerprint", 0);
  if (num_tables > kMostTables || num_buckets >= kHashPrime)
    settings.fail(
        "num_tables is " + std::to_string(num_tables) + " and num_buckets " + std::to_string(num_buckets) +
        "; expected at most " + std::to_string(kMostTables) + " and " + std::to_string(kHashPrime - 1));
  const LabelHashes hashes(num_tables, num_buckets, static_cast<uint64_t>(seed));
  if (hashes.fingerprint() != told)
    settings.fail(
        "the hash functions of seed " + std::to_string(seed) + " have the fingerprint " +
        std::to_string(hashes.fingerprint()) + " here, the plan says " + std::to_string(told) +
        ": client and server are of different versions, or the plan is damaged");
  return std::make_unique<HashedLabels>(hashes);
}

}  // namespace fedss
