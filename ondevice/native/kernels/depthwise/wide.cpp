// Depthwise convolution of wide planes: a register holds neighbouring pixels of one channel.
//
// A plane is first copied into a frame with zero margins, where every tap of the kernel is a shifted row and needs no
// bounds check.  The copy is also where an input that is a `Value` is computed.  With stride 2 the frame keeps
// the even columns and the odd columns apart, so that a tap's row is contiguous again and the inner loops are the same.
//
// Rows are no multiples of a register.  The last register of a row begins so far to the left that it ends with the row:
// what it computes twice is the same twice.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/depthwise/depthwise.h"
#include "kernels/registers/activation.h"
#include "kernels/registers/columns.h"
#include "kernels/registers/scratch.h"
#include "kernels/registers/sums.h"

namespace fedss::FEDSS_ISA::wide {
namespace {

// Calls body(w) with where each register of a row of at least one begins.
template <class Body>
inline __attribute__((always_inline)) void for_each_register(int64_t width, Body body) {
  int64_t w = 0;
  for (; w + kLanes <= width; w += kLanes) body(w);
  if (w < width) body(width - kLanes);
}

// The taps of one channel, each to be multiplied with a register.
template <int K>
class Taps {
 public:
  Taps(const float* weight, bool flipped) {
    float taps[kQuads * 4] = {};
    for (int tap = 0; tap < K * K; tap++) taps[tap] = weight[flipped ? K * K - 1 - tap : tap];
#if defined(__aarch64__)
    for (int quad = 0; quad < kQuads; quad++) taps_[quad] = vld1q_f32(taps + 4 * quad);
#else
    for (int tap = 0; tap < K * K; tap++) taps_[tap] = broadcast(taps[tap]);
#endif
  }
  // total + value * tap; `tap` must be known when this is compiled.
  inline __attribute__((always_inline)) Vector add(Vector total, Vector value, int tap) const {
#if defined(__aarch64__)
    // By lane, so that 25 taps take 7 registers.  In assembly: compilers give each a register of its own all the same.
    asm("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(total) : "w"(value), "w"(taps_[tap / 4]), "i"(tap % 4));
    return total;
#else
    return total + value * taps_[tap];
#endif
  }

 private:
  static constexpr int kQuads = (K * K + 3) / 4;
#if defined(__aarch64__)
  float32x4_t taps_[kQuads];
#else
  Vector taps_[K * K];
#endif
};

// The geometry of a frame for input planes [height, width] and taps of a K x K kernel at stride S.
template <int K, int S>
struct Frame {
  static constexpr int kMargin = K / 2;
  int64_t height, width, pitch, rows;
  Frame(int64_t height, int64_t width)
      : height(height), width(width), pitch((width + 2 * kMargin + S - 1) / S), rows(height + 2 * kMargin) {}
  int64_t odd() const { return rows * pitch; }  // where the odd columns begin, at stride 2
  int64_t size() const { return S * rows * pitch; }

