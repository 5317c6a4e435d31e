// exp, tanh and what is built of them, on vectors. One function for every lane of every tile, so an element has the
// same bits wherever it lies.
#ifndef MINI_VLLM_KERNELS_NUMERIC_H
#define MINI_VLLM_KERNELS_NUMERIC_H

#include "kernels/simd.h"

namespace mv {
namespace MV_ISA {

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; e^r by a polynomial (Cephes' expf coefficients), error
// about 1 ulp. ln 2 is subtracted in two pieces, the first exact. Below -87.3 the result is 0, above 88.3 it stays at
// e^88.3; exp(0) is exactly 1.
static MV_INLINE F exp(F x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  F clamped = min(set1(88.3f), max(set1(-87.3f), x));
  F shifted = fma(clamped, set1(1.44269504088896341f), set1(magic));
  F n = shifted - magic;
  F r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  I power = (as_int(shifted) - 0x4b400000 + 127) << 23;  // 0x4b400000: the bits of magic
  F result = p * as_float(power);
  return x < -87.3f ? zero() : result;
}

// 2^x = 2^n 2^r with n = round(x), |r| <= 1/2, for x < 127; 2^r by a polynomial (least relative error 9e-8, and exactly 1 at
// 0, so that powers of whole numbers are exact). Below 2^-126 the result is 0.
static MV_INLINE F exp2(F x) {
#if defined(__AVX512F__)
  F clamped = max(set1(-160.0f), x);
  F n = _mm512_roundscale_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  F clamped = max(set1(-126.0f), x);
  F shifted = clamped + magic;
  F n = shifted - magic;
#endif
  F r = clamped - n;
  F p = set1(1.3264727e-3f);
  p = fma(p, r, set1(9.6715126e-3f));
  p = fma(p, r, set1(5.5507337e-2f));
  p = fma(p, r, set1(2.4022242e-1f));
  p = fma(p, r, set1(6.9314698e-1f));
  p = fma(p, r, set1(1.0f));
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  I power = (as_int(shifted) - 0x4b400000 + 127) << 23;  // 0x4b400000: the bits of magic
  return x < -126.0f ? zero() : p * as_float(power);
#endif
}

// The smallest whole number that is not below x.
static MV_INLINE F ceil(F x) {
#if defined(__AVX512F__)
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#else
  const float magic = 12582912.0f;
  F nearest = (x + magic) - magic;
  F up = nearest < x ? nearest + 1.0f : nearest;
  return (x < 4194304.0f) & (x > -4194304.0f) ? up : x;  // what is larger has no fraction that matters
#endif
}

// tanh x = x + x^3 P(x^2) near 0 (Cephes), else 1 - 2 / (e^2x + 1).
static MV_INLINE F tanh(F x) {
  F square = x * x;
  F p = set1(-5.70498872745e-3f);
  p = fma(p, square, set1(2.06390887954e-2f));
  p = fma(p, square, set1(-5.37397155531e-2f));
  p = fma(p, square, set1(1.33314422036e-1f));
  p = fma(p, square, set1(-3.33332819422e-1f));
  F near_zero = fma(p * square, x, x);
  F far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return square < 0.390625f ? near_zero : far;
}

static MV_INLINE F silu(F x) { return x / (1.0f + exp(-x)); }

// gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
static MV_INLINE F gelu(F x) {
  F inner = 0.7978845608028654f * fma(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanh(inner));
}

// c * tanh(x / c)
static MV_INLINE F softcap(F x, float cap) { return cap * tanh(x / cap); }

}  // namespace MV_ISA
}  // namespace mv
#endif
