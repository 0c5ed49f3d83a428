#include "client/noise.h"

#include <algorithm>
#include <cstring>

namespace fedss {

void BatchNoise::fill(MicroBatch& out, size_t left) {
  const size_t examples = std::min(static_cast<size_t>(out.back().shape[0]), left);
  // Example after example: how a batch is split changes nothing.
  for (size_t i = 0; i < examples; i++)
    for (NamedArray& array : out) {
      if (array.spec.role != Role::noise) continue;
      for (size_t at = 0; at < array.entry_bytes; at += sizeof(float)) {
        const float number = random_.noise();
        std::memcpy(array.entry(i) + at, &number, sizeof number);
      }
    }
  for (NamedArray& array : out)
    if (array.spec.role == Role::noise) array.pad_from(examples);
}

}  // namespace fedss
