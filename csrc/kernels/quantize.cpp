// Rounding activations before products: to int8 for quantised weights; to bfloat16 for bfloat16 ones, in linear.cpp.
//
// MV_QUANTIZE rounds every row of x in groups of 32 columns:   scale = max |x| / 127,   q = round(x / scale)
// and writes one row as   [ q: K bytes | scale: K/32 floats | term: K/32 words ]  with Q = sum of q over the group and
//
//     term = -128 Q (Q8_0, Q5_0)   or   -8 Q (Q4_0)   as an integer,   scale * Q (Q4_1, Q5_1, Q4_K, Q5_K)   as a float,
//            the Q of both halves as 16-bit integers, the first one low (Q2_K, Q3_K, Q6_K).
//
// A vector holds one number of each of W groups wherever there is one number a group: maxima, scales, sums and terms.
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"

namespace mv {
namespace MV_ISA {
namespace {

typedef int8_t Codes __attribute__((vector_size(W)));

constexpr float MAGIC = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits

struct Largest {
  static MV_INLINE F join(F a, F b) { return max(a, b); }
  static MV_INLINE float lanes(F v) { return max_lanes(v); }
};
struct Sum {
  static MV_INLINE F join(F a, F b) { return a + b; }
  static MV_INLINE float lanes(F v) { return sum_lanes(v); }
};

// Lane g: all lanes of v[g] joined. Only for what does not depend on the order: maxima, sums of small integers.
template <typename Op>
MV_INLINE F join_each(const F (&v)[W]) {
#if defined(__AVX512F__)
  // A transposition that joins what it brings together: pairs of lanes, pairs of pairs, then quarters of vectors.
  F pairs[8], fours[4], halves[2];
  for (int i = 0; i < 8; i++)
    pairs[i] = Op::join(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  for (int i = 0; i < 4; i++) {
    __m512d a = (__m512d)pairs[2 * i], b = (__m512d)pairs[2 * i + 1];
    fours[i] = Op::join((F)_mm512_unpacklo_pd(a, b), (F)_mm512_unpackhi_pd(a, b));
  }
  for (int i = 0; i < 2; i++)
    halves[i] = Op::join(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
  return Op::join(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88), _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
#else
  float joined[W];
  for (int g = 0; g < W; g++) joined[g] = Op::lanes(v[g]);
  return load(joined);
#endif
}

MV_INLINE void store_codes(int8_t *codes, F shifted) {
#if defined(__AVX512F__)
  Codes narrow = (Codes)_mm512_cvtepi32_epi8((__m512i)shifted);
#else
  Codes narrow = __builtin_convertvector(as_int(shifted), Codes);  // the low bytes
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

MV_INLINE void store_first(float *to, F values, int count) { count == W ? store(to, values) : store_n(to, values, count); }

// Groups 0 … count - 1 of what begins at x, codes, scales, terms. A group whose largest number is below 1e-30 counts as zeros.
void quantize_groups(const float *x, int count, int32_t format, int8_t *codes, float *scales, int32_t *terms) {
  F each[W] = {};
  for (int g = 0; g < count; g++) {
    MV_UNROLL for (int i = 0; i < GROUP_COLUMNS; i += W)
      each[g] = max(each[g], as_float(as_int(load(x + g * GROUP_COLUMNS + i)) & 0x7fffffff));
  }
  const F peak = join_each<Largest>(each);
  const auto empty = peak < 1e-30f;
  float inverse[W];
  store(inverse, empty ? zero() : 127.0f / peak);
  for (int g = 0; g < count; g++) {
    const int at = g * GROUP_COLUMNS;
    F sum = zero();
    MV_UNROLL for (int i = 0; i < GROUP_COLUMNS; i += W) {
      F shifted = load(x + at + i) * inverse[g] + MAGIC;
      store_codes(codes + at + i, shifted);
      sum += shifted - MAGIC;
    }
    each[g] = sum;
  }
  const F exact = join_each<Sum>(each);  // at most 32 * 127, or NaN if x has a NaN or an infinity; then the scale is NaN too
  const auto finite = exact == exact;
  const F scale = finite ? (empty ? zero() : peak / 127.0f) : exact, total = finite ? exact : zero();
  store_first(scales, scale, count);
  if (format == MV_Q2_K || format == MV_Q3_K || format == MV_Q6_K) {
    for (int g = 0; g < count; g++) terms[g] = finite[g] ? half_sums(codes + g * GROUP_COLUMNS) : 0;
    return;
  }
  const bool scaled = has_minimum(format) || format == MV_Q4_K || format == MV_Q5_K;
  const I whole = __builtin_convertvector(total, I) * (format == MV_Q4_0 ? -8 : -128);
  float term[W];
  store(term, scaled ? scale * total : as_float(whole));
  memcpy(terms, term, size_t(count) * sizeof(float));
}

void quantize(const mv_op &op, const StepView &, int64_t begin, int64_t end, char *) {
  if (op.weight->format == MV_BF16) return round_to_bf16(op, begin, end);
  const int columns = op.weight->cols, groups = columns / GROUP_COLUMNS;
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    float *out = op.out + t * op.out_stride;
    int8_t *codes = (int8_t *)out;
    float *scales = out + columns / 4;
    int32_t *terms = (int32_t *)(scales + groups);
    for (int g = 0; g < groups; g += W)
      quantize_groups(x + g * GROUP_COLUMNS, min32(W, groups - g), op.weight->format, codes + g * GROUP_COLUMNS,
                      scales + g, terms + g);
  }
}

}  // namespace

const Kernel QUANTIZE = {units_rows, quantize, 1};

}  // namespace MV_ISA
}  // namespace mv
