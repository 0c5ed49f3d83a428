// Planes packed as values: activation(GroupNorm(x)) * gate, computed on the way.
//
// So a 1x1 convolution and the gradient of its weight read the output of the convolution before it.  Written out for
// them, and read again, the normalised and activated planes of an expansion are the most memory that a step moves.
#pragma once

#include "kernels/kernels.h"
#include "kernels/product/packing.h"
#include "kernels/registers/activation.h"

namespace fedss::FEDSS_ISA {

// Of what is packed: rows [first_row, first_row + rows) of `b` and as many columns.
struct Part {
  int64_t first_row, rows, first_column, columns;
};

inline float gate_of(const Product& p, int64_t channel, int64_t image) {
  return p.gate ? p.gate[image * p.value.shape.channels + channel] : 1.0f;
}

// Rows are channels and columns are pixels, image after image.
template <int Width, Activation A, bool Gated>
void pack_rows_of_values(const Product& p, const Part& part, float* to) {
  const Value value = p.value;
  const int64_t plane = value.shape.plane(), strip = filled_up(part.rows) * Width;
  clear_rest<Width>(part.rows, part.columns, to);
  for (int64_t k = 0; k < part.rows; k++) {
    const int64_t channel = part.first_row + k, group = group_of(value, channel);
    const float* row = value.x + channel * value.shape.row() + part.first_column;
    for (int64_t n = 0; n < part.columns;) {
      const int64_t image = (part.first_column + n) / plane, next = (image + 1) * plane - part.first_column;
      const int64_t last = next < part.columns ? next : part.columns;
      const PlaneAffine affine = plane_affine(value, channel, group, image);
      const ActivatedAffine<A, float> value_of(affine.scale, affine.shift);
      const float gate = gate_of(p, channel, image);
      const auto made = [&](const float* from, auto kind) __attribute__((always_inline)) {
        auto value = value_of(load_as(from, kind));
        if constexpr (Gated) value *= gate;
        return value;
      };
      while (n < last) {
        const int64_t end_of_strip = (n / Width + 1) * Width, end = end_of_strip < last ? end_of_strip : last;
        const float* from = row + n;
        float* at = to + n / Width * strip + k * Width + n % Width;
        if (end - n == Width) {
          for (int ahead = 0; ahead < Width; ahead += 16) fetch_early(from + 4 * value.shape.row() + ahead);
#pragma GCC unroll 4
          for (int i = 0; i < Width; i += kLanes) store(at + i, made(from + i, Vector{}));
        } else {
          for_each_lane(end - n, [&](int64_t i, auto kind) { store_as(at + i, made(from + i, kind)); });
        }
        n = end;
      }
    }
  }
}

// Columns are channels and rows are pixels.
template <int Width, Activation A, bool Gated>
void pack_columns_of_values(const Product& p, const Part& part, float* to) {
  constexpr int kVectors = Width / kLanes;
  const int64_t plane = p.value.shape.plane(), strip = filled_up(part.rows) * Width;
  clear_rest<Width>(part.rows, part.columns, to);
  for (int64_t n = 0; n < part.columns; n += Width, to += strip) {
    const int64_t channels = part.columns - n < Width ? part.columns - n : Width;
    transpose_strip<Width>(at(p.b, part.first_row, part.first_column + n), part.rows, channels, to);
    // While the strip is in the first-level cache.
    for (int64_t k = 0, end = 0; k < part.rows; k = end) {
      const int64_t image = (part.first_row + k) / plane, next = (image + 1) * plane - part.first_row;
      end = next < part.rows ? next : part.rows;
      float scale[Width] = {}, shift[Width] = {}, gate[Width] = {};
      for (int64_t i = 0; i < channels; i++) {
        const int64_t channel = part.first_column + n + i;
        const PlaneAffine affine = plane_affine(p.value, channel, group_of(p.value, channel), image);
        scale[i] = affine.scale;
        shift[i] = affine.shift;
        gate[i] = gate_of(p, channel, image);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const ActivatedAffine<A, Vector> value_of(load(scale + v * kLanes), load(shift + v * kLanes));
        const Vector factor = load(gate + v * kLanes);
        for (int64_t row = k; row < end; row++) {
          float* here = to + row * Width + v * kLanes;
          Vector value = value_of(load(here));
          if constexpr (Gated) value *= factor;
          store(here, value);
        }
      }
    }
  }
}

// As `pack` does it, of value * gate.
template <int Width>
void pack_values(const Product& p, const Part& part, float* to) {
  const bool rows = p.b.row_stride == p.value.shape.row() && p.depth == p.value.shape.channels;
  with_activation(p.value.activation, [&]<Activation A>() {
    const auto pack = rows
                          ? (p.gate ? pack_rows_of_values<Width, A, true> : pack_rows_of_values<Width, A, false>)
                          : (p.gate ? pack_columns_of_values<Width, A, true> : pack_columns_of_values<Width, A, false>);
    pack(p, part, to);
  });
}

}  // namespace fedss::FEDSS_ISA
