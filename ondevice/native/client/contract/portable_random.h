// SplitMix64 and five ways to use it: the C++ twin of ondevice/contract/portable_random.py, draw for draw.
#pragma once

#include <cstdint>
#include <vector>

namespace fedss {

// Separates the draws of one client and round; the order of examples in epoch e is drawn with kFirstEpoch + e.
constexpr uint64_t kNegatives = 0, kFirstEpoch = 1;
// Beyond every epoch: what a transform rounds up or down.
constexpr uint64_t kRounding = uint64_t{1} << 32;
// Which of its examples a client trains on.
constexpr uint64_t kExampleDraw = kRounding + 1;
// What dropout decides by in SGD step s of a round is drawn with kNoise + s.
constexpr uint64_t kNoise = uint64_t{1} << 34;

// SplitMix64's mixer.
uint64_t mix(uint64_t value);

class PortableRandom {
 public:
  PortableRandom(uint64_t seed, uint64_t round_index, uint64_t purpose);

  uint64_t next();
  // Uniform in [0, bound); Lemire's multiply-and-reject.
  uint64_t below(uint64_t bound);
  // A multiple of 2^-53 in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // A multiple of 2^-24 in [0, 1): float32 holds it exactly.
  float noise() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  // `size` distinct numbers out of [0, population), sorted; Floyd's algorithm.
  std::vector<int64_t> subset(int64_t size, int64_t population);
  // A random order of 0..size-1; Fisher and Yates, from the end.
  std::vector<int64_t> permutation(int64_t size);

 private:
  uint64_t state_;
};

}  // namespace fedss
