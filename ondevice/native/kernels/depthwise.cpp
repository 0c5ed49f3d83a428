// Depthwise convolution, kernel 3 or 5, stride 1 or 2, and its two gradients.
//
// A plane is first copied into a frame with zero margins, where every tap of the kernel is a shifted row and needs no
// bounds check.  The copy is also where an input that is a `Value` is computed.  With stride 2 the frame keeps
// the even columns and the odd columns apart, so that a tap's row is contiguous again and the inner loops are the same.
#include <cstdlib>

#include "kernels/activation.h"

namespace fedss::FEDSS_ISA {
namespace {

inline int64_t rounded_up(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// Zeroed scratch memory of one call.
class Scratch {
 public:
  explicit Scratch(int64_t count) : data_(static_cast<float*>(std::calloc(count, sizeof(float)))) {
    if (!data_) std::abort();  // a few hundred kilobytes; the arena of many megabytes was given before
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  float* data() { return data_; }

 private:
  float* data_;
};

// The geometry of a frame for input planes [height, width] and taps of a K x K kernel at stride S.
template <int K, int S>
struct Frame {
  static constexpr int kMargin = K / 2;
  int64_t height, width, pitch, rows;
  Frame(int64_t height, int64_t width)
      : height(height),
        width(width),
        // The inner loops read whole registers past the last output, and the last tap K - 1 further.
        pitch(rounded_up((width + 2 * kMargin + S - 1) / S) + kLanes + K),
        rows(height + 2 * kMargin + 2 * S) {}
  int64_t size() const { return S * rows * pitch + kLanes; }
  // Where tap (i, j) of the output row that starts at padded row `row` begins.
  int64_t tap(int64_t row, int i, int j) const {
    return S == 1 ? (row + i) * pitch + j : (j % 2) * rows * pitch + (row + i) * pitch + j / 2;
  }
  void put(float* frame, int64_t row, const float* values) const {
    float* to = frame + (row + kMargin) * pitch;
    if constexpr (S == 1) {
      for (int64_t w = 0; w < width; w++) to[kMargin + w] = values[w];
    } else {
      float* of_even = to + (kMargin % 2) * rows * pitch + kMargin / 2;             // columns 0, 2, ...
      float* of_odd = to + ((kMargin + 1) % 2) * rows * pitch + (kMargin + 1) / 2;  // columns 1, 3, ...
      for (int64_t w = 0; 2 * w < width; w++) of_even[w] = values[2 * w];
      for (int64_t w = 0; 2 * w + 1 < width; w++) of_odd[w] = values[2 * w + 1];
    }
  }
};

template <int K, int S>
void fill_frame(const Value& value, int64_t channel, int64_t image, const Frame<K, S>& frame, float* to, float* plane) {
  const Shape shape = value.shape;
  const float* x = value.x + channel * shape.row() + image * shape.plane();
  if (value.gamma) {
    const PlaneAffine affine = plane_affine(value, channel, group_of(value, channel), image);
    with_activation(value.activation, [&]<Activation A>() {
      for_each_lane(shape.plane(), [&](int64_t i, auto kind) {
        store_as(plane + i, activated<A>(load_as(x + i, kind) * affine.scale + affine.shift));
      });
    });
    x = plane;
  }
  for (int64_t h = 0; h < shape.height; h++) frame.put(to, h, x + h * shape.width);
}

// One or two output rows of a correlation; a partial last register goes through `rest`.
template <int K, int S, int Rows>
inline void correlate_rows(
    const Frame<K, S>& frame, const float* from, const Vector* weight, int64_t row, int64_t width, float* out,
    int64_t out_pitch) {
  constexpr int kSpan = K + (Rows - 1) * S;  // input rows that these output rows see
  for (int64_t w = 0; w < width; w += kLanes) {
    Vector total[Rows] = {};
#pragma GCC unroll 8
    for (int i = 0; i < kSpan; i++)
#pragma GCC unroll 8
      for (int j = 0; j < K; j++) {
        const Vector at = load(from + frame.tap(row * S, i, j) + w);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; r++) {
          const int tap_row = i - r * S;
          if (tap_row >= 0 && tap_row < K) total[r] += at * weight[tap_row * K + j];
        }
      }
    for (int r = 0; r < Rows; r++) {
      float* to = out + r * out_pitch + w;
      if (w + kLanes <= width) {
        store(to, total[r]);
      } else {
        float rest[kLanes];
        store(rest, total[r]);
        for (int64_t lane = 0; w + lane < width; lane++) to[lane] = rest[lane];
      }
    }
  }
}

template <int K, int S>
void correlate_plane(
    const Frame<K, S>& frame, const float* from, const Vector* weight, int64_t height, int64_t width, float* out) {
  int64_t h = 0;
  for (; h + 2 <= height; h += 2) correlate_rows<K, S, 2>(frame, from, weight, h, width, out + h * width, width);
  for (; h < height; h++) correlate_rows<K, S, 1>(frame, from, weight, h, width, out + h * width, width);
}

template <int K>
void spread_weight(const float* weight, bool flipped, Vector* to) {
  for (int tap = 0; tap < K * K; tap++) to[tap] = broadcast(weight[flipped ? K * K - 1 - tap : tap]);
}

template <int K, int S>
void forward(const Value& value, const float* weight, float* out, int64_t begin, int64_t end) {
  const Shape shape = value.shape;
  const Frame<K, S> frame(shape.height, shape.width);
  const int64_t out_height = (shape.height - 1) / S + 1, out_width = (shape.width - 1) / S + 1;
  Scratch scratch(frame.size() + shape.plane());
  Vector spread[K * K];
  for (int64_t channel = begin; channel < end; channel++) {
    spread_weight<K>(weight + channel * K * K, false, spread);
    for (int64_t image = 0; image < shape.batch; image++) {
      fill_frame<K, S>(value, channel, image, frame, scratch.data(), scratch.data() + frame.size());
      correlate_plane<K, S>(
          frame, scratch.data(), spread, out_height, out_width,
          out + (channel * shape.batch + image) * out_height * out_width);
    }
  }
}

// x'[u] = sum of weight[i] * gradient[(u - i) / S] over the taps i that divide: at stride 1 a correlation with the
// flipped kernel.
template <int K>
void input_gradient_stride_1(
    const float* gradient, Shape out_shape, const float* weight, float* x_gradient, int64_t begin, int64_t end) {
  const Value plain{gradient, out_shape, nullptr, nullptr, nullptr, 1, Activation::none};
  const Frame<K, 1> frame(out_shape.height, out_shape.width);
  Scratch scratch(frame.size());
  Vector spread[K * K];
  for (int64_t channel = begin; channel < end; channel++) {
    spread_weight<K>(weight + channel * K * K, true, spread);
    for (int64_t image = 0; image < out_shape.batch; image++) {
      fill_frame<K, 1>(plain, channel, image, frame, scratch.data(), nullptr);
      correlate_plane<K, 1>(
          frame, scratch.data(), spread, out_shape.height, out_shape.width,
          x_gradient + channel * out_shape.row() + image * out_shape.plane());
    }
  }
}

// One row of x' at stride 2: its even and its odd columns see different taps; they are computed apart and interleaved.
template <int K, int RowParity>
void upsample_row(const float* from, int64_t pitch, const Vector* weight, int64_t pairs, float* out) {
  constexpr int kMargin = K / 2;
  for (int64_t t = 0; t < pairs; t += kLanes) {
    Vector total[2] = {};
#pragma GCC unroll 2
    for (int parity = 0; parity < 2; parity++)
#pragma GCC unroll 8
      for (int i = RowParity; i < K; i += 2)
#pragma GCC unroll 8
        for (int j = (parity + kMargin) % 2; j < K; j += 2) {
          const int64_t row = -(i - RowParity) / 2, column = (parity + kMargin - j) / 2;
          total[parity] += load(from + row * pitch + t + column) * weight[i * K + j];
        }
    // Lanes of both halves in turn.
    Mask low, high;
    for (int lane = 0; lane < kLanes; lane++) {
      low[lane] = lane / 2 + (lane % 2) * kLanes;
      high[lane] = low[lane] + kLanes / 2;
    }
    store(out + 2 * t, __builtin_shuffle(total[0], total[1], low));
    store(out + 2 * t + kLanes, __builtin_shuffle(total[0], total[1], high));
  }
}

template <int K>
void input_gradient_stride_2(
    const float* gradient, Shape out_shape, const float* weight, float* x_gradient, Shape x_shape, int64_t begin,
    int64_t end) {
  constexpr int kMargin = K / 2;
  const Value plain{gradient, out_shape, nullptr, nullptr, nullptr, 1, Activation::none};
  const Frame<5, 1> frame(out_shape.height, out_shape.width);  // margin 2: enough for both kernels
  const int64_t pairs = (x_shape.width + 1) / 2, row_size = 2 * rounded_up(pairs);
  Scratch scratch(frame.size() + row_size);
  float* row = scratch.data() + frame.size();
  Vector spread[K * K];
  for (int64_t channel = begin; channel < end; channel++) {
    spread_weight<K>(weight + channel * K * K, false, spread);
    for (int64_t image = 0; image < out_shape.batch; image++) {
      fill_frame<5, 1>(plain, channel, image, frame, scratch.data(), nullptr);
      float* out = x_gradient + channel * x_shape.row() + image * x_shape.plane();
      for (int64_t h = 0; h < x_shape.height; h++) {
        const int64_t u = h + kMargin, top = u / 2;  // the gradient row under tap row u % 2
        const float* from = scratch.data() + (top + frame.kMargin) * frame.pitch + frame.kMargin;
        if (u % 2) {
          upsample_row<K, 1>(from, frame.pitch, spread, pairs, row);
        } else {
          upsample_row<K, 0>(from, frame.pitch, spread, pairs, row);
        }
        std::memcpy(out + h * x_shape.width, row, x_shape.width * sizeof(float));
      }
    }
  }
}

template <int K, int S>
void weight_gradient(const float* gradient, const Value& value, float* out, int64_t begin, int64_t end) {
  const Shape shape = value.shape;
  const Frame<K, S> frame(shape.height, shape.width);
  const int64_t out_height = (shape.height - 1) / S + 1, out_width = (shape.width - 1) / S + 1;
  const int64_t pitch = rounded_up(out_width);  // rows of the gradient, filled up with zeros
  Scratch scratch(frame.size() + shape.plane() + out_height * pitch);
  float* plane = scratch.data() + frame.size();
  float* rows = plane + shape.plane();
  for (int64_t channel = begin; channel < end; channel++) {
    Vector total[K][K] = {};
    for (int64_t image = 0; image < shape.batch; image++) {
      fill_frame<K, S>(value, channel, image, frame, scratch.data(), plane);
      const float* from = gradient + (channel * shape.batch + image) * out_height * out_width;
      for (int64_t h = 0; h < out_height; h++)
        for (int64_t w = 0; w < out_width; w++) rows[h * pitch + w] = from[h * out_width + w];
#pragma GCC unroll 8
      for (int i = 0; i < K; i++) {
        Vector of_row[K];
        for (int j = 0; j < K; j++) of_row[j] = total[i][j];
        for (int64_t h = 0; h < out_height; h++)
          for (int64_t w = 0; w < pitch; w += kLanes) {
            const Vector g = load(rows + h * pitch + w);
#pragma GCC unroll 8
            for (int j = 0; j < K; j++) of_row[j] += load(scratch.data() + frame.tap(h * S, i, j) + w) * g;
          }
        for (int j = 0; j < K; j++) total[i][j] = of_row[j];
      }
    }
    for (int tap = 0; tap < K * K; tap++) {
      Accumulator of_tap;
      of_tap.add(total[tap / K][tap % K]);
      out[channel * K * K + tap] = of_tap.total();
    }
  }
}

// Calls body with kernel and stride as compile-time constants; the operators have refused anything else.
template <class Body>
void with_window(Window window, Body body) {
  if (window.kernel == 3)
    return window.stride == 1 ? body.template operator()<3, 1>() : body.template operator()<3, 2>();
  return window.stride == 1 ? body.template operator()<5, 1>() : body.template operator()<5, 2>();
}

}  // namespace

void depthwise(const Value& value, const float* weight, Window window, float* out, int64_t begin, int64_t end) {
  with_window(window, [&]<int K, int S>() { forward<K, S>(value, weight, out, begin, end); });
}

void depthwise_input_gradient(
    const float* gradient, Shape out_shape, const float* weight, Window window, float* x_gradient, Shape x_shape,
    int64_t begin, int64_t end) {
  with_window(window, [&]<int K, int S>() {
    if constexpr (S == 1) {
      input_gradient_stride_1<K>(gradient, out_shape, weight, x_gradient, begin, end);
    } else {
      input_gradient_stride_2<K>(gradient, out_shape, weight, x_gradient, x_shape, begin, end);
    }
  });
}

void depthwise_weight_gradient(
    const float* gradient, const Value& value, Window window, float* out, int64_t begin, int64_t end) {
  with_window(window, [&]<int K, int S>() { weight_gradient<K, S>(gradient, value, out, begin, end); });
}

}  // namespace fedss::FEDSS_ISA
