// Convolutions of any kernel, stride, padding and dilation, each of them in height and in width: the patch matrix of a
// group of channels over several images, and depthwise convolutions tap by tap.
//
// A depthwise convolution works on a padded copy of one plane whose columns are sorted by their remainder by the
// stride, so that what a tap reads for neighbouring outputs lies side by side.
#include "kernels/kernels.h"
#include "kernels/registers/scratch.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA {
namespace {

struct Positions {
  int64_t first, last;
};

// The outputs [first, last) whose tap lies inside the plane, along one dimension.
inline Positions inside(int64_t tap, int64_t stride, int64_t padding, int64_t in, int64_t out) {
  const int64_t before = padding - tap;
  int64_t first = before > 0 ? (before + stride - 1) / stride : 0;
  const int64_t room = in - 1 + before;
  int64_t last = room < 0 ? 0 : room / stride + 1;
  if (last > out) last = out;
  if (first > last) first = last;
  return {first, last};
}

// Where the columns of a padded plane lie.
class PaddedPlane {
 public:
  PaddedPlane(Shape x, Shape out, Grid grid)
      : grid_(grid),
        x_(x),
        rows_((out.height - 1) * grid.stride_height + (grid.kernel_height - 1) * grid.dilation_height + 1),
        phase_(out.width + ((grid.kernel_width - 1) * grid.dilation_width) / grid.stride_width + 1 + kLanes),
        line_(phase_ * grid.stride_width),
        values_((rows_ + kRowsAtOnce * grid.stride_height) * line_) {}

  static constexpr int kRowsAtOnce = 4;

  void read(const float* plane) {
    for_each_inside([&](float* to, const float* from) { *to = *from; }, const_cast<float*>(plane));
  }
  void write(float* plane) {
    for (int64_t i = 0; i < x_.plane(); i++) plane[i] = 0;
    for_each_inside([&](float* from, float* to) { *to = *from; }, plane);
  }
  void clear() { std::memset(values_.data(), 0, (rows_ + kRowsAtOnce * grid_.stride_height) * line_ * sizeof(float)); }

  // What tap (i, j) reads for output (h, 0); the next outputs follow.
  float* at(int64_t h, int64_t i, int64_t j) {
    const int64_t column = j * grid_.dilation_width;
    return values_.data() + (h * grid_.stride_height + i * grid_.dilation_height) * line_ +
           column % grid_.stride_width * phase_ + column / grid_.stride_width;
  }
  int64_t line() const { return line_ * grid_.stride_height; }  // from an output's row to the next one's

 private:
  template <class Body>
  void for_each_inside(Body body, float* plane) {
    const int64_t stride = grid_.stride_width;
    for (int64_t y = 0; y < x_.height; y++) {
      const int64_t row = y + grid_.padding_height;
      if (row >= rows_) break;
      float* line = values_.data() + row * line_;
      for (int64_t x = 0; x < x_.width; x++) {
        const int64_t column = x + grid_.padding_width;
        if (column / stride >= phase_) break;
        body(line + column % stride * phase_ + column / stride, plane + y * x_.width + x);
      }
    }
  }

  Grid grid_;
  Shape x_;
  int64_t rows_, phase_, line_;
  Scratch values_;
};

// One plane: every output is the sum over its taps.
void convolve(PaddedPlane& x, const float* weight, Grid grid, float start, float* out, Shape shape) {
  constexpr int kRows = PaddedPlane::kRowsAtOnce;
  for (int64_t h = 0; h < shape.height; h += kRows) {
    const int64_t rows = shape.height - h < kRows ? shape.height - h : kRows;
    for (int64_t w = 0; w < shape.width; w += kLanes) {
      Vector sums[kRows];
      for (auto& sum : sums) sum = broadcast(start);
      for (int64_t i = 0; i < grid.kernel_height; i++)
        for (int64_t j = 0; j < grid.kernel_width; j++) {
          const float* from = x.at(h, i, j) + w;
          const float factor = weight[i * grid.kernel_width + j];
#pragma GCC unroll 4
          for (int row = 0; row < kRows; row++) sums[row] += load(from + row * x.line()) * factor;
        }
      const int64_t columns = shape.width - w < kLanes ? shape.width - w : kLanes;
      for (int64_t row = 0; row < rows; row++)
        std::memcpy(out + (h + row) * shape.width + w, &sums[row], columns * sizeof(float));
    }
  }
}

void convolve_backwards(
    const float* gradient, Shape out_shape, const float* weight, Grid grid, float* x_gradient, Shape x_shape,
    int64_t begin, int64_t end) {
  const int64_t taps = grid.kernel_height * grid.kernel_width;
  PaddedPlane padded(out_shape, x_shape, grid);
  Scratch backwards(taps);
  for (int64_t channel = begin; channel < end; channel++) {
    for (int64_t tap = 0; tap < taps; tap++) backwards.data()[tap] = weight[(channel + 1) * taps - 1 - tap];
    for (int64_t image = 0; image < x_shape.batch; image++) {
      padded.read(gradient + channel * out_shape.row() + image * out_shape.plane());
      convolve(
          padded, backwards.data(), grid, 0.0f, x_gradient + channel * x_shape.row() + image * x_shape.plane(),
          x_shape);
    }
  }
}

}  // namespace

