// Depthwise convolution of narrow planes: kLanes channels at a time, a register holding one pixel of each.
//
// Planes, weights and gradients are interleaved first and separated at the end.  In between there is one loop over the
// taps that lie inside the plane, written three times: for the output, for the input's gradient, for the weight's.
#include <utility>

#include "kernels/depthwise/depthwise.h"
#include "kernels/registers/activation.h"
#include "kernels/registers/interleave.h"
#include "kernels/registers/lane_affine.h"
#include "kernels/registers/scratch.h"

namespace fedss::FEDSS_ISA::narrow {
namespace {

// What the loops below need to know of K x K taps at stride S over planes of width W.
template <int K, int S, int W>
struct Geometry {
  static constexpr int kMargin = K / 2, kOutWidth = (W - 1) / S + 1;

  // Calls body(w, j, column) for every tap j of every output w whose column lies inside a row; all three are known when
  // the body is compiled.
  template <class Body>
  static inline __attribute__((always_inline)) void for_each_tap(Body body) {
#pragma GCC unroll 16
    for (int w = 0; w < kOutWidth; w++)
#pragma GCC unroll 8
      for (int j = 0; j < K; j++) {
        const int column = w * S + j - kMargin;
        if (column >= 0 && column < W) body(w, j, column);
      }
  }
};

template <int Count>
inline void load_all(const float* from, Vector (&to)[Count]) {
#pragma GCC unroll 16
  for (int i = 0; i < Count; i++) to[i] = load(from + i * kLanes);
}
template <int Count>
inline void store_all(const Vector (&from)[Count], float* to) {
#pragma GCC unroll 16
  for (int i = 0; i < Count; i++) store(to + i * kLanes, from[i]);
}

template <int K, int S, int W>
void convolve_plane(const float* x, int64_t height, const float* taps, float* out) {
  using G = Geometry<K, S, W>;
  for (int64_t h = 0; h < strided(height, S); h++) {
    Vector total[G::kOutWidth] = {};
    for (int64_t i = 0; i < K; i++) {
      const int64_t y = h * S + i - G::kMargin;
      if (y < 0 || y >= height) continue;
      Vector row[W], tap[K];
      load_all(x + y * W * kLanes, row);
      load_all(taps + i * K * kLanes, tap);
      G::for_each_tap([&](int w, int j, int column) { total[w] += row[column] * tap[j]; });
    }
    store_all(total, out + h * G::kOutWidth * kLanes);
  }
}

// x'[u] = sum of weight[i] * gradient[(u - i) / S] over the taps i that divide.
template <int K, int S, int W>
void input_gradient_of_plane(const float* gradient, int64_t height, const float* taps, float* x_gradient) {
  using G = Geometry<K, S, W>;
  for (int64_t y = 0; y < height; y++) {
    Vector total[W] = {};
    for (int64_t i = (y + G::kMargin) % S; i < K; i += S) {
      const int64_t h = (y + G::kMargin - i) / S;
      if (y + G::kMargin < i || h >= strided(height, S)) continue;
      Vector row[G::kOutWidth], tap[K];
      load_all(gradient + h * G::kOutWidth * kLanes, row);
      load_all(taps + i * K * kLanes, tap);
      G::for_each_tap([&](int w, int j, int column) { total[column] += row[w] * tap[j]; });
    }
    store_all(total, x_gradient + y * W * kLanes);
  }
}

// Adds what one plane says to the sums of all taps.  Neighbouring outputs go to different sums, so that an addition
// need not wait for the one before.
template <int K, int S, int W>
void add_weight_gradient(const float* x, int64_t height, const float* gradient, float* sums) {
  using G = Geometry<K, S, W>;
  for (int64_t i = 0; i < K; i++) {
    Vector sum[2][K] = {};
    for (int64_t h = 0; h < strided(height, S); h++) {
      const int64_t y = h * S + i - G::kMargin;
      if (y < 0 || y >= height) continue;
      Vector row[W], given[G::kOutWidth];
      load_all(x + y * W * kLanes, row);
      load_all(gradient + h * G::kOutWidth * kLanes, given);
      G::for_each_tap([&](int w, int j, int column) { sum[w % 2][j] += row[column] * given[w]; });
    }
#pragma GCC unroll 8
    for (int j = 0; j < K; j++) {
      float* to = sums + (i * K + j) * kLanes;
      store(to, load(to) + (sum[0][j] + sum[1][j]));
    }
  }
}

// One of the loops above: from, the input planes' height, taps or gradient, to.
using PlaneLoop = void (*)(const float*, int64_t, const float*, float*);

enum class Loop { convolve, input_gradient, weight_gradient };

template <Loop L, int K, int S, int... Less>
PlaneLoop of_width(int64_t width, std::integer_sequence<int, Less...>) {
  static constexpr PlaneLoop loops[] = {
      (L == Loop::convolve         ? convolve_plane<K, S, Less + 1>
       : L == Loop::input_gradient ? input_gradient_of_plane<K, S, Less + 1>
                                   : add_weight_gradient<K, S, Less + 1>)...};
  return loops[width - 1];
}

template <Loop L>
PlaneLoop plane_loop(Window window, int64_t width) {
  PlaneLoop chosen = nullptr;
  with_window(window, [&]<int K, int S>() {
    chosen = of_width<L, K, S>(width, std::make_integer_sequence<int, static_cast<int>(kWidestNarrow)>());
  });
  return chosen;
}

// Interleaves the planes of one image, normalised and activated.
void interleave_value(
    const Value& value, const LaneRows<const float>& channels, int64_t first, int64_t end, int64_t image, float* to) {
  const LaneRows<const float> planes = channels.plus(image * value.shape.plane());
  if (!value.gamma) return interleave(planes, value.shape.plane(), to);
  const LaneAffine affine = lane_affine(value, first, end, image);
  with_activation(value.activation, [&]<Activation A>() {
    interleave(planes, value.shape.plane(), to, ActivatedAffine<A, Vector>(affine.scale, affine.shift));
  });
}

}  // namespace

void depthwise(const Value& value, const float* weight, Window window, float* out, int64_t begin, int64_t end) {
  const Shape shape = value.shape;
  const int64_t taps = window.kernel * window.kernel;
  const int64_t out_plane = strided(shape.height, window.stride) * strided(shape.width, window.stride);
  Scratch scratch((taps + shape.plane() + out_plane) * kLanes);
  float *tap = scratch.data(), *x = tap + taps * kLanes, *y = x + shape.plane() * kLanes;
  const PlaneLoop convolve = plane_loop<Loop::convolve>(window, shape.width);
  for (int64_t first = begin; first < end; first += kLanes) {
    interleave(LaneRows<const float>(weight, taps, first, end), taps, tap);
    const LaneRows<const float> from(value.x, shape.row(), first, end);
    const LaneRows<float> to(out, shape.batch * out_plane, first, end);
    for (int64_t image = 0; image < shape.batch; image++) {
      interleave_value(value, from, first, end, image, x);
      convolve(x, shape.height, tap, y);
      separate(y, out_plane, to.plus(image * out_plane));
    }
  }
}

void input_gradient(
    const float* gradient, Shape out_shape, const float* weight, Window window, float* x_gradient, Shape x_shape,
    int64_t begin, int64_t end) {
  const int64_t taps = window.kernel * window.kernel;
  Scratch scratch((taps + out_shape.plane() + x_shape.plane()) * kLanes);
  float *tap = scratch.data(), *g = tap + taps * kLanes, *x = g + out_shape.plane() * kLanes;
  const PlaneLoop spread = plane_loop<Loop::input_gradient>(window, x_shape.width);
  for (int64_t first = begin; first < end; first += kLanes) {
    interleave(LaneRows<const float>(weight, taps, first, end), taps, tap);
    const LaneRows<const float> from(gradient, out_shape.row(), first, end);
    const LaneRows<float> to(x_gradient, x_shape.row(), first, end);
    for (int64_t image = 0; image < x_shape.batch; image++) {
      interleave(from.plus(image * out_shape.plane()), out_shape.plane(), g);
      spread(g, x_shape.height, tap, x);
      separate(x, x_shape.plane(), to.plus(image * x_shape.plane()));
    }
  }
}

void weight_gradient(const float* gradient, const Value& value, Window window, float* out, int64_t begin, int64_t end) {
  const Shape shape = value.shape;
  const int64_t taps = window.kernel * window.kernel;
  const int64_t out_plane = strided(shape.height, window.stride) * strided(shape.width, window.stride);
  Scratch scratch((taps + shape.plane() + out_plane) * kLanes);
  float *sums = scratch.data(), *x = sums + taps * kLanes, *g = x + shape.plane() * kLanes;
  const PlaneLoop add = plane_loop<Loop::weight_gradient>(window, shape.width);
  for (int64_t first = begin; first < end; first += kLanes) {
    const LaneRows<const float> from(value.x, shape.row(), first, end);
    const LaneRows<const float> given(gradient, shape.batch * out_plane, first, end);
    std::memset(sums, 0, taps * kLanes * sizeof(float));
    for (int64_t image = 0; image < shape.batch; image++) {
      interleave_value(value, from, first, end, image, x);
      interleave(given.plus(image * out_plane), out_plane, g);
      add(x, shape.height, g, sums);
    }
    separate(sums, taps, LaneRows<float>(out, taps, first, end));
  }
}

}  // namespace fedss::FEDSS_ISA::narrow
