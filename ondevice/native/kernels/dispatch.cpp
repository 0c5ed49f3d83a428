// Which build of the kernels this processor runs.
#include <cstring>
#include <initializer_list>

#include "kernels/kernels.h"

namespace fedss {

namespace baseline {
extern const Kernels table;  // what every processor of the architecture has: SSE2 or NEON
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return avx2::table;
#endif
  return baseline::table;
}

}  // namespace fedss

const fedss::Kernels* fedss_kernels(const char* instruction_set) {
  for (const fedss::Kernels* table : {&fedss::baseline::table, &fedss::kernels()})
    if (!std::strcmp(table->instruction_set, instruction_set)) return table;
  return nullptr;
}
