// The two products of attention over an int8 store: pairs of codes times pairs of 16-bit integers, with sums that are exact.
//
// A row of q is rounded to 15 bits and a sign, with a scale of its own; so are its weights of one span times V's scales:
//
//     q.k_j = q_scale k_scale_j sum over d of q_code[d] k_code_j[d]                    |q_code| <= 32767
//     p V   = w_scale sum over j of w_code_j v_code_j,   w_code_j = p_j v_scale_j / w_scale rounded,   w_scale = max / 32767
//
// That is finer than bfloat16, and as fast. Integer sums do not depend on their order, and keys that a row does not see
// weigh exactly nothing, so there are no edges to treat.
#ifndef MINI_VLLM_KERNELS_ATTENTION_CODES_H
#define MINI_VLLM_KERNELS_ATTENTION_CODES_H

#include "kernels/attention_tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

// 512 products of 127 and 32767 fit an integer of 32 bits; longer heads have fewer levels.
inline float query_levels(int head_dim) { return head_dim <= 512 ? 32767.0f : 16383.0f; }

struct Codes {
  typedef int8_t Element;
  typedef uint32_t Operand;  // two int16
  typedef I Vector;          // of two int16
  typedef I Sum;
  static constexpr int P = 2;
  static constexpr bool HAS_SCALES = true;

  static MV_INLINE I broadcast(uint32_t x) { return int32_t(x) - I{}; }
#if defined(__AVX512VNNI__)
  static MV_INLINE I load(const int8_t *p) { return (I)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
  static MV_INLINE I multiply_add(I x, I operand, I sum) {
    return (I)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)operand);
  }
#elif defined(__AVX2__)
  static MV_INLINE I load(const int8_t *p) { return (I)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
  static MV_INLINE I multiply_add(I x, I operand, I sum) {
    return sum + (I)_mm256_madd_epi16((__m256i)x, (__m256i)operand);
  }
#else
  static MV_INLINE I load(const int8_t *p) {
    typedef int8_t Narrow __attribute__((vector_size(2 * W)));
    typedef int16_t Wide __attribute__((vector_size(4 * W)));
    Narrow codes;
    memcpy(&codes, p, sizeof codes);
    return (I)__builtin_convertvector(codes, Wide);
  }
  static MV_INLINE I first(I x) { return (I)((U)x << 16) >> 16; }
  static MV_INLINE I multiply_add(I x, I operand, I sum) {
    return sum + first(x) * first(operand) + (x >> 16) * (operand >> 16);
  }
#endif
};

// Whole numbers up to 2^22, rounded to nearest even; to int16.
static MV_INLINE void write_whole(F x, int16_t *out) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  I whole = as_int(x + magic) - 0x4b400000;
#if defined(__AVX512F__)
  __m256i narrow = _mm512_cvtepi32_epi16((__m512i)whole);
  memcpy(out, &narrow, sizeof narrow);
#else
  for (int i = 0; i < W; i++) out[i] = int16_t(whole[i]);
#endif
}

// q [n] times factor becomes codes in out; returns their scale, NaN if some q is not finite.
inline float write_query_codes(const float *q, int n, float factor, uint32_t *out) {
  const float levels = query_levels(n);
  int16_t *codes = (int16_t *)out;
  float peak = 0.0f, flaw = 0.0f;
  for (int i = 0; i < n; i++) {
    float size = __builtin_fabsf(q[i] * factor);
    peak = peak < size ? size : peak;
    flaw += size * 0.0f;
  }
  const float inverse = peak < 1e-30f || flaw != 0.0f ? 0.0f : levels / peak;
  for (int i = 0; i < n; i += W) {
    float some[W] = {};
    int16_t whole[W];
    for (int k = i; k < min32(n, i + W); k++) some[k - i] = q[k] * factor;
    write_whole(load(some) * inverse, whole);
    for (int k = i; k < min32(n + n % 2, i + W); k++) codes[k] = whole[k - i];  // zero completes a pair
  }
  if (n % 2) codes[n] = 0;
  return (peak < 1e-30f ? 0.0f : peak / levels) + flaw;
}

