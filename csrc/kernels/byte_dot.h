// Dot products of bytes: a lane of 32 bits holds four neighbours in k, and gains the sum of four products.
//
//   dot_four(sum, w, x)    codes of 4 bits, unsigned
//   dot_eight(sum, w, x)   codes of 8 bits, as eight_bit_codes() makes them: unsigned for AVX-512's byte dot product,
//                          signed elsewhere (EIGHT_BIT_CODES_ARE_SIGNED)
//
// x holds the four signed bytes of one row, the same for every lane. All sums are exact: AVX2's multiply-add of bytes
// saturates at 16 bits, so 8-bit codes go in as absolute values with their signs moved to x (at most 2 * 128 * 127).
#ifndef MINI_VLLM_KERNELS_BYTE_DOT_H
#define MINI_VLLM_KERNELS_BYTE_DOT_H

#include "kernels/simd.h"

namespace mv {
namespace MV_ISA {

typedef uint8_t Bytes __attribute__((vector_size(4 * W)));

#if defined(__AVX512VNNI__)
constexpr bool EIGHT_BIT_CODES_ARE_SIGNED = false;
#else
constexpr bool EIGHT_BIT_CODES_ARE_SIGNED = true;
#endif

static MV_INLINE Bytes load_bytes(const char *p) {
  Bytes v;
  memcpy(&v, p, sizeof v);
  return v;
}
static MV_INLINE Bytes eight_bit_codes(Bytes stored) { return EIGHT_BIT_CODES_ARE_SIGNED ? stored ^ 128 : stored; }

// byte >> 4, by way of 32-bit lanes: processors have no shift of bytes.
static MV_INLINE Bytes high_nibbles(Bytes v) { return (Bytes)((U)v >> 4) & 15; }

#if defined(__AVX512VNNI__)

static MV_INLINE I dot_four(I sum, Bytes w, int32_t x) {
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(x));
}
static MV_INLINE I dot_eight(I sum, Bytes w, int32_t x) { return dot_four(sum, w, x); }

#elif defined(__AVX2__)

static MV_INLINE I dot_four(I sum, Bytes w, int32_t x) {
  __m256i pairs = _mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(x));
  return sum + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
static MV_INLINE I dot_eight(I sum, Bytes w, int32_t x) {
  __m256i codes = (__m256i)w, moved = _mm256_sign_epi8(_mm256_set1_epi32(x), codes);
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), moved);
  return sum + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#elif defined(__ARM_FEATURE_DOTPROD)

static MV_INLINE I dot_four(I sum, Bytes w, int32_t x) {
  return (I)vdotq_s32((int32x4_t)sum, (int8x16_t)w, vreinterpretq_s8_s32(vdupq_n_s32(x)));
}
static MV_INLINE I dot_eight(I sum, Bytes w, int32_t x) { return dot_four(sum, w, x); }

#else

static MV_INLINE I dot_bytes(I sum, I w, int32_t x) {
  // Four planes of one byte each; the shifts pick byte j of every lane with its sign.
  int32_t x0 = int8_t(x), x1 = int8_t(x >> 8), x2 = int8_t(x >> 16), x3 = x >> 24;
  return sum + (((w << 24) >> 24) * x0 + ((w << 16) >> 24) * x1) + (((w << 8) >> 24) * x2 + (w >> 24) * x3);
}
static MV_INLINE I dot_four(I sum, Bytes w, int32_t x) { return dot_bytes(sum, (I)w, x); }
static MV_INLINE I dot_eight(I sum, Bytes w, int32_t x) { return dot_bytes(sum, (I)w, x); }

#endif

}  // namespace MV_ISA
}  // namespace mv
#endif
