// Convolutions and poolings of any kernel, stride, padding, dilation and number of groups as operators of ExecuTorch.
#include <algorithm>
#include <memory>

#include "kernels/kernels.h"
#include "operators/operator_call.h"
#include "operators/work_sharing.h"

namespace fedss {
namespace {

using Integers = executorch::aten::ArrayRef<int64_t>;

Grid grid_of(int64_t kernel_height, int64_t kernel_width, Integers stride, Integers padding, Integers dilation) {
  return {kernel_height, kernel_width, stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1]};
}

// Whether a window lies in the padded planes at least once.
bool fits(Grid grid, Shape x) {
  const int64_t limit = 1 << 20;  // far beyond any window, and far from where sums of sizes overflow
  for (int64_t size :
       {grid.kernel_height, grid.kernel_width, grid.stride_height, grid.stride_width, grid.dilation_height,
        grid.dilation_width, x.height, x.width})
    if (size < 1 || size > limit) return false;
  for (int64_t padding : {grid.padding_height, grid.padding_width})
    if (padding < 0 || padding > limit) return false;
  return x.height + 2 * grid.padding_height > (grid.kernel_height - 1) * grid.dilation_height &&
         x.width + 2 * grid.padding_width > (grid.kernel_width - 1) * grid.dilation_width;
}

Shape convolved(int64_t channels, Shape x, Grid grid) {
  if (!fits(grid, x)) return {};
  const int64_t height = x.height + 2 * grid.padding_height - (grid.kernel_height - 1) * grid.dilation_height - 1;
  const int64_t width = x.width + 2 * grid.padding_width - (grid.kernel_width - 1) * grid.dilation_width - 1;
  return {channels, x.batch, height / grid.stride_height + 1, width / grid.stride_width + 1};
}

// Whether a pooling to planes of this size has a pixel under every window; torch may round their number up.
bool pools(Grid grid, Shape x, int64_t height, int64_t width) {
  if (!fits(grid, x) || height < 1 || width < 1) return false;
  const int64_t reach_height = (grid.kernel_height - 1) * grid.dilation_height + 1;
  const int64_t reach_width = (grid.kernel_width - 1) * grid.dilation_width + 1;
  return 2 * grid.padding_height <= reach_height && 2 * grid.padding_width <= reach_width &&
         (height - 1) * grid.stride_height < x.height + grid.padding_height &&
         (width - 1) * grid.stride_width < x.width + grid.padding_width;
}

// Whether weights [out channels, channels of a group, height, width] convolve so many channels in so many groups.
bool are_groups(const Tensor& weight, int64_t channels, int64_t groups) {
  return groups >= 1 && channels % groups == 0 && size(weight, 0) % groups == 0 && size(weight, 1) == channels / groups;
}

// The patch matrix of one group over as many images at a time as fit into the cache beside what is made of them, or,
// since every run over images reads the whole weight, as are small beside the weight.
class Patches {
 public:
  Patches(int64_t channels, int64_t made, Shape out_shape, Grid grid)
      : rows(channels * grid.kernel_height * grid.kernel_width),
        plane(out_shape.plane()),
        at_once(images_at_once(rows * plane, made * rows, out_shape.batch)),
        values(new float[rows * plane * at_once]) {}
  const int64_t rows, plane, at_once;
  const std::unique_ptr<float[]> values;

