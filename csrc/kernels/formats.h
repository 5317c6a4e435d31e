// Number formats of weights and of the KV store: widening to float32 in registers, rounding to nearest even.
//
// Widening uses integer operations alone, so that denormal inputs survive the denormals-are-zero mode.
#ifndef MINI_VLLM_KERNELS_FORMATS_H
#define MINI_VLLM_KERNELS_FORMATS_H

#include "kernels/simd.h"

namespace mv {
namespace MV_ISA {

static MV_INLINE H load_half(const uint16_t *p) {
  H v;
  memcpy(&v, p, sizeof v);
  return v;
}

// 16 to 32 bits, lane by lane: GCC 12 splits the generic form into halves.
static MV_INLINE U widen_half(H v) {
#if defined(__AVX512F__)
  return (U)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(__AVX2__)
  return (U)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, U);
#endif
}

struct F32 {
  typedef float Element;
  static constexpr bool HAS_VECTOR_NARROW = true;
  static MV_INLINE F narrow(F x) { return x; }
  static MV_INLINE F widen(const float *p) { return load(p); }
  static MV_INLINE float narrow(float x) { return x; }
  static MV_INLINE float widen1(float x) { return x; }
};

struct BF16 {
  typedef uint16_t Element;
  static constexpr bool HAS_VECTOR_NARROW = true;
  static MV_INLINE F widen(const uint16_t *p) {
    return (F)(widen_half(load_half(p)) << 16);
  }
  static MV_INLINE uint16_t narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);  // NaN stays NaN
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  static MV_INLINE H narrow(F x) {
#if defined(__AVX512BF16__)
    return (H)_mm512_cvtneps_pbh((__m512)x);
#else
    U bits = (U)x, nan = bits >> 16 | 0x40u, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded, H);
#endif
  }
  static MV_INLINE float widen1(uint16_t h) {
    uint32_t bits = uint32_t(h) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
};

// A row of an op's output, by position: float32 numbers, or bfloat16 ones for the product that comes next.
struct FloatRow {
  float *at;
  explicit FloatRow(float *row) : at(row) {}
  MV_INLINE void put(int64_t i, F x) const { store(at + i, x); }
  MV_INLINE void put_n(int64_t i, F x, int n) const { store_n(at + i, x, n); }
};
struct RoundedRow {
  uint16_t *at;
  explicit RoundedRow(float *row) : at((uint16_t *)row) {}
  MV_INLINE void put(int64_t i, F x) const {
    H rounded = BF16::narrow(x);
    memcpy(at + i, &rounded, sizeof rounded);
  }
  MV_INLINE void put_n(int64_t i, F x, int n) const {
    H rounded = BF16::narrow(x);
    memcpy(at + i, &rounded, size_t(n) * sizeof(uint16_t));
  }
};

struct F16 {
  typedef uint16_t Element;
  static constexpr bool HAS_VECTOR_NARROW = false;
  static MV_INLINE F widen(const uint16_t *p) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    return (F)vcvt_f32_f16(vld1_f16((const __fp16 *)p));
#else
    U h = widen_half(load_half(p));
    U sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    U normal = (magnitude << 13) + (112u << 23);                             // exponent 15 -> 127
    U special = (magnitude << 13) + (224u << 23);                            // infinity and NaN
    U denormal = (U)(__builtin_convertvector((I)magnitude, F) * 0x1p-24f);  // mantissa * 2^-24, exact
    U wide = magnitude < 0x400u ? denormal : (magnitude >= 0x7c00u ? special : normal);
    return (F)(wide | sign);
#endif
  }
  static MV_INLINE uint16_t narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds beyond 65504
    if (magnitude < 0x38800000u) {                                  // below 2^-14: a multiple of 2^-24
      uint32_t shift = 126u - (magnitude >> 23);
      if (shift > 24u) return uint16_t(sign);
      uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      uint32_t half = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
      return uint16_t(sign | (half + (rest > tie || (rest == tie && (half & 1u)))));
    }
    return uint16_t(sign | ((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
  }
  static MV_INLINE float widen1(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000u) << 16, magnitude = h & 0x7fffu, bits;
    if (magnitude < 0x400u) {
      float x = float(int32_t(magnitude)) * 0x1p-24f;
      memcpy(&bits, &x, 4);
    } else {
      bits = (magnitude << 13) + (magnitude >= 0x7c00u ? 224u << 23 : 112u << 23);
    }
    bits |= sign;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
};

}  // namespace MV_ISA
}  // namespace mv
#endif