  // Copies a plane into the frame; `value` is applied to all of it.
  template <class Body>
  void fill(float* frame, const float* plane, Body value) const {
    const int64_t width = this->width, pitch = this->pitch;
    float* to = frame + kMargin * pitch;
    float* of_even = to + (kMargin % 2) * odd() + kMargin / 2;             // columns 0, 2, ...
    float* of_odd = to + ((kMargin + 1) % 2) * odd() + (kMargin + 1) / 2;  // columns 1, 3, ...
    for (int64_t h = 0; h < height; h++, plane += width) {
      if constexpr (S == 1) {
        for_each_register(width, [=](int64_t w) { store(to + kMargin + h * pitch + w, value(load(plane + w))); });
      } else {
        for_each_register(width / 2, [=](int64_t w) {
          const Vector first = value(load(plane + 2 * w)), second = value(load(plane + 2 * w + kLanes));
          store(of_even + h * pitch + w, __builtin_shuffle(first, second, kEven));
          store(of_odd + h * pitch + w, __builtin_shuffle(first, second, kOdd));
        });
        if (width % 2) of_even[h * pitch + width / 2] = value(plane[width - 1]);
      }
    }
  }
};

// Where tap column j of an output row begins in a row of the frame, and in that of its odd columns.
template <int S>
inline __attribute__((always_inline)) const float* tap_at(const float* row, const float* odd_row, int j) {
  return S == 1 ? row + j : (j % 2 ? odd_row : row) + j / 2;
}

template <int K, int S>
void fill_frame(const Value& value, int64_t channel, int64_t image, const Frame<K, S>& frame, float* to) {
  const Shape shape = value.shape;
  const float* x = value.x + channel * shape.row() + image * shape.plane();
  if (!value.gamma) return frame.fill(to, x, [](auto at) { return at; });
  const PlaneAffine affine = plane_affine(value, channel, group_of(value, channel), image);
  with_activation(value.activation, [&]<Activation A>() {
    frame.fill(to, x, ActivatedAffine<A, float>(affine.scale, affine.shift));
  });
}

// Some output rows of a correlation: what is read of the frame is multiplied with taps of each of them.
template <int K, int S, int Rows>
inline __attribute__((always_inline)) void correlate_rows(
    const float* from, int64_t pitch, int64_t odd, const Taps<K>& taps, int64_t width, float* out) {
  constexpr int kSpan = K + (Rows - 1) * S;  // input rows that these output rows see
  for_each_register(width, [&](int64_t w) __attribute__((always_inline)) {
    Vector total[Rows] = {};
    const float *row = from + w, *odd_row = row + odd;
#pragma GCC unroll 16
    for (int i = 0; i < kSpan; i++, row += pitch, odd_row += pitch)
#pragma GCC unroll 8
      for (int j = 0; j < K; j++) {
        const Vector at = load(tap_at<S>(row, odd_row, j));
#pragma GCC unroll 4
        for (int r = 0; r < Rows; r++) {
          const int tap_row = i - r * S;
          if (tap_row >= 0 && tap_row < K) total[r] = taps.add(total[r], at, tap_row * K + j);
        }
      }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r++) store(out + r * width + w, total[r]);
  });
}

template <int K, int S>
void correlate_plane(
    const Frame<K, S>& frame, const float* from, const Taps<K>& given, int64_t height, int64_t width, float* out) {
  const Taps<K> taps = given;  // in registers
  const int64_t pitch = frame.pitch, odd = frame.odd();
  int64_t h = 0;
  for (; h + 4 <= height; h += 4)
    correlate_rows<K, S, 4>(from + h * S * pitch, pitch, odd, taps, width, out + h * width);
  for (; h < height; h++) correlate_rows<K, S, 1>(from + h * S * pitch, pitch, odd, taps, width, out + h * width);
}

// x'[u] = sum of weight[i] * gradient[(u - i) / S] over the taps i that divide: at stride 1 a correlation with the
// flipped kernel.
template <int K>
void input_gradient_stride_1(
    const float* gradient, Shape out_shape, const float* weight, float* x_gradient, int64_t begin, int64_t end) {
  const Value plain{gradient, out_shape, nullptr, nullptr, nullptr, 1, Activation::none};
  const Frame<K, 1> frame(out_shape.height, out_shape.width);
  Scratch scratch(frame.size());
  for (int64_t channel = begin; channel < end; channel++) {
    const Taps<K> taps(weight + channel * K * K, true);
    for (int64_t image = 0; image < out_shape.batch; image++) {
      fill_frame<K, 1>(plain, channel, image, frame, scratch.data());
      correlate_plane<K, 1>(
          frame, scratch.data(), taps, out_shape.height, out_shape.width,
          x_gradient + channel * out_shape.row() + image * out_shape.plane());
    }
  }
}

// Two rows of x' at stride 2, from gradient rows around `from`.  Even and odd rows and columns see different taps: they
// are computed apart from the same numbers, and the columns interleaved.
template <int K>
inline __attribute__((always_inline)) void upsample_rows(
    const float* from, int64_t pitch, const Taps<K>& taps, int64_t pairs, float* even_row, float* odd_row) {
  constexpr int kMargin = K / 2;
  for_each_register(pairs, [&](int64_t w) __attribute__((always_inline)) {
    Vector total[2][2] = {};
#pragma GCC unroll 8
    for (int i = 0; i < K; i++)
#pragma GCC unroll 8
      for (int j = 0; j < K; j++) {
        const int row_parity = (i + kMargin) % 2, column_parity = (j + kMargin) % 2;
        const int row = (row_parity + kMargin - i) / 2, column = (column_parity + kMargin - j) / 2;
        Vector& sum = total[row_parity][column_parity];
        sum = taps.add(sum, load(from + row * pitch + w + column), i * K + j);
      }
    store(even_row + 2 * w, __builtin_shuffle(total[0][0], total[0][1], kFirst));
    store(even_row + 2 * w + kLanes, __builtin_shuffle(total[0][0], total[0][1], kSecond));
    store(odd_row + 2 * w, __builtin_shuffle(total[1][0], total[1][1], kFirst));
    store(odd_row + 2 * w + kLanes, __builtin_shuffle(total[1][0], total[1][1], kSecond));
  });
}

template <int K>
void input_gradient_stride_2(
    const float* gradient, Shape out_shape, const float* weight, float* x_gradient, Shape x_shape, int64_t begin,
    int64_t end) {
  const Value plain{gradient, out_shape, nullptr, nullptr, nullptr, 1, Activation::none};
  const Frame<3, 1> frame(out_shape.height, out_shape.width);  // margin 1: enough for both kernels
  const int64_t width = x_shape.width, pairs = out_shape.width;
  Scratch scratch(frame.size() + 4 * pairs);
  float *spare = scratch.data() + frame.size(), *other_spare = spare + 2 * pairs;
  for (int64_t channel = begin; channel < end; channel++) {
    const Taps<K> taps(weight + channel * K * K, false);
    for (int64_t image = 0; image < out_shape.batch; image++) {
      fill_frame<3, 1>(plain, channel, image, frame, scratch.data());
      float* out = x_gradient + channel * x_shape.row() + image * x_shape.plane();
      for (int64_t h = 0; h < out_shape.height; h++, out += 2 * width) {
        const float* from = scratch.data() + (h + frame.kMargin) * frame.pitch + frame.kMargin;
        const bool two = 2 * h + 1 < x_shape.height;
        if (two && width % 2 == 0) {
          upsample_rows<K>(from, frame.pitch, taps, pairs, out, out + width);
          continue;
        }
        upsample_rows<K>(from, frame.pitch, taps, pairs, spare, other_spare);
        std::memcpy(out, spare, width * sizeof(float));
        if (two) std::memcpy(out + width, other_spare, width * sizeof(float));
      }
    }
  }
}

// Adds to the gradients of tap rows [0, TapRows) what `Rows` rows of the output's gradient say.
template <int K, int S, int TapRows, int Rows>
inline __attribute__((always_inline)) void add_rows(
    const float* from, int64_t pitch, int64_t odd, const float* gradient, int64_t width, Mask fresh,
    Vector (&total)[TapRows][K]) {
  constexpr int kSpan = TapRows + (Rows - 1) * S;
  const auto add = [&](int64_t w, const Vector(&g)[Rows]) __attribute__((always_inline)) {
    const float *row = from + w, *odd_row = row + odd;
#pragma GCC unroll 16
    for (int i = 0; i < kSpan; i++, row += pitch, odd_row += pitch)
#pragma GCC unroll 8
      for (int j = 0; j < K; j++) {
        const Vector at = load(tap_at<S>(row, odd_row, j));
#pragma GCC unroll 4
        for (int r = 0; r < Rows; r++)
          if (i - r * S >= 0 && i - r * S < TapRows) total[i - r * S][j] += at * g[r];
      }
  };
  Vector g[Rows];
  int64_t w = 0;
  for (; w + kLanes <= width; w += kLanes) {
    for (int r = 0; r < Rows; r++) g[r] = load(gradient + r * width + w);
    add(w, g);
  }
  if (w == width) return;
  for (int r = 0; r < Rows; r++) g[r] = (Vector)((Mask)load(gradient + r * width + width - kLanes) & fresh);
  add(width - kLanes, g);
}

#if defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// What one plane adds to the gradients of tap rows [First, First + TapRows): as many as there are registers for.
template <int K, int S, int First, int TapRows>
inline void add_plane(
    const Frame<K, S>& frame, const float* from, const float* gradient, int64_t height, int64_t width,
    Vector (&sums)[K][K]) {
  constexpr int kRows = TapRows * K + 8 > kRegisters ? 2 : 4;
  Mask fresh;  // lanes of the last register that the one before does not have
  for (int lane = 0; lane < kLanes; lane++) fresh[lane] = lane >= kLanes - width % kLanes ? -1 : 0;
  const int64_t pitch = frame.pitch, odd = frame.odd();
  from += First * pitch;
  Vector total[TapRows][K];
  std::memcpy(total, sums[First], sizeof total);
  int64_t h = 0;
  for (; h + kRows <= height; h += kRows)
    add_rows<K, S, TapRows, kRows>(from + h * S * pitch, pitch, odd, gradient + h * width, width, fresh, total);
  for (; h < height; h++)
    add_rows<K, S, TapRows, 1>(from + h * S * pitch, pitch, odd, gradient + h * width, width, fresh, total);
  std::memcpy(sums[First], total, sizeof total);
}

template <int K, int S>
void weight_gradient_of(const float* gradient, const Value& value, float* out, int64_t begin, int64_t end) {
  const Shape shape = value.shape;
  const Frame<K, S> frame(shape.height, shape.width);
  const int64_t height = strided(shape.height, S), width = strided(shape.width, S);
  Scratch scratch(frame.size());
  for (int64_t channel = begin; channel < end; channel++) {
    Vector sums[K][K] = {};
    for (int64_t image = 0; image < shape.batch; image++) {
      const float *x = scratch.data(), *given = gradient + (channel * shape.batch + image) * height * width;
      fill_frame<K, S>(value, channel, image, frame, scratch.data());
      if constexpr (K * K < kRegisters) {
        add_plane<K, S, 0, K>(frame, x, given, height, width, sums);
      } else {
        add_plane<K, S, 0, 2>(frame, x, given, height, width, sums);
        add_plane<K, S, 2, 2>(frame, x, given, height, width, sums);
        add_plane<K, S, 4, 1>(frame, x, given, height, width, sums);
      }
    }
    for (int tap = 0; tap < K * K; tap++) out[channel * K * K + tap] = sum_of(sums[tap / K][tap % K]);
  }
}

}  // namespace

void depthwise(const Value& value, const float* weight, Window window, float* out, int64_t begin, int64_t end) {
  with_window(window, [&]<int K, int S>() {
    const Shape shape = value.shape;
    const Frame<K, S> frame(shape.height, shape.width);
    const int64_t height = strided(shape.height, S), width = strided(shape.width, S);
    Scratch scratch(frame.size());
    for (int64_t channel = begin; channel < end; channel++) {
      const Taps<K> taps(weight + channel * K * K, false);
      for (int64_t image = 0; image < shape.batch; image++) {
        fill_frame<K, S>(value, channel, image, frame, scratch.data());
        correlate_plane<K, S>(
            frame, scratch.data(), taps, height, width, out + (channel * shape.batch + image) * height * width);
      }
    }
  });
}

void input_gradient(
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

void weight_gradient(const float* gradient, const Value& value, Window window, float* out, int64_t begin, int64_t end) {
  with_window(window, [&]<int K, int S>() { weight_gradient_of<K, S>(gradient, value, out, begin, end); });
}

}  // namespace fedss::FEDSS_ISA::wide
