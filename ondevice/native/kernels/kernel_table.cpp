// The kernels of one instruction set, gathered for `dispatch.cpp`.
#include "kernels/kernels.h"

namespace fedss::FEDSS_ISA {

#define FEDSS_TEXT_OF(name) #name
#define FEDSS_TEXT(name) FEDSS_TEXT_OF(name)

#define FEDSS_KERNEL(returns, name, ...) returns name(__VA_ARGS__);
#include "kernels/kernel_list.h"
#undef FEDSS_KERNEL

extern const Kernels table;
const Kernels table = {
    FEDSS_TEXT(FEDSS_ISA),
#define FEDSS_KERNEL(returns, name, ...) name,
#include "kernels/kernel_list.h"
#undef FEDSS_KERNEL
};

}  // namespace fedss::FEDSS_ISA