void gather_grid(
    const float* x, Shape x_shape, Shape out_shape, Grid grid, int64_t image, int64_t images, float* patches,
    int64_t begin, int64_t end) {
  const int64_t taps = grid.kernel_height * grid.kernel_width;
  for (int64_t row = begin; row < end; row++) {
    const int64_t channel = row / taps, i = row % taps / grid.kernel_width, j = row % grid.kernel_width;
    const int64_t column = j * grid.dilation_width;
    const Positions columns = inside(column, grid.stride_width, grid.padding_width, x_shape.width, out_shape.width);
    for (int64_t n = 0; n < images; n++) {
      const float* from = x + channel * x_shape.row() + (image + n) * x_shape.plane();
      for (int64_t h = 0; h < out_shape.height; h++) {
        float* to = patches + (row * images + n) * out_shape.plane() + h * out_shape.width;
        const int64_t y = h * grid.stride_height + i * grid.dilation_height - grid.padding_height;
        if (y < 0 || y >= x_shape.height) {
          std::memset(to, 0, out_shape.width * sizeof(float));
          continue;
        }
        const float* line = from + y * x_shape.width + column - grid.padding_width;
        for (int64_t w = 0; w < columns.first; w++) to[w] = 0;
        if (grid.stride_width == 1) {
          std::memcpy(to + columns.first, line + columns.first, (columns.last - columns.first) * sizeof(float));
        } else {
          for (int64_t w = columns.first; w < columns.last; w++) to[w] = line[w * grid.stride_width];
        }
        for (int64_t w = columns.last; w < out_shape.width; w++) to[w] = 0;
      }
    }
  }
}

void scatter_grid(
    const float* patches, Shape out_shape, Grid grid, int64_t image, int64_t images, float* x_gradient, Shape x_shape,
    int64_t begin, int64_t end) {
  for (int64_t channel = begin; channel < end; channel++)
    for (int64_t n = 0; n < images; n++) {
      float* to = x_gradient + channel * x_shape.row() + (image + n) * x_shape.plane();
      std::memset(to, 0, x_shape.plane() * sizeof(float));
      for (int64_t i = 0; i < grid.kernel_height; i++)
        for (int64_t j = 0; j < grid.kernel_width; j++) {
          const int64_t column = j * grid.dilation_width;
          const Positions columns =
              inside(column, grid.stride_width, grid.padding_width, x_shape.width, out_shape.width);
          const int64_t row = (channel * grid.kernel_height + i) * grid.kernel_width + j;
          const float* from = patches + (row * images + n) * out_shape.plane();
          for (int64_t h = 0; h < out_shape.height; h++) {
            const int64_t y = h * grid.stride_height + i * grid.dilation_height - grid.padding_height;
            if (y < 0 || y >= x_shape.height) continue;
            float* line = to + y * x_shape.width + column - grid.padding_width;
            for (int64_t w = columns.first; w < columns.last; w++)
              line[w * grid.stride_width] += from[h * out_shape.width + w];
          }
        }
    }
}

void grid_depthwise(
    const float* x, Shape x_shape, const float* weight, const float* bias, Grid grid, float* out, Shape out_shape,
    int64_t begin, int64_t end) {
  const int64_t multiplier = out_shape.channels / x_shape.channels, taps = grid.kernel_height * grid.kernel_width;
  PaddedPlane padded(x_shape, out_shape, grid);
  for (int64_t channel = begin; channel < end; channel++)
    for (int64_t image = 0; image < x_shape.batch; image++) {
      padded.read(x + channel / multiplier * x_shape.row() + image * x_shape.plane());
      convolve(
          padded, weight + channel * taps, grid, bias ? bias[channel] : 0.0f,
          out + channel * out_shape.row() + image * out_shape.plane(), out_shape);
    }
}

