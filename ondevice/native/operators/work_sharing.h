// The work of a kernel shared out among the runtime's threads.
#pragma once

#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include "kernels/kernels.h"

namespace fedss {

// Below this many multiply-adds (or elements touched) waking another thread costs more than it saves.
constexpr int64_t kWorthAThread = 100000;

template <class Body>
void share(int64_t items, int64_t work, Body body) {
  const int64_t threads = work < 2 * kWorthAThread ? 1 : executorch::extension::get_thread_count();
  if (threads == 1 || items == 1) return body(0, items);
  executorch::extension::parallel_for(0, items, (items + threads - 1) / threads, body);
}

inline void multiply(const Product& product) {
  share(
      kernels().product_pieces(product), product.rows * product.columns * product.depth,
      [&](int64_t begin, int64_t end) { kernels().product(product, begin, end); });
}

}  // namespace fedss
