// Products with 4- and 8-bit weights, which stay as they are; activations become int8 on the way in.
//
// Activations are codes q in groups of 32 columns, with a scale and a term each (quantize.cpp). A group's share of an output
// is, exactly but for the last roundings (k_quantized.cpp: the K formats),
//
//     Q8_0, Q5_0, Q4_0:  (sum of code * q + term) * (weight scale * scale)
//     Q4_1, Q5_1:        (sum of code * q)        * (weight scale * scale)  +  weight minimum * term
//
// where codes are unsigned, as the byte dot product of AVX-512 wants one side. The integers are exact in any order; the
// floats are added group by group in the order of k, so an output has the same bits in every tile.
#include "kernels/byte_dot.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"
#include "kernels/quantize.h"
#include "kernels/tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int QUADS = GROUP_COLUMNS / 4;
constexpr int SECOND_LEVEL = 2;         // of the caches, for __builtin_prefetch

// The quads of a group, from the codes of one panel. SHARE quads come from one load.
struct Q8 {
  static constexpr int SHARE = 1;
  static constexpr int32_t FORMAT = MV_Q8_0;
  static constexpr bool MINIMUM = false;
  static MV_INLINE void quads(const char *group, int i, Bytes (&w)[SHARE]) {
    w[0] = eight_bit_codes(load_bytes(group + i * 64));
  }
  static MV_INLINE I start(const int32_t *term) { return EIGHT_BIT_CODES_ARE_SIGNED ? I{} : I{} + *term; }
};
struct Q5_1 {
  static constexpr int SHARE = 1;
  static constexpr int32_t FORMAT = MV_Q5_1;
  static constexpr bool MINIMUM = true;
  static MV_INLINE void quads(const char *group, int i, Bytes (&w)[SHARE]) { w[0] = load_bytes(group + i * 64); }
  static MV_INLINE I start(const int32_t *) { return I{}; }
};
struct Q4 {
  static constexpr int SHARE = 2;
  static MV_INLINE void quads(const char *group, int i, Bytes (&w)[SHARE]) {
    Bytes both = load_bytes(group + i * 64);
    w[0] = both & 15;
    w[1] = high_nibbles(both);
  }
};
struct Q4_0 : Q4 {
  static constexpr int32_t FORMAT = MV_Q4_0;
  static constexpr bool MINIMUM = false;
  static MV_INLINE I start(const int32_t *term) { return I{} + *term; }
};
struct Q4_1 : Q4 {
  static constexpr int32_t FORMAT = MV_Q4_1;
  static constexpr bool MINIMUM = true;
  static MV_INLINE I start(const int32_t *) { return I{}; }
};

// Of activations that were rounded for Q8_0: -128 Q / 4 = -32 Q.
struct Screen {
  static constexpr int SHARE = 4;
  static constexpr int32_t FORMAT = MV_SCREEN;
  static constexpr bool MINIMUM = false;
  static MV_INLINE void quads(const char *group, int i, Bytes (&w)[SHARE]) {
    const U upper = (U)load_bytes(group + SCREEN_UPPER + i * 64);
    const Bytes first = load_bytes(group + i * 128), second = load_bytes(group + i * 128 + 64);
    w[0] = (first & 15) | ((Bytes)(upper << 4) & 48);
    w[1] = high_nibbles(first) | ((Bytes)(upper << 2) & 48);
    w[2] = (second & 15) | ((Bytes)upper & 48);
    w[3] = high_nibbles(second) | ((Bytes)(upper >> 2) & 48);
  }
  static MV_INLINE I start(const int32_t *term) { return I{} + *term / 4; }
};

template <typename Q>
MV_INLINE I dot(I sum, Bytes w, int32_t x) {
  if constexpr (Q::SHARE == 1) return dot_eight(sum, w, x);
  return dot_four(sum, w, x);
}

template <typename Q>
struct Quantized {
  static constexpr bool ONE_PANEL_AT_ONE_ROW = W == 16;
  static constexpr int64_t PIECE = pair_bytes(Q::FORMAT);
  static constexpr int64_t LOAD = group_bytes(Q::FORMAT) * Q::SHARE / QUADS;  // bytes that SHARE quads come from
#if defined(__AVX512F__)
  static constexpr int ROWS_4 = 2, ROWS_2 = 6, ROWS_1 = 6;
#elif defined(__AVX2__)
  static constexpr int ROWS_4 = 0, ROWS_2 = 1, ROWS_1 = 2;
#else
  static constexpr int ROWS_4 = 0, ROWS_2 = 0, ROWS_1 = 2;
#endif

