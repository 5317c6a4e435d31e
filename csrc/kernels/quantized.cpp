// Products with 4- and 8-bit weights, which stay as they are; activations become int8 on the way in.
//
// MV_QUANTIZE rounds every row of x in groups of 32 columns:   scale = max |x| / 127,   q = round(x / scale)
// and writes one row as   [ q: K bytes | scale: K/32 floats | term: K/32 words ]  with Q = sum of q over the group and
//
//     term = -128 Q (Q8_0, Q5_0)   or   -8 Q (Q4_0)   as an integer,   scale * Q (Q4_1, Q5_1, Q4_K, Q5_K)   as a float,
//            the Q of both halves as 16-bit integers, the first one low (Q2_K, Q3_K, Q6_K).
//
// A group's share of an output is then, exactly but for the last roundings (k_quantized.cpp: the K formats),
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
#include "kernels/tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

typedef int8_t Codes __attribute__((vector_size(W)));

constexpr int QUADS = GROUP_COLUMNS / 4;
constexpr int PREFETCH_ONE_ROW = 4096;  // bytes ahead: at one row, panels are one stream
constexpr int SECOND_LEVEL = 2;         // of the caches, for __builtin_prefetch

// One row of rounded activations.
struct QuantizedRow {
  const int8_t *codes;
  const float *scales;
  const int32_t *terms;
  QuantizedRow(const float *row, int columns)
      : codes((const int8_t *)row), scales(row + columns / 4), terms((const int32_t *)(scales + columns / 32)) {}
};

