// Raw pixels as a network wants them: bytes in, (x / 255 - mean) / deviation = x * scale - shift out, in one pass.
#include "kernels/kernels.h"

namespace fedss::FEDSS_ISA {

void pixels(
    const uint8_t* images, int64_t channels, int64_t plane, const float* scale, const float* shift, float* out,
    int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at++) {
    const float by = scale[at % channels], minus = shift[at % channels];
    const uint8_t* x = images + at * plane;
    float* y = out + at * plane;
    for (int64_t i = 0; i < plane; i++) y[i] = static_cast<float>(x[i]) * by - minus;
  }
}

}  // namespace fedss::FEDSS_ISA
