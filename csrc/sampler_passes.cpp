#include "sampler_passes.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#define MV_INLINE inline __attribute__((always_inline))

namespace mv {
namespace {

constexpr int LANES = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef double HalfDoubles __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

// Vectors go in and out by reference: returned by value they would need one ABI for all instruction sets.
MV_INLINE void load(const float *x, Floats &out) { std::memcpy(&out, x, sizeof out); }

// Calls visit(first, x of the 64 elements from `first` on) for every block; the last one is filled up with -inf. What is
// visited most holds no call and no branch, so that constants stay in registers.
template <class Visit>
MV_INLINE void for_blocks(const float *x, int n, const Visit &visit) {
  const int whole = n / BLOCK * BLOCK;
  for (int first = 0; first < whole; first += BLOCK) visit(first, x + first);
  if (whole == n) return;
  float padded[BLOCK];
  for (int i = 0; i < BLOCK; i++) padded[i] = whole + i < n ? x[whole + i] : NEVER;
  visit(whole, static_cast<const float *>(padded));
}

// The 64 elements of a block as four vectors. Steps go over all four before the next step begins: each vector alone is a
// long chain of dependent operations, and the processor looks ahead over few of them.
constexpr int VECTORS = BLOCK / LANES;
#define MV_EACH _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++)

MV_INLINE void load_block(const float *x, Floats (&out)[VECTORS]) {
  MV_EACH load(x + j * LANES, out[j]);
}

// The scalar function of sampler_passes.h, lane by lane.
MV_INLINE void exp_nonpositive(const Floats (&x)[VECTORS], Floats (&out)[VECTORS]) {
  const float round = 12582912.0f;
  Floats n[VECTORS], r[VECTORS], poly[VECTORS];
  MV_EACH r[j] = x[j] > EXP_FLOOR ? x[j] : Floats{} + EXP_FLOOR;
  MV_EACH n[j] = r[j] * 1.44269504088896341f + round;
  MV_EACH n[j] -= round;
  MV_EACH r[j] -= n[j] * 0.693359375f;
  MV_EACH r[j] -= n[j] * -2.12194440e-4f;
  MV_EACH poly[j] = Floats{} + 1.9875691500e-4f;
  for (float term : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    MV_EACH poly[j] *= r[j];
    MV_EACH poly[j] += term;
  }
  MV_EACH poly[j] *= r[j] * r[j];
  MV_EACH poly[j] += r[j];
  MV_EACH poly[j] += 1.0f;
  MV_EACH {
    Ints power = (__builtin_convertvector(n[j], Ints) + 127) << 23;
    out[j] = x[j] >= EXP_FLOOR ? poly[j] * (Floats)power : Floats{};
  }
}

// The same for narrower vectors, as far as processors have them.
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats4 __attribute__((vector_size(16)));
typedef int64_t Longs4 __attribute__((vector_size(32)));
typedef int64_t Longs2 __attribute__((vector_size(16)));

template <class Whole, class Half>
MV_INLINE void split(const Whole &v, Half &low, Half &high) {
  static_assert(sizeof(Whole) == 2 * sizeof(Half), "halves");
  std::memcpy(&low, &v, sizeof low);
  std::memcpy(&high, reinterpret_cast<const char *>(&v) + sizeof low, sizeof high);
}

MV_INLINE float max_lanes(const Floats &v) {
  Floats8 a, b;
  split(v, a, b);
  a = a > b ? a : b;
  Floats4 c, d;
  split(a, c, d);
  c = c > d ? c : d;
  float e = c[0] > c[1] ? c[0] : c[1], f = c[2] > c[3] ? c[2] : c[3];
  return e > f ? e : f;
}

MV_INLINE bool any(const Ints &flags) {
  Longs4 a, b;
  split((Longs)flags, a, b);
  a |= b;
  Longs2 c, d;
  split(a, c, d);
  c |= d;
  return (c[0] | c[1]) != 0;
}

MV_INLINE float block_maxima(const float *x, int n, float *maxima, bool *dirty) {
  const int32_t infinity = 0x7f800000;  // bits above it, but for the sign, are NaN
  Floats most = Floats{} + NEVER;
  Ints bad = {};  // negative where there was a NaN
  for_blocks(x, n, [&](int first, const float *block) __attribute__((always_inline)) {
    Floats v = Floats{} + NEVER;
    for (int i = 0; i < BLOCK; i += LANES) {
      Floats w;
      load(block + i, w);
      bad |= infinity - ((Ints)w & 0x7fffffff);
      v = w > v ? w : v;
    }
    most = v > most ? v : most;
    maxima[first / BLOCK] = max_lanes(v);
  });
  const float largest = max_lanes(most);
  *dirty = largest > FLOAT_MAX || any(bad & INT32_MIN);
  return largest;
}

// 16 float32 more for 16 lanes in float64.
struct LaneSums {
  HalfDoubles low = {}, high = {};

