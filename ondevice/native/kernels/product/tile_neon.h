// A whole tile of 8 x 12 on ARM64, in assembly: gcc moves the tile's registers about or spills some of them, whatever
// the intrinsics are written like, and that costs a tenth of all instructions of a matrix product (120 instead of 108
// per four steps).
//
// Row i of the tile lies in v8 + 3 i and the two after it; v0 and v1 hold a column of `a`, v2 to v7 two rows of `b`.
// What the tile is added to comes last, as in tile.h: a weight gradient is a sum over all pixels, piece by piece, and
// if every product were added to the sum so far, those of a flat picture would all be rounded the same way.  At 224 px
// that was off by 2e-4.
#pragma once

#include <cstdint>

namespace fedss::FEDSS_ISA {

#define FEDSS_ROW(op, t0, t1, t2, b0, b1, b2, factor)                                                          \
  #op " v" #t0 ".4s, v" #b0 ".4s, v" #factor "\n" #op " v" #t1 ".4s, v" #b1 ".4s, v" #factor "\n" #op " v" #t2 \
      ".4s, v" #b2 ".4s, v" #factor "\n"
// clang-format off
#define FEDSS_STEP(op, b0, b1, b2) \
  FEDSS_ROW(op, 8, 9, 10, b0, b1, b2, 0.s[0]) \
  FEDSS_ROW(op, 11, 12, 13, b0, b1, b2, 0.s[1]) \
  FEDSS_ROW(op, 14, 15, 16, b0, b1, b2, 0.s[2]) \
  FEDSS_ROW(op, 17, 18, 19, b0, b1, b2, 0.s[3]) \
  FEDSS_ROW(op, 20, 21, 22, b0, b1, b2, 1.s[0]) \
  FEDSS_ROW(op, 23, 24, 25, b0, b1, b2, 1.s[1]) \
  FEDSS_ROW(op, 26, 27, 28, b0, b1, b2, 1.s[2]) \
  FEDSS_ROW(op, 29, 30, 31, b0, b1, b2, 1.s[3])
// clang-format on
#define FEDSS_LOAD_A "ldp q0, q1, [%[a]], #32\n"
#define FEDSS_LOAD_TWO_B "ldp q2, q3, [%[b]], #32\n ldp q4, q5, [%[b]], #32\n ldp q6, q7, [%[b]], #32\n"
#define FEDSS_EACH_ROW(what)                                                                                           \
  what(8, 9, 10) what(11, 12, 13) what(14, 15, 16) what(17, 18, 19) what(20, 21, 22) what(23, 24, 25) what(26, 27, 28) \
      what(29, 30, 31)
#define FEDSS_ADD_ROW(t0, t1, t2)                                                                         \
  "ldp q0, q1, [%[start]]\n ldr q2, [%[start], #32]\n add %[start], %[start], %[start_bytes]\n"           \
  "fadd v" #t0 ".4s, v" #t0 ".4s, v0.4s\n fadd v" #t1 ".4s, v" #t1 ".4s, v1.4s\n fadd v" #t2 ".4s, v" #t2 \
  ".4s, v2.4s\n"
#define FEDSS_STORE_ROW(t0, t1, t2) \
  "stp q" #t0 ", q" #t1 ", [%[out]]\n str q" #t2 ", [%[out], #32]\n add %[out], %[out], %[out_bytes]\n"

// out [8, 12] = start (0 if null) + a b, over a depth that is a multiple of 4 and not 0; start and out lie by rows.
inline void multiply_whole_tile(
    const float* a, const float* b, int64_t depth, const float* start, int64_t start_stride, float* out,
    int64_t out_stride) {
  const float* end = a + 8 * depth;
  asm volatile(
      // The first step multiplies without adding, so nothing has to be set to 0.
      FEDSS_LOAD_A FEDSS_LOAD_TWO_B FEDSS_STEP(fmul, 2, 3, 4) "b 2f\n"
      "1:\n" FEDSS_LOAD_A FEDSS_LOAD_TWO_B FEDSS_STEP(fmla, 2, 3, 4)
      "2:\n" FEDSS_LOAD_A FEDSS_STEP(fmla, 5, 6, 7)
      FEDSS_LOAD_A FEDSS_LOAD_TWO_B FEDSS_STEP(fmla, 2, 3, 4) FEDSS_LOAD_A FEDSS_STEP(fmla, 5, 6, 7)
      "cmp %[a], %[end]\n b.ne 1b\n"
      "cbz %[start], 3f\n" FEDSS_EACH_ROW(FEDSS_ADD_ROW)
      "3:\n" FEDSS_EACH_ROW(FEDSS_STORE_ROW)
      : [a] "+r"(a), [b] "+r"(b), [start] "+r"(start), [out] "+r"(out)
      : [end] "r"(end), [start_bytes] "r"(4 * start_stride), [out_bytes] "r"(4 * out_stride)
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
        "v31");
}

#undef FEDSS_ROW
#undef FEDSS_STEP
#undef FEDSS_LOAD_A
#undef FEDSS_LOAD_TWO_B
#undef FEDSS_EACH_ROW
#undef FEDSS_ADD_ROW
#undef FEDSS_STORE_ROW

}  // namespace fedss::FEDSS_ISA
