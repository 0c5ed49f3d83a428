// Every kernel once: FEDSS_KERNEL(what it returns, its name, its parameters...).
//
// Included wherever something is made of all of them, each time with another meaning of FEDSS_KERNEL: the table's type
// (`kernels.h`), the declarations and the table (`kernel_table.cpp`), and the tests' view of it
// (`tests/helpers/native/kernels.py`).

// Items: strips of rows or panels of columns, `product_pieces` of them.
FEDSS_KERNEL(int64_t, product_pieces, const Product&)
FEDSS_KERNEL(void, product, const Product&, int64_t begin, int64_t end)

// Items: groups.
FEDSS_KERNEL(
    void, group_moments, const float* x, Shape, int64_t groups, float epsilon, float* moments, int64_t begin,
    int64_t end)
FEDSS_KERNEL(
    void, group_norm_gradient, const PlaneGradient&, const Value&, float* x_gradient, float* gamma_gradient,
    float* beta_gradient, int64_t begin, int64_t end)

// Items: channels.
FEDSS_KERNEL(
    void, frozen_moments, const float* mean, const float* variance, int64_t channels, int64_t batch, float epsilon,
    float* moments, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, frozen_norm_gradient, const PlaneGradient&, const Value&, float* x_gradient, float* gamma_gradient,
    float* beta_gradient, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, materialise, const Value&, const float* gate, const float* residual, float* out, int64_t begin, int64_t end)
FEDSS_KERNEL(void, pooled_mean, const Value&, float* out, int64_t begin, int64_t end)
FEDSS_KERNEL(void, pooled_product, const float* gradient, const Value&, float* out, int64_t begin, int64_t end)
FEDSS_KERNEL(void, depthwise, const Value&, const float* weight, Window, float* out, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, depthwise_input_gradient, const float* gradient, Shape out_shape, const float* weight, Window,
    float* x_gradient, Shape x_shape, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, depthwise_weight_gradient, const float* gradient, const Value&, Window, float* weight_gradient, int64_t begin,
    int64_t end)
FEDSS_KERNEL(void, max_pool, const float* x, Shape, Window, float* out, Shape out_shape, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, max_pool_gradient, const float* gradient, Shape out_shape, const float* x, Shape, Window, float* x_gradient,
    int64_t begin, int64_t end)
FEDSS_KERNEL(void, grid_max_pool, const float* x, Shape, Grid, float* out, Shape out_shape, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, grid_max_pool_gradient, const float* gradient, Shape out_shape, const float* x, Shape, Grid,
    float* x_gradient, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, average_pool, const float* x, Shape, Grid, AverageBy, float* out, Shape out_shape, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, average_pool_gradient, const float* gradient, Shape out_shape, Shape, Grid, AverageBy, float* x_gradient,
    int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, grid_depthwise, const float* x, Shape x_shape, const float* weight, const float* bias, Grid, float* out,
    Shape out_shape, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, grid_depthwise_input_gradient, const float* gradient, Shape out_shape, const float* weight, Grid,
    float* x_gradient, Shape x_shape, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, grid_depthwise_weight_gradient, const float* gradient, Shape out_shape, const float* x, Shape x_shape, Grid,
    float* weight_gradient, int64_t begin, int64_t end)
FEDSS_KERNEL(void, channel_sums, const float* x, Shape, float* out, int64_t begin, int64_t end)

// Items: planes of a batch of images [batch, channels, height, width]; scale and shift are per channel.
FEDSS_KERNEL(
    void, pixels, const uint8_t* images, int64_t channels, int64_t plane, const float* scale, const float* shift,
    float* out, int64_t begin, int64_t end)

// Items: elements.
FEDSS_KERNEL(void, activate, const float* x, Activation, float* out, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, activation_gradient, const float* gradient, const float* x, Activation, float* out, int64_t begin,
    int64_t end)

// Items: rows of the patch matrix [channels * kernel * kernel, height * width of the output], of one image.
FEDSS_KERNEL(
    void, gather_patches, const float* image, int64_t channel_stride, Shape x_shape, Shape out_shape, Window,
    float* patches, int64_t begin, int64_t end)
// Items: channels of one image; adds every patch to where it came from.
FEDSS_KERNEL(
    void, scatter_patches, const float* patches, Shape out_shape, Window, float* image, int64_t channel_stride,
    Shape x_shape, int64_t begin, int64_t end)

// Items: rows of the patch matrix [channels * taps, images * height * width of the output], of some images.
FEDSS_KERNEL(
    void, gather_grid, const float* x, Shape x_shape, Shape out_shape, Grid, int64_t image, int64_t images,
    float* patches, int64_t begin, int64_t end)
// Items: channels.
FEDSS_KERNEL(
    void, scatter_grid, const float* patches, Shape out_shape, Grid, int64_t image, int64_t images, float* x_gradient,
    Shape x_shape, int64_t begin, int64_t end)

// Items: rows of a matrix.
FEDSS_KERNEL(
    void, layer_norm, const float* x, int64_t columns, const float* gamma, const float* beta, float epsilon, float* out,
    float* mean, float* inverse_deviation, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, layer_norm_gradient, const float* gradient, const float* x, int64_t columns, const float* mean,
    const float* inverse_deviation, const float* gamma, float* x_gradient, int64_t begin, int64_t end)
FEDSS_KERNEL(void, softmax, const float* x, int64_t columns, float* out, int64_t begin, int64_t end)
FEDSS_KERNEL(
    void, softmax_gradient, const float* gradient, const float* y, int64_t columns, float* x_gradient, int64_t begin,
    int64_t end)
// Items: its columns.
FEDSS_KERNEL(
    void, layer_norm_weight_gradient, const float* gradient, const float* x, int64_t rows, int64_t columns,
    const float* mean, const float* inverse_deviation, float* gamma_gradient, float* beta_gradient, int64_t begin,
    int64_t end)
// Items: columns of the table [rows, columns]; the gradient has `count` rows, and those of the id `padding` are left
// out.
FEDSS_KERNEL(
    void, embedding_gradient, const float* gradient, const int64_t* ids, int64_t count, int64_t padding, float* out,
    int64_t rows, int64_t columns, int64_t begin, int64_t end)

// Items: the first two dimensions of the result; strides are those of its dimensions in x.
FEDSS_KERNEL(void, permute, const float* x, Extents sizes, Extents strides, float* out, int64_t begin, int64_t end)

// Multiply-adds in registers and nothing else; how many it did.  `out` has room for a register, and a factor below 1
// and a summand at 1 and 2.
FEDSS_KERNEL(int64_t, multiply_adds, int64_t rounds, float* out)