  template <int MR, int NP>
  static void tile(const Tile &tile) {
    const mv_op &op = *tile.op;
    const int K = op.weight->cols, groups = K / GROUP_COLUMNS;
    const int64_t bytes = panel_bytes(Q::FORMAT, K);
    const char *panel = (const char *)op.weight->data + tile.panel * bytes;
    const float *rows = op.x + tile.row * op.x_stride;
    const QuantizedRow x(rows, K);
    const int64_t stride = op.x_stride, byte_stride = stride * 4;
    const int64_t share = NP * bytes / tile.count, step = (share * 2 / groups + 63) / 64 * 64;
    const char *ahead = panel + NP * bytes + tile.index * share;
    constexpr bool ALONE = ONE_PANEL_AT_ONE_ROW && MR * NP == 1;
    Stream stream = ALONE && tile.stream ? *tile.stream : Stream(panel, bytes, nullptr, PIECE);
    if constexpr (MR * NP > 1) prefetch_output<MR>(op, tile.row, tile.panel * PANEL, NP);
    F acc[MR][NP * V];
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) acc[m][v] = zero();
    }
    for (int g = 0; g < groups; g++) {
      // Tiles over the same panels ask for those that come next, in the order of memory, each for its share.
      if (MR * NP > 1 && g % 2 == 0) {
        for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(ahead + i, 0, SECOND_LEVEL);
        ahead += step;
      }
      I sum[MR][NP * V];
      MV_UNROLL for (int m = 0; m < MR; m++) {
        I start = Q::start(x.terms + m * stride + g);
        MV_UNROLL for (int v = 0; v < NP * V; v++) sum[m][v] = start;
      }
      const char *group = panel + codes_offset(Q::FORMAT, g);
      const int8_t *columns = x.codes + g * GROUP_COLUMNS;
      MV_UNROLL for (int i = 0; i < QUADS / Q::SHARE; i++) {
        Bytes w[NP * V][Q::SHARE];
        if (ALONE) stream.ask(g % 2 * group_bytes(Q::FORMAT) + i * LOAD, LOAD);
        MV_UNROLL for (int v = 0; v < NP * V; v++) {
          Q::quads(group + v / V * bytes + v % V * int(sizeof(Bytes)), i, w[v]);
        }
        MV_UNROLL for (int j = 0; j < Q::SHARE; j++) {
          MV_UNROLL for (int m = 0; m < MR; m++) {
            int32_t four;
            memcpy(&four, columns + m * byte_stride + (i * Q::SHARE + j) * 4, 4);
            MV_UNROLL for (int v = 0; v < NP * V; v++) sum[m][v] = dot<Q>(sum[m][v], w[v][j], four);
          }
        }
      }
      if (ALONE && (g % 2 == 1 || g + 1 == groups)) {
        stream.ask(2 * group_bytes(Q::FORMAT), PIECE - 2 * group_bytes(Q::FORMAT));
        stream.next_piece();
      }
      MV_UNROLL for (int v = 0; v < NP * V; v++) {
        const char *here = panel + v / V * bytes + v % V * (W * 2);
        F weight_scale = F16::widen((const uint16_t *)(here + scales_offset(Q::FORMAT, g)));
        MV_UNROLL for (int m = 0; m < MR; m++) {
          F scale = weight_scale * set1(x.scales[m * stride + g]);
          acc[m][v] = fma(__builtin_convertvector(sum[m][v], F), scale, acc[m][v]);
        }
        if constexpr (Q::MINIMUM) {
          F minimum = F16::widen((const uint16_t *)(here + minima_offset(Q::FORMAT, g)));
          MV_UNROLL for (int m = 0; m < MR; m++) {
            float term;
            memcpy(&term, x.terms + m * stride + g, 4);
            acc[m][v] = fma(minimum, set1(term), acc[m][v]);
          }
        }
      }
    }
    if (ALONE && tile.stream) *tile.stream = stream;
    finish_tile(op, tile.row, tile.panel * PANEL, acc);
  }
};

}  // namespace

void multiply_quantized(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end, const char *next) {
  switch (op.weight->format) {
    case MV_Q5_0:  // packed as Q8_0
    case MV_Q8_0: return multiply_units<Quantized<Q8>>(op, num_rows, begin, end, next);
    case MV_Q4_0: return multiply_units<Quantized<Q4_0>>(op, num_rows, begin, end, next);
    case MV_Q4_1: return multiply_units<Quantized<Q4_1>>(op, num_rows, begin, end, next);
    case MV_Q5_1: return multiply_units<Quantized<Q5_1>>(op, num_rows, begin, end, next);
    case MV_SCREEN: return multiply_units<Quantized<Screen>>(op, num_rows, begin, end, next);
    default: return multiply_k_quantized(op, num_rows, begin, end, next);
  }
}

}  // namespace MV_ISA
}  // namespace mv
