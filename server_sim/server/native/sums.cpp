// The sums of a round's updates: the twin of `sum_loop.py`.
#include <algorithm>
#include <bit>

#include "loops.h"

namespace fedss {
namespace {

// Of a positive float the bits are in the order of the number, NaN above all: their largest is max |v|, or NaN.
FEDSS_INLINE uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

}  // namespace
}  // namespace fedss

extern "C" {

// total += weight * values
FEDSS_CLONES void fedss_add_scaled(
    float* __restrict total, const float* __restrict values, int64_t count, float weight) {
  for (int64_t i = 0; i < count; ++i) total[i] += weight * values[i];
}

// values /= divisor; returns max |v| of the result, NaN if there is one.
FEDSS_CLONES float fedss_divide(float* values, int64_t count, float divisor) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    values[i] /= divisor;
    largest = std::max(largest, fedss::magnitude(values[i]));
  }
  return std::bit_cast<float>(largest);
}

// values *= factor, and the same.
FEDSS_CLONES float fedss_multiply(float* values, int64_t count, float factor) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    values[i] *= factor;
    largest = std::max(largest, fedss::magnitude(values[i]));
  }
  return std::bit_cast<float>(largest);
}

// values[i] /= divisors[i], row by row, and the same.
FEDSS_CLONES float fedss_divide_rows(float* values, int64_t count, int64_t dim, const float* divisors) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    float* row = values + i * dim;
    for (int64_t j = 0; j < dim; ++j) {
      row[j] /= divisors[i];
      largest = std::max(largest, fedss::magnitude(row[j]));
    }
  }
  return std::bit_cast<float>(largest);
}

// Adds weighted rows to the sums of the rows that have one, and begins sums for the others.  `sum_of_row` has the
// number of a row's sum, counted from 1, or 0.  Returns how many sums there are now; or -1 - i, and has done nothing,
// if ids[i] is no row.
FEDSS_CLONES int64_t fedss_add_rows(
    int32_t* sum_of_row, int64_t num_rows, int64_t dim, float* sums, float* holder_examples, int64_t* touched,
    int64_t num_touched, const int64_t* ids, const float* values, int64_t count, float weight) {
  const int64_t outside = fedss::first_outside(ids, count, num_rows);
  if (outside >= 0) return -1 - outside;
  for (int64_t i = 0; i < std::min(2 * fedss::kAhead, count); ++i) __builtin_prefetch(sum_of_row + ids[i], 1, 2);
  for (int64_t i = 0; i < count; ++i) {
    if (i + 2 * fedss::kAhead < count) __builtin_prefetch(sum_of_row + ids[i + 2 * fedss::kAhead], 1, 2);
    if (i + fedss::kAhead < count) {
      const int64_t soon = sum_of_row[ids[i + fedss::kAhead]];
      if (soon) fedss::fetch<true>(sums + (soon - 1) * dim, dim * static_cast<int64_t>(sizeof(float)));
    }
    const float* __restrict row = values + i * dim;
    int32_t& number = sum_of_row[ids[i]];
    if (number) {
      float* __restrict sum = sums + (number - 1) * dim;
      for (int64_t j = 0; j < dim; ++j) sum[j] += weight * row[j];
      holder_examples[number - 1] += weight;
    } else {
      float* __restrict sum = sums + num_touched * dim;
      for (int64_t j = 0; j < dim; ++j) sum[j] = weight * row[j];
      holder_examples[num_touched] = weight;
      touched[num_touched] = ids[i];
      number = static_cast<int32_t>(++num_touched);
    }
  }
  return num_touched;
}

// The rows that have a sum have none again.
FEDSS_CLONES void fedss_forget_rows(int32_t* sum_of_row, const int64_t* touched, int64_t num_touched) {
  for (int64_t i = 0; i < num_touched; ++i) {
    if (i + fedss::kAhead < num_touched) __builtin_prefetch(sum_of_row + touched[i + fedss::kAhead], 1, 2);
    sum_of_row[touched[i]] = 0;
  }
}
}
