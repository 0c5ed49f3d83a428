// The kernels of one instruction set, gathered for `dispatch.cpp`.
#include "kernels/kernels.h"

namespace fedss::FEDSS_ISA {

#define FEDSS_TEXT_OF(name) #name
#define FEDSS_TEXT(name) FEDSS_TEXT_OF(name)

int64_t product_panels(const Product&);
void product(const Product&, int64_t, int64_t);
void group_moments(const float*, Shape, int64_t, float, float*, int64_t, int64_t);
void group_norm_gradient(const PlaneGradient&, const Value&, float*, float*, float*, int64_t, int64_t);
void materialise(const Value&, const float*, const float*, float*, int64_t, int64_t);
void pooled_mean(const Value&, float*, int64_t, int64_t);
void pooled_product(const float*, const Value&, float*, int64_t, int64_t);
void depthwise(const Value&, const float*, Window, float*, int64_t, int64_t);
void depthwise_input_gradient(const float*, Shape, const float*, Window, float*, Shape, int64_t, int64_t);
void depthwise_weight_gradient(const float*, const Value&, Window, float*, int64_t, int64_t);
void max_pool(const float*, Shape, Window, float*, Shape, int64_t, int64_t);
void max_pool_gradient(const float*, Shape, const float*, Shape, Window, float*, int64_t, int64_t);
void channel_sums(const float*, Shape, float*, int64_t, int64_t);
void pixels(const uint8_t*, int64_t, int64_t, const float*, const float*, float*, int64_t, int64_t);
void activate(const float*, Activation, float*, int64_t, int64_t);
void activation_gradient(const float*, const float*, Activation, float*, int64_t, int64_t);
void gather_patches(const float*, int64_t, Shape, Shape, Window, float*, int64_t, int64_t);
void scatter_patches(const float*, Shape, Window, float*, int64_t, Shape, int64_t, int64_t);

extern const Kernels table;
const Kernels table = {
    FEDSS_TEXT(FEDSS_ISA),
    product_panels,
    product,
    group_moments,
    group_norm_gradient,
    materialise,
    pooled_mean,
    pooled_product,
    depthwise,
    depthwise_input_gradient,
    depthwise_weight_gradient,
    max_pool,
    max_pool_gradient,
    channel_sums,
    pixels,
    activate,
    activation_gradient,
    gather_patches,
    scatter_patches};

}  // namespace fedss::FEDSS_ISA
