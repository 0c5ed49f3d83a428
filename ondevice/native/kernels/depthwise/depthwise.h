// The two ways to convolve planes channel by channel, of which `depthwise.cpp` chooses one.
//
//   narrow: a register holds one pixel of several channels.  Columns outside the plane are left out when this is
//           compiled, for each width on its own, and nothing is wasted on rows that are no multiple of a register.
//   wide:   a register holds neighbouring pixels of one channel, with rows of four registers and more.
#pragma once

#include "kernels/kernels.h"

namespace fedss::FEDSS_ISA {

constexpr int64_t kWidestNarrow = 16;

#define FEDSS_DEPTHWISE(way)                                                                                 \
  namespace way {                                                                                            \
  void depthwise(const Value&, const float* weight, Window, float* out, int64_t begin, int64_t end);         \
  void input_gradient(                                                                                       \
      const float* gradient, Shape out_shape, const float* weight, Window, float* x_gradient, Shape x_shape, \
      int64_t begin, int64_t end);                                                                           \
  void weight_gradient(                                                                                      \
      const float* gradient, const Value&, Window, float* weight_gradient, int64_t begin, int64_t end);      \
  }
FEDSS_DEPTHWISE(narrow)
FEDSS_DEPTHWISE(wide)
#undef FEDSS_DEPTHWISE

inline int64_t strided(int64_t size, int64_t stride) { return (size - 1) / stride + 1; }

// Calls body with kernel and stride as compile-time constants; the operators have refused anything else.
template <class Body>
inline void with_window(Window window, Body body) {
  if (window.kernel == 3)
    return window.stride == 1 ? body.template operator()<3, 1>() : body.template operator()<3, 2>();
  return window.stride == 1 ? body.template operator()<5, 1>() : body.template operator()<5, 2>();
}

}  // namespace fedss::FEDSS_ISA