  MV_INLINE void add(const Floats &v) {
    Floats8 a, b;
    split(v, a, b);
    low += __builtin_convertvector(a, HalfDoubles);
    high += __builtin_convertvector(b, HalfDoubles);
  }

  MV_INLINE double total() const {
    double sum = 0;
    for (int i = 0; i < LANES / 2; i++) sum += low[i];
    for (int i = 0; i < LANES / 2; i++) sum += high[i];
    return sum;
  }
};

MV_INLINE double exp_weights(const RowView &row, float *weights) {
  const float largest = row.largest, scale = row.scale;
  LaneSums sums;
  for_blocks(row.x, row.n, [&](int first, const float *block) __attribute__((always_inline)) {
    Floats s[VECTORS], e[VECTORS];
    load_block(block, s);
    MV_EACH s[j] = (s[j] - largest) * scale;
    exp_nonpositive(s, e);
    MV_EACH std::memcpy(weights + first + j * LANES, &e[j], sizeof e[j]);
    sums.add((e[0] + e[1]) + (e[2] + e[3]));
  });
  return sums.total();
}

MV_INLINE double sum_before(const RowView &row, const float *weights, float s, int32_t id) {
  const float largest = row.largest, scale = row.scale;
  const int own = id / BLOCK;
  LaneSums sums;
  for_blocks(row.x, row.n, [&](int first, const float *block) __attribute__((always_inline)) {
    const int number = first / BLOCK;
    if (number == own || !((row.maxima[number] - largest) * scale >= s)) return;
    Floats x[VECTORS], weight[VECTORS];
    load_block(block, x);
    load_block(weights + first, weight);
    MV_EACH x[j] = (x[j] - largest) * scale;
    if (number < own)
      MV_EACH weight[j] = x[j] >= s ? weight[j] : Floats{};
    else
      MV_EACH weight[j] = x[j] > s ? weight[j] : Floats{};
    MV_EACH sums.add(weight[j]);
  });
  double sum = sums.total();
  for (int i = own * BLOCK; i < row.block_end(own); i++)
    if (row.s(i) > s || (row.s(i) == s && i < id)) sum += double(weights[i]);
  return sum;
}

MV_INLINE void mix(Bits (&x)[VECTORS]) {
  MV_EACH x[j] ^= x[j] >> 16;
  MV_EACH x[j] *= 0x7feb352du;
  MV_EACH x[j] ^= x[j] >> 15;
  MV_EACH x[j] *= 0x846ca68bu;
  MV_EACH x[j] ^= x[j] >> 16;
}

MV_INLINE int next_contender(const RowView &row, const float *weights, NoiseKey key, float bound, float lowest,
                             int block) {
  const Bits ramp = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const float limit = bound * 16777216.0f;  // compared with the upper 24 bits
  for (const int end = row.num_blocks(); block < end; block++) {
    if (!(row.s_of(row.maxima[block]) >= lowest)) continue;
    Floats weight[VECTORS];
    Bits bits[VECTORS];
    load_block(weights + block * BLOCK, weight);
    MV_EACH bits[j] = (ramp + uint32_t(block * BLOCK + j * LANES)) ^ key.low;
    mix(bits);
    MV_EACH bits[j] += key.high;
    mix(bits);
    Floats most = Floats{} - 1.0f;
    MV_EACH {
      const Floats spare = weight[j] * limit - __builtin_convertvector((Ints)(bits[j] >> 8), Floats);
      most = spare > most ? spare : most;
    }
    if (max_lanes(most) >= 0) return block;
  }
  return -1;
}

#define MV_DEFINE_PASSES(set, target)                                                                              \
  target float block_maxima_##set(const float *x, int n, float *maxima, bool *dirty) {                             \
    return block_maxima(x, n, maxima, dirty);                                                                      \
  }                                                                                                                \
  target double exp_weights_##set(const RowView &row, float *weights) { return exp_weights(row, weights); }          \
  target int next_contender_##set(const RowView &row, const float *weights, NoiseKey key, float bound, float lowest, \
                                  int block) {                                                                     \
    return next_contender(row, weights, key, bound, lowest, block);                                                \
  }                                                                                                                \
  target double sum_before_##set(const RowView &row, const float *weights, float s, int32_t id) {                  \
    return sum_before(row, weights, s, id);                                                                        \
  }                                                                                                                \
  const Passes passes_##set = {block_maxima_##set, exp_weights_##set, next_contender_##set, sum_before_##set};

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
    const bool any = name == nullptr || std::strcmp(name, "none") == 0;  // "none" measures all but the model's kernels
    auto allows = [&](const char *set) { return any || std::strcmp(name, set) == 0; };
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
