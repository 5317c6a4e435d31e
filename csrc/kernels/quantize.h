// Rounding activations to int8, as products with quantised weights take them.
//
// A row is cut into groups of 32 columns:   scale = max |x| / 127,   q = round(x / scale)
// and written as   [ q: K bytes | scale: K/32 floats | term: K/32 words ]  with Q = sum of q over the group and
//
//     term = -128 Q (Q8_0, Q5_0)   or   -8 Q (Q4_0)   as an integer,   scale * Q (Q4_1, Q5_1, Q4_K, Q5_K)   as a float,
//            the Q of both halves as 16-bit integers, the first one low (Q2_K, Q3_K, Q6_K).
//
// MV_QUANTIZE rounds rows by themselves; ops whose out_format is a quantised one round what they have just computed, to the
// same bits. A vector holds one number of each of W groups wherever there is one number a group: maxima, scales, sums, terms.
#ifndef MINI_VLLM_KERNELS_QUANTIZE_H
#define MINI_VLLM_KERNELS_QUANTIZE_H

#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"

namespace mv {
namespace MV_ISA {
namespace {

typedef int8_t CodeVector __attribute__((vector_size(W)));

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
  CodeVector narrow = (CodeVector)_mm512_cvtepi32_epi8((__m512i)shifted);
#else
  CodeVector narrow = __builtin_convertvector(as_int(shifted), CodeVector);  // the low bytes
#endif
  memcpy(codes, &narrow, sizeof narrow);
}

// Sums of the codes of both halves of a group, in one word.
inline int32_t half_sums(const int8_t *codes) {
  int32_t first = 0, second = 0;
  for (int i = 0; i < 16; i++) {
    first += codes[i];
    second += codes[16 + i];
  }
  return int32_t(uint32_t(second) << 16 | (uint32_t(first) & 0xffffu));
}

MV_INLINE void store_first(float *to, F values, int count) { count == W ? store(to, values) : store_n(to, values, count); }

// Where a row of K columns keeps its groups: for those who write one, and for those who read it.
struct Int8Row {
  int8_t *codes;
  float *scales, *terms;
  Int8Row(float *row, int columns) : codes((int8_t *)row), scales(row + columns / 4), terms(scales + columns / GROUP_COLUMNS) {}
};
struct QuantizedRow {
  const int8_t *codes;
  const float *scales;
  const int32_t *terms;
  QuantizedRow(const float *row, int columns)
      : codes((const int8_t *)row), scales(row + columns / 4), terms((const int32_t *)(scales + columns / GROUP_COLUMNS)) {}
};

// Neighbouring groups of one row, the first one at `column`.
struct Neighbours {
  Int8Row row;
  int column;
  MV_INLINE int8_t *codes(int g) const { return row.codes + column + g * GROUP_COLUMNS; }
  MV_INLINE void put(F scales, F terms, int count) const {
    store_first(row.scales + column / GROUP_COLUMNS, scales, count);
    store_first(row.terms + column / GROUP_COLUMNS, terms, count);
  }
};

// Groups of any rows: group g is at `column[g]` of `row[g]`.
struct Scattered {
  float *row[W];
  int column[W];
  int columns;  // of every row
  MV_INLINE int8_t *codes(int g) const { return (int8_t *)row[g] + column[g]; }
  MV_INLINE void put(F scales, F terms, int count) const {
    float scale[W], term[W];
    store(scale, scales);
    store(term, terms);
    for (int g = 0; g < count; g++) {
      const Int8Row to(row[g], columns);
      to.scales[column[g] / GROUP_COLUMNS] = scale[g];
      memcpy(to.terms + column[g] / GROUP_COLUMNS, term + g, sizeof(float));
    }
  }
};

// Groups 0 … count - 1 of what begins at x, count <= W. A group whose largest number is below 1e-30 counts as zeros.
template <typename Place>
MV_INLINE void quantize_groups(const float *x, int count, int32_t format, const Place &to) {
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
    int8_t *codes = to.codes(g);
    F sum = zero();
    MV_UNROLL for (int i = 0; i < GROUP_COLUMNS; i += W) {
      F shifted = load(x + g * GROUP_COLUMNS + i) * inverse[g] + MAGIC;
      store_codes(codes + i, shifted);
      sum += shifted - MAGIC;
    }
    each[g] = sum;
  }
  const F exact = join_each<Sum>(each);  // at most 32 * 127, or NaN if x has a NaN or an infinity; then the scale is NaN too
  const auto finite = exact == exact;
  const F scale = finite ? (empty ? zero() : peak / 127.0f) : exact, total = finite ? exact : zero();
  if (format == MV_Q2_K || format == MV_Q3_K || format == MV_Q6_K) {
    int32_t halves[W] = {};
    for (int g = 0; g < count; g++) halves[g] = finite[g] ? half_sums(to.codes(g)) : 0;
    return to.put(scale, load((const float *)halves), count);
  }
  const bool scaled = has_minimum(format) || format == MV_Q4_K || format == MV_Q5_K;
  const I whole = __builtin_convertvector(total, I) * (format == MV_Q4_0 ? -8 : -128);
  to.put(scale, scaled ? scale * total : as_float(whole), count);
}

// A row of `columns` numbers.
MV_INLINE void quantize_row(const float *x, int columns, int32_t format, float *out) {
  for (int i = 0; i < columns; i += W * GROUP_COLUMNS)
    quantize_groups(x + i, min32(W, (columns - i) / GROUP_COLUMNS), format, Neighbours{Int8Row(out, columns), i});
}

}  // namespace
}  // namespace MV_ISA
}  // namespace mv
#endif
