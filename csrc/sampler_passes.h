// The passes over a whole row of logits, 16 lanes wide, compiled once per instruction set and picked at run time.
//
// No fused multiply-add and one fixed order of summation: all sets, and NumPy, give the same bits.
#ifndef MINI_VLLM_SAMPLER_PASSES_H
#define MINI_VLLM_SAMPLER_PASSES_H

#include <cstdint>

namespace mv {

constexpr int BLOCK = 64;  // elements that share a maximum, so that later passes can skip them
constexpr float EXP_FLOOR = -87.0f;
constexpr float FLOAT_MAX = 3.402823466e38f;
constexpr float NEVER = -__builtin_inff();  // the logit of a token that cannot be chosen

// NaN counts as -inf, +inf as the largest float.
inline float clean(float x) { return x > NEVER ? (x < FLOAT_MAX ? x : FLOAT_MAX) : NEVER; }

// e^x for x <= 0 as the passes compute it: 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2, e^r by a polynomial (the
// coefficients of Cephes' expf). Exactly 0 below -87 and exactly 1 at 0; 0 where it is not defined.
inline float exp_nonpositive(float x) {
  if (!(x >= EXP_FLOOR && x <= 0)) return 0;
  const float round = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to the nearest integer
  float n = (x * 1.44269504088896341f + round) - round;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float poly = 1.9875691500e-4f;
  poly = poly * r + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  float value = (poly * (r * r) + r) + 1.0f;
  int32_t power = (int32_t(n) + 127) * (1 << 23);
  float scale;
  __builtin_memcpy(&scale, &power, sizeof scale);
  return value * scale;
}

// The hash of one position: see mini_vllm.sampling.noise.
struct NoiseKey {
  uint32_t low, high;
};
inline uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
inline uint32_t token_bits(NoiseKey key, uint32_t token_id) { return mix(mix(token_id ^ key.low) + key.high); }

// A row ready to be looked at: clean x[0 .. n), its block maxima, its largest element.
struct RowView {
  const float *x;
  int n;
  const float *maxima;
  float largest;
  float scale;

  // A token's score: 0 for the largest, less for others; never decreasing in the logit, rounding included.
  float s_of(float logit) const { return (logit - largest) * scale; }
  float s(int i) const { return s_of(x[i]); }
  int num_blocks() const { return (n + BLOCK - 1) / BLOCK; }
  int block_end(int block) const { return (block + 1) * BLOCK < n ? (block + 1) * BLOCK : n; }
};

struct Passes {
  // maxima[b] = the largest element of block b of x[0 .. n); returns the largest of all (-inf when n is 0). NaN is passed
  // over, and `dirty` tells whether any element is not clean.
  float (*block_maxima)(const float *x, int n, float *maxima, bool *dirty);
  // weights[i] = e^s, 0 from n to the end of its block; returns their sum. The four vectors of 16 of a block are added in
  // float32, ((0 + 1) + (2 + 3)), their sum to 16 lanes in float64, block after block; then the lanes are added in order.
  double (*exp_weights)(const RowView &row, float *weights);
  // The next block from `block` on in which some token could still win the race: bits / 2^32 <= weight * bound. -1: none.
  // Blocks where no s reaches `lowest` are passed over.
  int (*next_contender)(const RowView &row, const float *weights, NoiseKey key, float bound, float lowest, int block);
  // Sum in float64 of the weights of all tokens before this one: of larger s, or of the same and a lower id.
  double (*sum_before)(const RowView &row, const float *weights, float s, int32_t id);
};

const Passes &sampler_passes();

}  // namespace mv
#endif