// Sums of q.K, in place, become scores: of groups g … end - 1 of `count` rows.
inline void scale_scores(const Span<Codes> &span, const float *query_scales, int count, int g, int end, float *scores) {
  for (; g < end; g++) {
    MV_UNROLL for (int v = 0; v < GV; v++) {
      const F key_scale = load(span.key_scales[g] + v * W);
      for (int r = 0; r < count; r++) {
        I sum;
        float *place = scores + r * SPAN + g * GROUP + v * W;
        memcpy(&sum, place, sizeof sum);
        store(place, __builtin_convertvector(sum, F) * (query_scales[r] * key_scale));
      }
    }
  }
}

// A row's weights [SPAN], overwritten, become codes of weights times V's scales; returns w_scale. Weights of keys that the row
// does not see are zero, and their scales are not used.
inline float write_weight_codes(const Span<Codes> &span, float *weights, uint32_t *out) {
  F largest = zero(), flaw = zero();
  MV_UNROLL for (int j = 0; j < SPAN; j += W) {
    F p = load(weights + j), x = p * load(span.value_scales[j / GROUP] + j % GROUP);
    x = p > 0.0f ? x : zero();
    largest = max(x, largest);
    flaw += x * 0.0f;
    store(weights + j, x);
  }
  const float peak = max_lanes(largest), inverse = peak < 1e-30f ? 0.0f : 32767.0f / peak;
  MV_UNROLL for (int j = 0; j < SPAN; j += W) write_whole(load(weights + j) * inverse, (int16_t *)out + j);
  return (peak < 1e-30f ? 0.0f : peak / 32767.0f) + sum_lanes(flaw);
}

// acc[r] += w_scale[r] sum over steps from <= j < to of w_code[r][j] V[j], for MR rows at once.
template <int MR, int NV>
MV_INLINE void code_tile(const Span<Codes> &span, const Span<Codes> *ahead, const uint32_t *codes, const float *scales, int from,
                         int to, int column, float *acc) {
  constexpr int STEPS = GROUP_STEPS<Codes>;
  I sum[MR][NV];
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NV; v++) sum[m][v] = I{};
  }
  for (int j = from; j < to; j++) {
    if (ahead) prefetch_keys(*ahead, j);
    const int8_t *row = span.values[j / STEPS] + j % STEPS * span.value_stride + column * 2;
    I value[NV];
    MV_UNROLL for (int v = 0; v < NV; v++) value[v] = Codes::load(row + v * W * 2);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      I a = Codes::broadcast(codes[m * (SPAN / 2) + j]);
      MV_UNROLL for (int v = 0; v < NV; v++) sum[m][v] = Codes::multiply_add(value[v], a, sum[m][v]);
    }
  }
  MV_UNROLL for (int m = 0; m < MR; m++) {
    if (scales[m] == 0.0f) continue;  // the row sees nothing here
    MV_UNROLL for (int v = 0; v < NV; v++) {
      float *place = acc + m * span.padded + column + v * W;
      store(place, fma(__builtin_convertvector(sum[m][v], F), set1(scales[m]), load(place)));
    }
  }
}

template <typename Lanes, int MR>
struct CodeRows {
  static void run(const Span<Codes> &span, const Span<Codes> *ahead, const uint32_t *codes, const float *scales, int from,
                  int to, float *acc) {
    int column = 0;
    for (; column + VALUE_VECTORS * W <= span.padded; column += VALUE_VECTORS * W, ahead = nullptr)
      code_tile<MR, VALUE_VECTORS>(span, ahead, codes, scales, from, to, column, acc);
    for (; column < span.padded; column += W, ahead = nullptr)
      code_tile<MR, 1>(span, ahead, codes, scales, from, to, column, acc);
  }
};

}  // namespace
}  // namespace MV_ISA
}  // namespace mv
#endif
