// Products with weights in GGUF's K formats and int8 activations; k_panels.h has the formats and draws the layout.
//
// Activations are rounded in groups of 32 columns, as for all quantised weights (quantize.cpp): codes x, a scale a, and a
// term. A weight group of 32 columns, or each half of it where groups have 16, adds to an output
//
//     no minimum:  (sum of q x - offset X) (d s a)                        X = sum of the x of the group
//     minimum:     (sum of q x)            (d s a)  +  (-dmin m) (a X)
//
// For groups of 32 the term is a X as a float; for groups of 16 it holds the two X as 16-bit integers. d s and dmin m are
// exact in float32 (11 + 8 bits). Integers are exact in any order; floats are added group by group in the order of k, so
// an output has the same bits in every tile.
#include "kernels/byte_dot.h"
#include "kernels/formats.h"
#include "kernels/k_panels.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"
#include "kernels/tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int PREFETCH = 1024;  // bytes ahead where panels are abreast

// W small integers as floats.
template <typename Byte>
MV_INLINE F widen_bytes(const char *p) {
#if defined(__AVX512F__)
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return _mm512_cvtepi32_ps(Byte(-1) < 0 ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#else
  typedef Byte Vector __attribute__((vector_size(W)));
  Vector bytes;
  memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, F);
#endif
}

// Rounded activations of neighbouring rows; quantize.cpp draws one.
struct Rows {
  const char *base;
  int64_t stride;  // bytes
  int columns;

  MV_INLINE int32_t word(int m, int64_t at) const {
    int32_t value;
    memcpy(&value, base + m * stride + at, 4);
    return value;
  }
  MV_INLINE float number(int m, int64_t at) const {
    float value;
    memcpy(&value, base + m * stride + at, 4);
    return value;
  }
  MV_INLINE int32_t four(int m, int k) const { return word(m, k); }  // codes k … k + 3
  MV_INLINE float scale(int m, int g) const { return number(m, columns + g * 4); }
  // a X of a group, and X of half h of one
  MV_INLINE float scaled_sum(int m, int g) const { return number(m, columns + columns / 8 + g * 4); }
  MV_INLINE int32_t half_sum(int m, int g, int h) const {
    int32_t both = word(m, columns + columns / 8 + g * 4);
    return h ? both >> 16 : int16_t(both);
  }
};

template <int32_t FORMAT>
struct KQuantized {
  static constexpr bool ONE_PANEL_AT_ONE_ROW = W == 16;
  static constexpr KLayout L = k_layout(FORMAT);
  static constexpr int64_t PIECE = 64, LINES = L.bytes() / PIECE;  // of a super-block
  static constexpr int PARTS = 32 / L.group;  // weight groups in a group of activations
#if defined(__AVX512F__)
  static constexpr int ROWS_4 = 1, ROWS_2 = 4, ROWS_1 = 6;
#elif defined(__AVX2__)
  static constexpr int ROWS_4 = 0, ROWS_2 = 1, ROWS_1 = 2;
#else
  static constexpr int ROWS_4 = 0, ROWS_2 = 0, ROWS_1 = 2;
#endif

  // Quad i (columns 4i … 4i + 3) of a group of 32, vector v of the panel.
  static MV_INLINE Bytes quad(const char *group, int i, int v) {
    const int within = v * int(sizeof(Bytes));
    if constexpr (L.code_bits == 8) return load_bytes(group + i * 64 + within);
    Bytes both = load_bytes(group + i / 2 * 64 + within);
    return i % 2 ? high_nibbles(both) : both & 15;
  }
  static MV_INLINE I dot(I sum, Bytes w, int32_t x) {
    if constexpr (L.code_bits == 8) return dot_eight(sum, w, x);
    return dot_four(sum, w, x);
  }

