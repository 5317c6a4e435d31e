// A vector of W floats, W = 4, 8 or 16, and the few operations that kernels need beyond + - * /.
//
// Built on GCC's vector extensions (clang has them too): F and I support operators, comparisons and ?: lane by lane.
// Everything lies in a namespace named after the instruction set, so that no inline function compiled for one set can
// be picked by the linker for another. For the same reason kernels use no standard library templates.
#ifndef MINI_VLLM_KERNELS_SIMD_H
#define MINI_VLLM_KERNELS_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define MV_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define MV_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MV_UNROLL _Pragma("GCC unroll 64")
#endif

namespace mv {
namespace MV_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef uint16_t H __attribute__((vector_size(2 * W)));

static MV_INLINE F load(const float *p) {
  F v;
  memcpy(&v, p, sizeof v);
  return v;
}
static MV_INLINE void store(float *p, F v) { memcpy(p, &v, sizeof v); }
static MV_INLINE F zero() { return F{}; }
static MV_INLINE F set1(float x) { return x - F{}; }  // x - 0 is x, signed zeros included; compiles to a broadcast

// The first n < W lanes; the others are zero, or left alone in memory.
static MV_INLINE F load_n(const float *p, int n) {
  float lanes[W] = {};
  for (int i = 0; i < n; i++) lanes[i] = p[i];
  return load(lanes);
}
static MV_INLINE void store_n(float *p, F v, int n) {
  float lanes[W];
  store(lanes, v);
  for (int i = 0; i < n; i++) p[i] = lanes[i];
}

// a * b + c: one rounding where the instruction set has a fused form, two in the portable build. Never contracted.
static MV_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// a > b ? a : b and a < b ? a : b, so a NaN in b survives.
static MV_INLINE F max(F a, F b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
static MV_INLINE F min(F a, F b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
static MV_INLINE F as_float(I v) { return (F)v; }
static MV_INLINE I as_int(F v) { return (I)v; }

// Whether a comparison holds in all lanes.
static MV_INLINE bool all_lanes(I mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) == 0xffff;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) == 0xff;
#else
  I all = mask;
  for (int i = 1; i < W; i++) all[0] &= mask[i];
  return all[0] != 0;
#endif
}

// Lanes base, base + 1, …
static MV_INLINE I lane_index(int base) {
  I v;
  for (int i = 0; i < W; i++) v[i] = base + i;
  return v;
}

// Sum and maximum of all lanes, by one fixed tree of halves.
template <int SHIFT>
static MV_INLINE F rotate_lanes(F v) {
#if defined(__AVX512F__)
  return (F)_mm512_alignr_epi32((__m512i)v, (__m512i)v, SHIFT);
#else
  float a[2 * W];
  store(a, v);
  store(a + W, v);
  return load(a + SHIFT);
#endif
}
static MV_INLINE float sum_lanes(F v) {
  if constexpr (W > 8) v += rotate_lanes<8 % W>(v);
  if constexpr (W > 4) v += rotate_lanes<4 % W>(v);
  v += rotate_lanes<2>(v);
  v += rotate_lanes<1>(v);
  return v[0];
}
static MV_INLINE float max_lanes(F v) {
  if constexpr (W > 8) v = max(v, rotate_lanes<8 % W>(v));
  if constexpr (W > 4) v = max(v, rotate_lanes<4 % W>(v));
  v = max(v, rotate_lanes<2>(v));
  v = max(v, rotate_lanes<1>(v));
  return v[0];
}

}  // namespace MV_ISA
}  // namespace mv
#endif