void grid_depthwise_input_gradient(
    const float* gradient, Shape out_shape, const float* weight, Grid grid, float* x_gradient, Shape x_shape,
    int64_t begin, int64_t end) {
  const int64_t padding_height = (grid.kernel_height - 1) * grid.dilation_height - grid.padding_height;
  const int64_t padding_width = (grid.kernel_width - 1) * grid.dilation_width - grid.padding_width;
  const bool dense = grid.stride_height == 1 && grid.stride_width == 1 && padding_height >= 0 && padding_width >= 0;
  if (dense && out_shape.channels == x_shape.channels) {
    // The gradient convolved with the kernel read backwards.
    Grid turned = grid;
    turned.padding_height = padding_height;
    turned.padding_width = padding_width;
    convolve_backwards(gradient, out_shape, weight, turned, x_gradient, x_shape, begin, end);
    return;
  }
  const int64_t multiplier = out_shape.channels / x_shape.channels, taps = grid.kernel_height * grid.kernel_width;
  PaddedPlane padded(x_shape, out_shape, grid);
  for (int64_t channel = begin; channel < end; channel++)
    for (int64_t image = 0; image < x_shape.batch; image++) {
      padded.clear();
      for (int64_t which = channel * multiplier; which < (channel + 1) * multiplier; which++) {
        const float* from = gradient + which * out_shape.row() + image * out_shape.plane();
        for (int64_t h = 0; h < out_shape.height; h++)
          for (int64_t i = 0; i < grid.kernel_height; i++)
            for (int64_t j = 0; j < grid.kernel_width; j++) {
              const float factor = weight[which * taps + i * grid.kernel_width + j];
              const float* g = from + h * out_shape.width;
              float* to = padded.at(h, i, j);
              for_each_lane(out_shape.width, [=](int64_t w, auto kind) {
                store_as(to + w, load_as(to + w, kind) + load_as(g + w, kind) * factor);
              });
            }
      }
      padded.write(x_gradient + channel * x_shape.row() + image * x_shape.plane());
    }
}

void grid_depthwise_weight_gradient(
    const float* gradient, Shape out_shape, const float* x, Shape x_shape, Grid grid, float* weight_gradient,
    int64_t begin, int64_t end) {
  constexpr int64_t kTaps = 8;  // of a kernel's row, at a time
  const int64_t multiplier = out_shape.channels / x_shape.channels, taps = grid.kernel_height * grid.kernel_width;
  PaddedPlane padded(x_shape, out_shape, grid);
  for (int64_t channel = begin; channel < end; channel++) {
    float* to = weight_gradient + channel * taps;
    for (int64_t tap = 0; tap < taps; tap++) to[tap] = 0;
    for (int64_t image = 0; image < x_shape.batch; image++) {
      padded.read(x + channel / multiplier * x_shape.row() + image * x_shape.plane());
      const float* from = gradient + channel * out_shape.row() + image * out_shape.plane();
      for (int64_t i = 0; i < grid.kernel_height; i++)
        for (int64_t first = 0; first < grid.kernel_width; first += kTaps) {
          const int64_t count = grid.kernel_width - first < kTaps ? grid.kernel_width - first : kTaps;
          Vector sums[kTaps] = {};
          float rest[kTaps] = {};
          for (int64_t h = 0; h < out_shape.height; h++) {
            const float* g = from + h * out_shape.width;
            const float* lines[kTaps];
            for (int64_t j = 0; j < count; j++) lines[j] = padded.at(h, i, first + j);
            int64_t w = 0;
            for (; w + kLanes <= out_shape.width; w += kLanes) {
              const Vector of_output = load(g + w);
              for (int64_t j = 0; j < count; j++) sums[j] += load(lines[j] + w) * of_output;
            }
            for (; w < out_shape.width; w++)
              for (int64_t j = 0; j < count; j++) rest[j] += lines[j][w] * g[w];
          }
          for (int64_t j = 0; j < count; j++) {
            float sum = rest[j];
            for (int lane = 0; lane < kLanes; lane++) sum += sums[j][lane];
            to[i * grid.kernel_width + first + j] += sum;
          }
        }
    }
  }
}

}  // namespace fedss::FEDSS_ISA