  template <int MR, int NP>
  static MV_INLINE void add_part(F (&acc)[MR][NP * V], const char *super, int64_t stride, const Rows &x, int g, int h) {
    const int part = g % 8 * PARTS + h;  // the weight group within the super-block
    const char *codes = super + g % 8 * L.group_bytes();
    I sum[MR][NP * V];
    MV_UNROLL for (int m = 0; m < MR; m++) {
      I start = I{};
      if constexpr (!L.has_minimum) start += -L.offset * x.half_sum(m, g, h);
      MV_UNROLL for (int v = 0; v < NP * V; v++) sum[m][v] = start;
    }
    MV_UNROLL for (int i = h * L.group / 4; i < (h + 1) * L.group / 4; i++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) {
        Bytes w = quad(codes + v / V * stride, i, v % V);
        MV_UNROLL for (int m = 0; m < MR; m++) {
          sum[m][v] = dot(sum[m][v], w, x.four(m, g * 32 + i * 4));
        }
      }
    }
    MV_UNROLL for (int v = 0; v < NP * V; v++) {
      const char *here = super + v / V * stride;
      const int lane = v % V * W;
      F scale = F16::widen((const uint16_t *)(here + L.scale_at()) + lane) *
                widen_bytes<int8_t>(here + L.scales_at() + part * PANEL + lane);
      MV_UNROLL for (int m = 0; m < MR; m++)
        acc[m][v] = fma(__builtin_convertvector(sum[m][v], F), scale * set1(x.scale(m, g)), acc[m][v]);
      if constexpr (L.has_minimum) {
        F minimum = F16::widen((const uint16_t *)(here + L.minimum_at()) + lane) *
                    widen_bytes<uint8_t>(here + L.minima_at() + part * PANEL + lane);
        MV_UNROLL for (int m = 0; m < MR; m++) {
          float term = PARTS == 1 ? x.scaled_sum(m, g) : x.scale(m, g) * float(x.half_sum(m, g, h));
          acc[m][v] = fma(minimum, set1(term), acc[m][v]);
        }
      }
    }
  }

  template <int MR, int NP>
  static void tile(const Tile &tile) {
    const mv_op &op = *tile.op;
    const int K = op.weight->cols;
    const int64_t stride = panel_bytes(FORMAT, K);
    const char *panel = (const char *)op.weight->data + tile.panel * stride;
    const Rows rows = {(const char *)(op.x + tile.row * op.x_stride), op.x_stride * 4, K};
    constexpr bool ALONE = ONE_PANEL_AT_ONE_ROW && MR * NP == 1;
    Stream stream = ALONE && tile.stream ? *tile.stream : Stream(panel, stride, nullptr, PIECE);
    F acc[MR][NP * V];
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) acc[m][v] = zero();
    }
    for (int g = 0; g < K / 32; g++) {
      const char *super = panel + g / 8 * L.bytes();
      if (ALONE) {
        for (int64_t i = g % 8 * LINES / 8; i < (g % 8 + 1) * LINES / 8; i++) stream.ask(0, PIECE), stream.next_piece();
      } else {
        MV_UNROLL for (int p = 0; p < NP; p++) {
          for (int64_t i = 0; i < L.bytes() / 8; i += 64)
            __builtin_prefetch(super + p * stride + g % 8 * (L.bytes() / 8) + i + PREFETCH);
        }
      }
      MV_UNROLL for (int h = 0; h < PARTS; h++) add_part<MR, NP>(acc, super, stride, rows, g, h);
    }
    if (ALONE && tile.stream) *tile.stream = stream;
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) finish(op, tile.row + m, tile.panel * PANEL + v * W, acc[m][v]);
    }
  }
};

}  // namespace

void multiply_k_quantized(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end, const char *next) {
  switch (op.weight->format) {
    case MV_Q2_K: return multiply_units<KQuantized<MV_Q2_K>>(op, num_rows, begin, end, next);
    case MV_Q3_K: return multiply_units<KQuantized<MV_Q3_K>>(op, num_rows, begin, end, next);
    case MV_Q4_K: return multiply_units<KQuantized<MV_Q4_K>>(op, num_rows, begin, end, next);
    case MV_Q5_K: return multiply_units<KQuantized<MV_Q5_K>>(op, num_rows, begin, end, next);
    case MV_Q6_K: return multiply_units<KQuantized<MV_Q6_K>>(op, num_rows, begin, end, next);
  }
}

}  // namespace MV_ISA
}  // namespace mv
