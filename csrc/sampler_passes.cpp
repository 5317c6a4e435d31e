#include "sampler_passes.h"

#include <cstdlib>
#include <cstring>

#define MV_INLINE inline __attribute__((always_inline))

namespace mv {
namespace {

constexpr int LANES = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef float HalfFloats __attribute__((vector_size(32)));
typedef double HalfDoubles __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

// Vectors go in and out by reference: returned by value they would need one ABI for all instruction sets.
// The 16 elements from i on; -inf beyond the end.
MV_INLINE void load(const float *x, int i, int n, Floats &out) {
  if (n - i >= LANES) {
    std::memcpy(&out, x + i, sizeof out);
    return;
  }
  out = Floats{} + NEVER;
  for (int lane = 0; i + lane < n; lane++) out[lane] = x[i + lane];
}

// The scalar function of sampler_passes.h, lane by lane.
MV_INLINE void exp_nonpositive(const Floats &x, Floats &out) {
  const float round = 12582912.0f;
  Floats inside = x > EXP_FLOOR ? x : Floats{} + EXP_FLOOR;
  Floats n = (inside * 1.44269504088896341f + round) - round;
  Floats r = (inside - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats poly = Floats{} + 1.9875691500e-4f;
  poly = poly * r + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  Floats value = (poly * (r * r) + r) + 1.0f;
  Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  out = x >= EXP_FLOOR ? value * (Floats)power : Floats{};
}

MV_INLINE float max_lanes(const Floats &v) {
  float a[LANES];
  std::memcpy(a, &v, sizeof a);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
  return a[0];
}

MV_INLINE bool any(const Ints &flags) {
  Longs words = (Longs)flags;
  return (words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]) != 0;
}

MV_INLINE float block_maxima(const float *x, int n, float *maxima, bool *dirty) {
  float largest = NEVER;
  Ints bad = {};
  for (int first = 0; first < n; first += BLOCK) {
    Floats v = Floats{} + NEVER;
    for (int i = first; i < first + BLOCK; i += LANES) {
      Floats w;
      load(x, i, n, w);
      bad |= w != w;
      v = w > v ? w : v;
    }
    float m = max_lanes(v);
    maxima[first / BLOCK] = m;
    largest = m > largest ? m : largest;
  }
  *dirty = largest > FLOAT_MAX || any(bad);
  return largest;
}

// e^s of the 16 elements from i on.
MV_INLINE void weights(const float *x, int i, int n, float shift, float scale, Floats &out) {
  Floats v;
  load(x, i, n, v);
  exp_nonpositive((v - shift) * scale, out);
}

MV_INLINE double exp_sum(const float *x, int n, float shift, float scale) {
  HalfDoubles low = {}, high = {};
  for (int i = 0; i < n; i += BLOCK) {
    Floats a, b, c, d;
    weights(x, i, n, shift, scale, a);
    weights(x, i + LANES, n, shift, scale, b);
    weights(x, i + 2 * LANES, n, shift, scale, c);
    weights(x, i + 3 * LANES, n, shift, scale, d);
    Floats sum = (a + b) + (c + d);
    HalfFloats halves[2];
    std::memcpy(halves, &sum, sizeof sum);
    low += __builtin_convertvector(halves[0], HalfDoubles);
    high += __builtin_convertvector(halves[1], HalfDoubles);
  }
  double total = 0;
  for (int i = 0; i < LANES / 2; i++) total += low[i];
  for (int i = 0; i < LANES / 2; i++) total += high[i];
  return total;
}

MV_INLINE void mix(Bits &x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  x ^= x >> 16;
}

MV_INLINE int next_contender(const float *x, int n, float shift, float scale, NoiseKey key, float bound, int block) {
  const Bits ramp = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const float limit = bound * 16777216.0f;  // compared with the upper 24 bits
  for (; block * BLOCK < n; block++) {
    Ints hits = {};
    for (int i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
      Floats e;
      weights(x, i, n, shift, scale, e);
      Bits bits = (ramp + uint32_t(i)) ^ key.low;
      mix(bits);
      bits += key.high;
      mix(bits);
      hits |= __builtin_convertvector((Ints)(bits >> 8), Floats) <= e * limit;
    }
    if (any(hits)) return block;
  }
  return -1;
}

#define MV_DEFINE_PASSES(set, target)                                                                              \
  target float block_maxima_##set(const float *x, int n, float *maxima, bool *dirty) {                             \
    return block_maxima(x, n, maxima, dirty);                                                                      \
  }                                                                                                                \
  target double exp_sum_##set(const float *x, int n, float shift, float scale) {                                   \
    return exp_sum(x, n, shift, scale);                                                                            \
  }                                                                                                                \
  target int next_contender_##set(const float *x, int n, float shift, float scale, NoiseKey key, float bound,      \
                                  int block) {                                                                     \
    return next_contender(x, n, shift, scale, key, bound, block);                                                  \
  }                                                                                                                \
  const Passes passes_##set = {block_maxima_##set, exp_sum_##set, next_contender_##set};

MV_DEFINE_PASSES(portable, )
#if defined(__x86_64__)
MV_DEFINE_PASSES(avx2, __attribute__((target("avx2"))))
MV_DEFINE_PASSES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

}  // namespace

// $MINI_VLLM_ISA forces a set that the processor has, so that tests can compare them.
const Passes &sampler_passes() {
#if defined(__x86_64__)
  static const Passes &chosen = []() -> const Passes & {
    const char *name = std::getenv("MINI_VLLM_ISA");
    auto allows = [&](const char *set) { return name == nullptr || std::strcmp(name, set) == 0; };
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && allows("avx512")) return passes_avx512;
    if (__builtin_cpu_supports("avx2") && allows("avx2")) return passes_avx2;
    return passes_portable;
  }();
  return chosen;
#else
  return passes_portable;
#endif
}

}  // namespace mv