 private:
  static int64_t images_at_once(int64_t numbers, int64_t weights, int64_t batch) {
    const int64_t fitting = std::max<int64_t>({1, (1 << 17) / numbers, weights / 4 / numbers});
    const int64_t runs = std::max<int64_t>(1, (batch + fitting - 1) / fitting);
    return (batch + runs - 1) / runs;  // as many in every run
  }
};

// Calls body(first image, how many).
template <class Body>
void for_each_run(int64_t batch, int64_t at_once, Body body) {
  for (int64_t image = 0; image < batch; image += at_once)
    body(image, batch - image < at_once ? batch - image : at_once);
}

// x, weight, bias?, stride, padding, dilation, groups
void grid_convolution(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &x = call.planes(), &weight = call.planes();
  const Tensor* bias = call.optional_tensor();
  const Integers stride = call.pair(), padding = call.pair(), dilation = call.pair();
  const int64_t groups = call.integer();
  const Grid grid = grid_of(size(weight, 2), size(weight, 3), stride, padding, dilation);
  const Shape x_shape = shape_of(x), shape = convolved(size(weight, 0), x_shape, grid);
  call.require(fits(grid, x_shape) && are_groups(weight, x_shape.channels, groups));
  call.require(has_sizes(bias, {shape.channels}));
  float* out = call.output(shape);
  if (!out) return;
  if (size(weight, 1) == 1) {
    share(
        shape.channels, shape.channels * shape.row() * size(weight, 2) * size(weight, 3),
        [&](int64_t begin, int64_t end) {
          kernels().grid_depthwise(data(x), x_shape, data(weight), data(bias), grid, out, shape, begin, end);
        });
    return;
  }
  const int64_t in = x_shape.channels / groups, made = shape.channels / groups;
  Patches patches(in, made, shape, grid);
  for (int64_t group = 0; group < groups; group++)
    for_each_run(shape.batch, patches.at_once, [&](int64_t image, int64_t images) {
      const int64_t columns = images * patches.plane;
      share(patches.rows, patches.rows * columns, [&](int64_t begin, int64_t end) {
        kernels().gather_grid(
            data(x) + group * in * x_shape.row(), x_shape, shape, grid, image, images, patches.values.get(), begin,
            end);
      });
      multiply(
          {made,
           columns,
           patches.rows,
           row_major(data(weight) + group * made * patches.rows, patches.rows),
           row_major(patches.values.get(), columns),
           {bias ? data(bias) + group * made : nullptr, 1, 0},
           out + group * made * shape.row() + image * patches.plane,
           shape.row()});
    });
}

// gradient, weight, stride, padding, dilation, groups, height, width
void grid_convolution_input_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &weight = call.planes();
  const Integers stride = call.pair(), padding = call.pair(), dilation = call.pair();
  const int64_t groups = call.integer();
  const int64_t height = call.integer(), width = call.integer();
  const Grid grid = grid_of(size(weight, 2), size(weight, 3), stride, padding, dilation);
  const Shape out_shape = shape_of(gradient);
  const Shape shape{size(weight, 1) * groups, out_shape.batch, height, width};
  call.require(fits(grid, shape) && are_groups(weight, shape.channels, groups));
  call.require(
      size(weight, 0) == out_shape.channels && has_sizes(gradient, convolved(out_shape.channels, shape, grid)));
  float* out = call.output(shape);
  if (!out) return;
  if (size(weight, 1) == 1) {
    share(
        shape.channels, out_shape.channels * out_shape.row() * size(weight, 2) * size(weight, 3),
        [&](int64_t begin, int64_t end) {
          kernels().grid_depthwise_input_gradient(
              data(gradient), out_shape, data(weight), grid, out, shape, begin, end);
        });
    return;
  }
  const int64_t in = shape.channels / groups, made = out_shape.channels / groups;
  Patches patches(in, made, out_shape, grid);
  for (int64_t group = 0; group < groups; group++)
    for_each_run(shape.batch, patches.at_once, [&](int64_t image, int64_t images) {
      const int64_t columns = images * patches.plane;
      multiply(
          {patches.rows,
           columns,
           made,
           row_major(data(weight) + group * made * patches.rows, patches.rows).transposed(),
           row_major(data(gradient) + group * made * out_shape.row() + image * patches.plane, out_shape.row()),
           {},
           patches.values.get(),
           columns});
      share(in, patches.rows * columns, [&](int64_t begin, int64_t end) {
        kernels().scatter_grid(
            patches.values.get(), out_shape, grid, image, images, out + group * in * shape.row(), shape, begin, end);
      });
    });
}

// gradient, x, kernel, stride, padding, dilation, groups
void grid_convolution_weight_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &x = call.planes();
  const Integers kernel = call.pair(), stride = call.pair(), padding = call.pair(), dilation = call.pair();
  const int64_t groups = call.integer();
  const Grid grid = grid_of(kernel[0], kernel[1], stride, padding, dilation);
  const Shape shape = shape_of(x), out_shape = shape_of(gradient);
  call.require(fits(grid, shape) && has_sizes(gradient, convolved(out_shape.channels, shape, grid)));
  call.require(groups >= 1 && shape.channels % groups == 0 && out_shape.channels % groups == 0);
  const int64_t in = groups < 1 ? 0 : shape.channels / groups, made = groups < 1 ? 0 : out_shape.channels / groups;
  float* out = call.output({out_shape.channels, in, kernel[0], kernel[1]});
  if (!out) return;
  if (in == 1) {
    share(
        out_shape.channels, out_shape.channels * out_shape.row() * kernel[0] * kernel[1],
        [&](int64_t begin, int64_t end) {
          kernels().grid_depthwise_weight_gradient(data(gradient), out_shape, data(x), shape, grid, out, begin, end);
        });
    return;
  }
  Patches patches(in, made, out_shape, grid);
  for (int64_t group = 0; group < groups; group++)
    for_each_run(shape.batch, patches.at_once, [&](int64_t image, int64_t images) {
      const int64_t columns = images * patches.plane;
      share(patches.rows, patches.rows * columns, [&](int64_t begin, int64_t end) {
        kernels().gather_grid(
            data(x) + group * in * shape.row(), shape, out_shape, grid, image, images, patches.values.get(), begin,
            end);
      });
      float* to = out + group * made * patches.rows;
      const Matrix so_far = image ? row_major(to, patches.rows) : Matrix{};
      multiply(
          {made, patches.rows, columns,
           row_major(data(gradient) + group * made * out_shape.row() + image * patches.plane, out_shape.row()),
           row_major(patches.values.get(), columns).transposed(), so_far, to, patches.rows});
    });
}

