#include "client/contract/portable_random.h"

#include <set>
#include <utility>

namespace fedss {

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

PortableRandom::PortableRandom(uint64_t seed, uint64_t round_index, uint64_t purpose)
    : state_(mix(mix(mix(seed) + round_index) + purpose)) {}

uint64_t PortableRandom::next() {
  state_ += 0x9E3779B97F4A7C15;
  return mix(state_);
}

uint64_t PortableRandom::below(uint64_t bound) {
  unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t reject_below = -bound % bound;
    while (static_cast<uint64_t>(product) < reject_below) product = static_cast<unsigned __int128>(next()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

std::vector<int64_t> PortableRandom::subset(int64_t size, int64_t population) {
  std::set<int64_t> chosen;
  for (int64_t last = population - size; last < population; last++) {
    const int64_t drawn = static_cast<int64_t>(below(last + 1));
    chosen.insert(chosen.count(drawn) ? last : drawn);
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<int64_t> PortableRandom::permutation(int64_t size) {
  std::vector<int64_t> order(size);
  for (int64_t i = 0; i < size; i++) order[i] = i;
  for (int64_t last = size - 1; last > 0; last--) std::swap(order[last], order[below(last + 1)]);
  return order;
}

}  // namespace fedss
