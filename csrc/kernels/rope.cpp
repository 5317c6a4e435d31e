// Rotary position embedding, and writing K and V to the store. A unit is one token.
//
//   dimension i < R/2 of a head pairs with i + R/2:   a' = a cos - b sin,   b' = b cos + a sin
//
// K and V are rounded to the store's number format here; attention reads them only from the store, so a key has the same
// bits for the chunk that computed it as for every later one.
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kv_layout.h"

namespace mv {
namespace MV_ISA {
namespace {

// One head, in: x [D], out: y [D].
void rotate(const float *__restrict x, const float *__restrict cos, const float *__restrict sin, int half, int head_dim,
            float *__restrict y) {
  for (int i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    y[i] = a * cos[i] - b * sin[i];
    y[i + half] = b * cos[i] + a * sin[i];
  }
  for (int i = 2 * half; i < head_dim; i++) y[i] = x[i];
}

template <typename Format>
MV_INLINE void narrow_row(const float *x, int n, typename Format::Element *out) {
  int i = 0;
  if constexpr (Format::HAS_VECTOR_NARROW) {
    for (; i + W <= n; i += W) {
      auto narrow = Format::narrow(load(x + i));
      memcpy(out + i, &narrow, sizeof narrow);
    }
  }
  for (; i < n; i++) out[i] = Format::narrow(x[i]);
}

// A row of V: every P-th number from `to` on. What lies between belongs to another token, and maybe to another thread.
template <int P, typename Element>
MV_INLINE void write_values(const Element *row, int n, Element *to) {
#if defined(__AVX512BW__)
  if constexpr (P == 2 && sizeof(Element) == 2) {
    for (int i = 0; i < n; i += 16) {
      __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row + i)));
      _mm512_mask_storeu_epi16(to + i * P, 0x55555555, words);
    }
    return;
  }
#endif
  for (int i = 0; i < n; i++) to[i * P] = row[i];
}

template <typename Format, int P>
void write_key_value(const mv_op &op, const LayerTiles &s, int head, int32_t slot, const float *k, const float *v) {
  typedef typename Format::Element Element;
  const int d = op.head_dim, padded = padded_dim(d);
  const int64_t offset = s.offset_of(slot), step = int64_t(s.block_size) * P;
  const Tile tile = s.tile(s.block_of(slot), head);
  Element *keys = (Element *)tile.keys + offset * P, *values = (Element *)tile.values, row[MAX_HEAD_DIM + 16];
  narrow_row<Format>(k, d, row);
  row[d] = 0;  // completes a pair
  for (int i = 0; i < d; i += P, keys += step) memcpy(keys, row + i, P * sizeof(Element));
  narrow_row<Format>(v, d, row);
  for (int i = d; i < padded; i++) row[i] = 0;
  write_values<P>(row, padded, values + value_index<P>(offset, 0, padded));
}

// int8 codes x / scale with scale = max |x| / 127 of the head. Returns the scale.
float write_codes(const float *x, int n, int8_t *out) {
  float peak = 0.0f, flaw = 0.0f;  // NaN if some x is NaN or infinite: then so is the scale, and all that reads it
  for (int i = 0; i < n; i++) peak = peak < __builtin_fabsf(x[i]) ? __builtin_fabsf(x[i]) : peak;
  for (int i = 0; i < n; i++) flaw += x[i] * 0.0f;
  const float inverse = peak < 1e-30f ? 0.0f : 127.0f / peak, magic = 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  for (int i = 0; i < n; i++) {
    float shifted = x[i] * inverse + magic;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    out[i] = int8_t(bits - 0x4b400000);
  }
  return (peak < 1e-30f ? 0.0f : peak / 127.0f) + flaw;
}

void write_key_value_codes(const mv_op &op, const LayerTiles &s, int head, int32_t slot, const float *k, const float *v) {
  const int d = op.head_dim, padded = padded_dim(d);
  const int64_t offset = s.offset_of(slot);
  const Tile tile = s.tile(s.block_of(slot), head);
  int8_t *keys = (int8_t *)tile.keys, *values = (int8_t *)tile.values, row[MAX_HEAD_DIM + 1];
  float *scales = (float *)tile.scales + offset;
  scales[0] = write_codes(k, d, row);
  row[d] = 0;  // completes a pair
  for (int i = 0; i < d; i += 2) memcpy(keys + key_index<2>(i, offset, s.block_size), row + i, 2);
  scales[s.block_size] = write_codes(v, d, row);
  memset(row + d, 0, size_t(padded - d));
  for (int i = 0; i < padded; i++) values[value_index<2>(offset, i, padded)] = row[i];
}

// P = 0: int8.
template <typename Format, int P>
void rope_store_rows(const mv_op &op, const StepView &step, int64_t begin, int64_t end) {
  int d = op.head_dim, half = op.rope_dims / 2;
  const LayerTiles tiles(*step.store, op.layer);
  float key[MAX_HEAD_DIM];
  for (int64_t t = begin; t < end; t++) {
    const float *q = op.x + t * op.x_stride, *k = q + op.num_heads * d, *v = k + op.num_kv_heads * d;
    const float *cos = op.vector0 + int64_t(step.in.positions[t]) * half;
    const float *sin = op.vector1 + int64_t(step.in.positions[t]) * half;
    float *out = op.out + t * op.out_stride;
    for (int h = 0; h < op.num_heads; h++) rotate(q + h * d, cos, sin, half, d, out + h * d);
    for (int h = 0; h < op.num_kv_heads; h++) {
      rotate(k + h * d, cos, sin, half, d, key);
      if constexpr (P == 0)
        write_key_value_codes(op, tiles, h, step.in.slots[t], key, v + h * d);
      else
        write_key_value<Format, P>(op, tiles, h, step.in.slots[t], key, v + h * d);
    }
  }
}

void rope_store(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  if (step.store->format == MV_F32) rope_store_rows<F32, 1>(op, step, begin, end);
  if (step.store->format == MV_F16) rope_store_rows<F16, 1>(op, step, begin, end);
  if (step.store->format == MV_BF16) rope_store_rows<BF16, 2>(op, step, begin, end);
  if (step.store->format == MV_STORE_Q8) rope_store_rows<F32, 0>(op, step, begin, end);
}

}  // namespace

const Kernel ROPE_STORE = {units_rows, rope_store, 1};

}  // namespace MV_ISA
}  // namespace mv
