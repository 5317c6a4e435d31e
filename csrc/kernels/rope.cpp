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
void write_key_value(const mv_op &op, const mv_store &s, int head, int32_t slot, const float *k, const float *v) {
  typedef typename Format::Element Element;
  int d = op.head_dim, offset = slot % s.block_size;
  Element *tile = (Element *)s.data + tile_offset(s, op.layer, slot / s.block_size, head);
  Element *keys = tile + offset;
  Element *values = tile + key_elements(s) + int64_t(offset) * padded_dim(d);
  for (int i = 0; i < d; i++) keys[int64_t(i) * s.block_size] = Format::narrow(k[i]);
  for (int i = 0; i < d; i++) values[i] = Format::narrow(v[i]);
  for (int i = d; i < padded_dim(d); i++) values[i] = Format::narrow(0.0f);
}

template <typename Format>
void rope_store_rows(const mv_op &op, const StepView &step, int64_t begin, int64_t end) {
  int d = op.head_dim, half = op.rope_dims / 2;
  float key[1024];
  for (int64_t t = begin; t < end; t++) {
    const float *q = op.x + t * op.x_stride, *k = q + op.num_heads * d, *v = k + op.num_kv_heads * d;
    const float *cos = op.vector0 + int64_t(step.in.positions[t]) * half;
    const float *sin = op.vector1 + int64_t(step.in.positions[t]) * half;
    float *out = op.out + t * op.out_stride;
    for (int h = 0; h < op.num_heads; h++) rotate(q + h * d, cos, sin, half, d, out + h * d);
    for (int h = 0; h < op.num_kv_heads; h++) {
      rotate(k + h * d, cos, sin, half, d, key);
      write_key_value<Format>(op, *step.store, h, step.in.slots[t], key, v + h * d);
    }
  }
}

void rope_store(const mv_op &op, const StepView &step, int64_t begin, int64_t end, char *) {
  if (step.store->format == MV_F32) rope_store_rows<F32>(op, step, begin, end);
  if (step.store->format == MV_F16) rope_store_rows<F16>(op, step, begin, end);
  if (step.store->format == MV_BF16) rope_store_rows<BF16>(op, step, begin, end);
}

}  // namespace

const Kernel ROPE_STORE = {units_rows, rope_store, 1};

}  // namespace MV_ISA
}  // namespace mv