// The quads of a group, from the codes of one panel. SHARE quads come from one load.
struct Q8 {
  static constexpr int SHARE = 1;
  static constexpr int32_t FORMAT = MV_Q8_0;
  static constexpr bool MINIMUM = false;
  static MV_INLINE void quads(const char *codes, Bytes (&w)[SHARE]) { w[0] = eight_bit_codes(load_bytes(codes)); }
  static MV_INLINE I start(const int32_t *term) { return EIGHT_BIT_CODES_ARE_SIGNED ? I{} : I{} + *term; }
};
struct Q5_1 {
  static constexpr int SHARE = 1;
  static constexpr int32_t FORMAT = MV_Q5_1;
  static constexpr bool MINIMUM = true;
  static MV_INLINE void quads(const char *codes, Bytes (&w)[SHARE]) { w[0] = load_bytes(codes); }
  static MV_INLINE I start(const int32_t *) { return I{}; }
};
struct Q4 {
  static constexpr int SHARE = 2;
  static MV_INLINE void quads(const char *codes, Bytes (&w)[SHARE]) {
    Bytes both = load_bytes(codes);
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

template <typename Q>
MV_INLINE I dot(I sum, Bytes w, int32_t x) {
  if constexpr (Q::SHARE == 1) return dot_eight(sum, w, x);
  return dot_four(sum, w, x);
}

template <typename Q>
struct Quantized {
  static constexpr bool ONE_PANEL_AT_ONE_ROW = W == 16;
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
    const int64_t bytes = panel_bytes(Q::FORMAT, K), pair = pair_bytes(Q::FORMAT);
    const char *panel = (const char *)op.weight->data + tile.panel * bytes;
    const float *rows = op.x + tile.row * op.x_stride;
    const QuantizedRow x(rows, K);
    const int64_t stride = op.x_stride, byte_stride = stride * 4;
    const bool first_of_block = tile.row % ROW_BLOCK == 0;
    if constexpr (MR * NP > 1) prefetch_output<MR>(op, tile.row, tile.panel * PANEL, NP);
    F acc[MR][NP * V];
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) acc[m][v] = zero();
    }
    for (int g = 0; g < groups; g++) {
      // The first tile of a block of rows asks for the panels that come next, in the order of memory; the others find theirs.
      if (MR * NP > 1 && first_of_block && g % 2 == 0) {
        const char *next = panel + NP * bytes + g / 2 * (NP * pair);
        for (int64_t i = 0; i < NP * pair; i += 64) __builtin_prefetch(next + i, 0, SECOND_LEVEL);
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
        if (MR * NP == 1) __builtin_prefetch(group + i * 64 + PREFETCH_ONE_ROW, 0, SECOND_LEVEL);
        MV_UNROLL for (int v = 0; v < NP * V; v++) {
          Q::quads(group + v / V * bytes + i * 64 + v % V * int(sizeof(Bytes)), w[v]);
        }
        MV_UNROLL for (int j = 0; j < Q::SHARE; j++) {
          MV_UNROLL for (int m = 0; m < MR; m++) {
            int32_t four;
            memcpy(&four, columns + m * byte_stride + (i * Q::SHARE + j) * 4, 4);
            MV_UNROLL for (int v = 0; v < NP * V; v++) sum[m][v] = dot<Q>(sum[m][v], w[v][j], four);
          }
        }
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
    finish_tile(op, tile.row, tile.panel * PANEL, acc);
  }
};

MV_INLINE void store_codes(int8_t *codes, I q) {
#if defined(__AVX512F__)
  Codes narrow = (Codes)_mm512_cvtepi32_epi8((__m512i)q);
#else
  Codes narrow = __builtin_convertvector(q, Codes);
#endif
  memcpy(codes, &narrow, sizeof narrow);
}

// Sums of the codes of both halves of a group, in one word.
int32_t half_sums(const int8_t *codes) {
  int32_t first = 0, second = 0;
  for (int i = 0; i < 16; i++) {
    first += codes[i];
    second += codes[16 + i];
  }
  return int32_t(uint32_t(second) << 16 | (uint32_t(first) & 0xffffu));
}

// One group of a row. A group whose largest number is below 1e-30 counts as zeros.
void quantize_group(const float *x, int32_t format, int8_t *codes, float *scale, int32_t *term) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  F largest = zero();
  MV_UNROLL for (int i = 0; i < GROUP_COLUMNS; i += W) {
    F v = load(x + i);
    largest = max(largest, as_float(as_int(v) & 0x7fffffff));
  }
  float peak = max_lanes(largest);
  bool empty = peak < 1e-30f;
  float inverse = empty ? 0.0f : 127.0f / peak;
  *scale = empty ? 0.0f : peak / 127.0f;
  F sum = zero();
  MV_UNROLL for (int i = 0; i < GROUP_COLUMNS; i += W) {
    F shifted = load(x + i) * inverse + magic;
    store_codes(codes + i, as_int(shifted) - 0x4b400000);
    sum += shifted - magic;
  }
  float exact = sum_lanes(sum);  // at most 32 * 127, or NaN if x has a NaN or an infinity; then the scale is NaN too
  bool finite = exact == exact;
  if (!finite) *scale = exact;
  int32_t total = finite ? int32_t(exact) : 0;
  if (format == MV_Q2_K || format == MV_Q3_K || format == MV_Q6_K) {
    *term = finite ? half_sums(codes) : 0;
  } else if (has_minimum(format) || format == MV_Q4_K || format == MV_Q5_K) {
    float shift = *scale * float(total);
    memcpy(term, &shift, 4);
  } else {
    *term = total * (format == MV_Q4_0 ? -8 : -128);
  }
}

void quantize(const mv_op &op, const StepView &, int64_t begin, int64_t end, char *) {
  if (op.weight->format == MV_BF16) return round_to_bf16(op, begin, end);
  const int groups = op.weight->cols / GROUP_COLUMNS;
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    float *out = op.out + t * op.out_stride;
    QuantizedRow row(out, op.weight->cols);
    for (int g = 0; g < groups; g++)
      quantize_group(x + g * GROUP_COLUMNS, op.weight->format, (int8_t *)row.codes + g * GROUP_COLUMNS,
                     (float *)row.scales + g, (int32_t *)row.terms + g);
  }
}

}  // namespace

void multiply_quantized(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end) {
  switch (op.weight->format) {
    case MV_Q5_0:  // packed as Q8_0
    case MV_Q8_0: return multiply_units<Quantized<Q8>>(op, num_rows, begin, end);
    case MV_Q4_0: return multiply_units<Quantized<Q4_0>>(op, num_rows, begin, end);
    case MV_Q4_1: return multiply_units<Quantized<Q4_1>>(op, num_rows, begin, end);
    case MV_Q5_1: return multiply_units<Quantized<Q5_1>>(op, num_rows, begin, end);
    default: return multiply_k_quantized(op, num_rows, begin, end);
  }
}

const Kernel QUANTIZE = {units_rows, quantize, 1};

}  // namespace MV_ISA
}  // namespace mv