// x, kernel, stride, padding, dilation, height, width
void grid_max_pool(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.planes();
  const Integers kernel = call.pair(), stride = call.pair(), padding = call.pair(), dilation = call.pair();
  const int64_t height = call.integer(), width = call.integer();
  const Grid grid = grid_of(kernel[0], kernel[1], stride, padding, dilation);
  const Shape shape = shape_of(x), out_shape{shape.channels, shape.batch, height, width};
  call.require(pools(grid, shape, height, width));
  float* out = call.output(out_shape);
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().grid_max_pool(data(x), shape, grid, out, out_shape, begin, end);
  });
}

// gradient, x, kernel, stride, padding, dilation
void grid_max_pool_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor &gradient = call.planes(), &x = call.planes();
  const Integers kernel = call.pair(), stride = call.pair(), padding = call.pair(), dilation = call.pair();
  const Grid grid = grid_of(kernel[0], kernel[1], stride, padding, dilation);
  const Shape shape = shape_of(x), out_shape = shape_of(gradient);
  call.require(has_sizes(gradient, {shape.channels, shape.batch, out_shape.height, out_shape.width}));
  call.require(pools(grid, shape, out_shape.height, out_shape.width));
  float* out = call.output_like(x);
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().grid_max_pool_gradient(data(gradient), out_shape, data(x), shape, grid, out, begin, end);
  });
}

constexpr int64_t kNoDilation[2] = {1, 1};

// x, kernel, stride, padding, divisor, count_padding, height, width
void average_pool(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& x = call.planes();
  const Integers kernel = call.pair(), stride = call.pair(), padding = call.pair();
  const int64_t divisor = call.integer();
  const AverageBy by{divisor, call.boolean()};
  const int64_t height = call.integer(), width = call.integer();
  const Grid grid = grid_of(kernel[0], kernel[1], stride, padding, kNoDilation);
  const Shape shape = shape_of(x), out_shape{shape.channels, shape.batch, height, width};
  call.require(pools(grid, shape, height, width));
  float* out = call.output(out_shape);
  if (!out) return;
  share(shape.channels, x.numel(), [&](int64_t begin, int64_t end) {
    kernels().average_pool(data(x), shape, grid, by, out, out_shape, begin, end);
  });
}

// gradient, kernel, stride, padding, divisor, count_padding, height, width
void average_pool_gradient(KernelRuntimeContext& context, Span<EValue*> values) {
  Call call(context, values);
  const Tensor& gradient = call.planes();
  const Integers kernel = call.pair(), stride = call.pair(), padding = call.pair();
  const int64_t divisor = call.integer();
  const AverageBy by{divisor, call.boolean()};
  const int64_t height = call.integer(), width = call.integer();
  const Grid grid = grid_of(kernel[0], kernel[1], stride, padding, kNoDilation);
  const Shape out_shape = shape_of(gradient), shape{out_shape.channels, out_shape.batch, height, width};
  call.require(pools(grid, shape, out_shape.height, out_shape.width));
  float* out = call.output(shape);
  if (!out) return;
  share(shape.channels, shape.channels * shape.row(), [&](int64_t begin, int64_t end) {
    kernels().average_pool_gradient(data(gradient), out_shape, shape, grid, by, out, begin, end);
  });
}

const Kernel operators[] = {
    Kernel("fedss::grid_convolution.out", grid_convolution),
    Kernel("fedss::grid_convolution_input_gradient.out", grid_convolution_input_gradient),
    Kernel("fedss::grid_convolution_weight_gradient.out", grid_convolution_weight_gradient),
    Kernel("fedss::grid_max_pool.out", grid_max_pool),
    Kernel("fedss::grid_max_pool_gradient.out", grid_max_pool_gradient),
    Kernel("fedss::average_pool.out", average_pool),
    Kernel("fedss::average_pool_gradient.out", average_pool_gradient),
};

const Error registered = executorch::runtime::register_kernels({operators, std::size(operators)});

}  // namespace
}  // namespace fedss
