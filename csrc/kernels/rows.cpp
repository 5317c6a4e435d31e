// Ops that treat every row by itself: embedding, norms, activations, residual adds. A unit is one row.
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/numeric.h"
#include "kernels/panels.h"
#include "kernels/quantize.h"

namespace mv {
namespace MV_ISA {
namespace {

// out[i] = function(x[i]) or function(x[i], y[i]) over n elements, the tail through the same vector function.
template <typename Function>
MV_INLINE void map(const float *x, float *out, int n, Function function) {
  int i = 0;
  for (; i + W <= n; i += W) store(out + i, function(load(x + i)));
  if (i < n) store_n(out + i, function(load_n(x + i, n - i)), n - i);
}
template <typename Row, typename Function>
MV_INLINE void map2(const float *x, const float *y, Row out, int n, Function function) {
  int i = 0;
  for (; i + W <= n; i += W) out.put(i, function(load(x + i), load(y + i)));
  if (i < n) out.put_n(i, function(load_n(x + i, n - i), load_n(y + i, n - i)), n - i);
}

// The same for a row of op.width numbers, whole groups of int8, a few groups at a time.
template <typename Function>
MV_INLINE void map2_int8(const mv_op &op, const float *x, const float *y, float *out, Function function) {
  alignas(64) float part[W * GROUP_COLUMNS];
  for (int i = 0; i < op.width; i += W * GROUP_COLUMNS) {
    const int n = min32(W * GROUP_COLUMNS, op.width - i);
    for (int j = 0; j < n; j += W) store(part + j, function(load(x + i + j), load(y + i + j)));
    quantize_groups(part, n / GROUP_COLUMNS, op.out_format, Neighbours{Int8Row(out, op.width), i});
  }
}

// Row `row` of a packed matrix, times scale.
template <typename Format>
void gather_row(const mv_matrix &m, int64_t row, float scale, float *out) {
  typedef typename Format::Element Element;
  const char *panel = (const char *)m.data + row / PANEL * panel_bytes(m.format, m.cols);
  const Element *lane = (const Element *)panel + row % PANEL;
  for (int k = 0; k < m.cols; k++) out[k] = Format::widen1(lane[int64_t(k) * PANEL]) * scale;
}
void gather_row_bf16(const mv_matrix &m, int64_t row, float scale, float *out) {
  const uint16_t *panel = (const uint16_t *)((const char *)m.data + row / PANEL * panel_bytes(m.format, m.cols));
  const uint16_t *lane = panel + 2 * (row % PANEL);
  for (int k = 0; k < m.cols; k++) out[k] = BF16::widen1(lane[int64_t(k / 2) * (2 * PANEL) + k % 2]) * scale;
}
// Codes times scale, plus the minimum where the format has one; panels.h draws the layout.
void gather_row_quantized(const mv_matrix &m, int64_t row, float scale, float *out) {
  const char *panel = (const char *)m.data + row / PANEL * panel_bytes(m.format, m.cols);
  const int64_t lane = row % PANEL;
  const int32_t bias = m.format == MV_Q8_0 || m.format == MV_Q5_0 ? 128 : m.format == MV_Q4_0 ? 8 : 0;
  const bool four_bits = m.format == MV_Q4_0 || m.format == MV_Q4_1;
  for (int g = 0; g < m.cols / GROUP_COLUMNS; g++) {
    const uint8_t *codes = (const uint8_t *)panel + codes_offset(m.format, g) + 4 * lane;
    float step = F16::widen1(((const uint16_t *)(panel + scales_offset(m.format, g)))[lane]), minimum = 0.0f;
    if (has_minimum(m.format)) minimum = F16::widen1(((const uint16_t *)(panel + minima_offset(m.format, g)))[lane]);
    for (int k = 0; k < GROUP_COLUMNS; k++) {
      int32_t code = four_bits ? codes[k / 8 * 64 + k % 4] >> (k / 4 % 2 * 4) & 15 : codes[k / 4 * 64 + k % 4];
      out[g * GROUP_COLUMNS + k] = (float(code - bias) * step + minimum) * scale;
    }
  }
}
void gather_row_k(const mv_matrix &m, int64_t row, float scale, float *out) {
  const KLayout layout = k_layout(m.format);
  const char *panel = (const char *)m.data + row / PANEL * panel_bytes(m.format, m.cols);
  const int64_t lane = row % PANEL;
  for (int k = 0; k < m.cols; k++) {
    const char *super = panel + k / SUPER_COLUMNS * layout.bytes();
    const int within = k % SUPER_COLUMNS, group = within / layout.group;
    const uint8_t *codes = (const uint8_t *)super + within / 32 * layout.group_bytes() + 4 * lane + k % 4;
    int32_t code = layout.code_bits == 8 ? codes[within % 32 / 4 * 64]
                                         : codes[within % 32 / 8 * 64] >> (within / 4 % 2 * 4) & 15;
    float step = F16::widen1(((const uint16_t *)(super + layout.scale_at()))[lane]) *
                 float(((const int8_t *)super)[layout.scales_at() + group * PANEL + lane]);
    float value = float(code - layout.offset) * step;
    if (layout.has_minimum)
      value += F16::widen1(((const uint16_t *)(super + layout.minimum_at()))[lane]) *
               float(((const uint8_t *)super)[layout.minima_at() + group * PANEL + lane]);
    out[k] = value * scale;
  }
}
void look_up(const mv_op &op, const int32_t *ids, float scale, int64_t begin, int64_t end) {
  const mv_matrix &m = *op.weight;
  for (int64_t t = begin; t < end; t++) {
    float *out = op.out + t * op.out_stride;
    if (m.format == MV_F32) gather_row<F32>(m, ids[t], scale, out);
    if (m.format == MV_F16) gather_row<F16>(m, ids[t], scale, out);
    if (m.format == MV_BF16) gather_row_bf16(m, ids[t], scale, out);
    if (is_k_format(m.format)) {
      gather_row_k(m, ids[t], scale, out);
    } else if (is_quantized(m.format)) {
      gather_row_quantized(m, ids[t], scale, out);
    }
  }
}
void embed(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  look_up(op, step.in.token_ids, op.scale, begin, end);
}
void embed_positions(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  look_up(op, step.in.positions, 1.0f, begin, end);
}

void add(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  for (int64_t t = begin; t < end; t++)
    map2(op.x + t * op.x_stride, op.y + t * op.y_stride, FloatRow(op.out + t * op.out_stride), op.width,
         [](F x, F y) { return x + y; });
}

// Sum over a row of (x - shift)^2, four vector sums joined in a fixed order.
float sum_of_squares(const float *x, int n, float shift) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    MV_UNROLL for (int j = 0; j < 4; j++) {
      F d = load(x + i + j * W) - shift;
      sums[j] = fma(d, d, sums[j]);
    }
  }
  float total = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; i++) total += (x[i] - shift) * (x[i] - shift);
  return total;
}
float sum(const float *x, int n) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    MV_UNROLL for (int j = 0; j < 4; j++) sums[j] += load(x + i + j * W);
  }
  float total = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; i++) total += x[i];
  return total;
}

// x / sqrt(mean(x^2) + eps) * weight
float inverse_rms(const float *x, float eps, int n) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, n, 0.0f) / float(n) + eps);
}
template <typename Row>
void rms_norm_row(const float *x, const float *weight, float eps, int n, Row out) {
  const float inverse = inverse_rms(x, eps, n);
  map2(x, weight, out, n, [inverse](F a, F w) { return a * inverse * w; });
}
void rms_norm_int8(const mv_op &op, const float *x, float *out) {
  const float inverse = inverse_rms(x, op.eps, op.width);
  map2_int8(op, x, op.vector0, out, [inverse](F a, F w) { return a * inverse * w; });
}
void rms_norm(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  // Read once a step, so far from the caches, and only after the row: asked for meanwhile.
  for (int i = 0; i < op.width; i += 16) __builtin_prefetch(op.vector0 + i);
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    float *out = op.out + t * op.out_stride;
    if (is_quantized(op.out_format)) {
      rms_norm_int8(op, x, out);
    } else if (op.out_format == MV_BF16) {
      rms_norm_row(x, op.vector0, op.eps, op.width, RoundedRow(out));
    } else {
      rms_norm_row(x, op.vector0, op.eps, op.width, FloatRow(out));
    }
  }
}

// (x - mean) / sqrt(variance + eps) * weight + bias
void layer_norm(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  int n = op.width;
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    float *out = op.out + t * op.out_stride;
    float mean = sum(x, n) / float(n);
    float inverse = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, mean) / float(n) + op.eps);
    map2(x, op.vector0, FloatRow(out), n, [mean, inverse](F a, F w) { return (a - mean) * inverse * w; });
    map2(out, op.vector1, FloatRow(out), n, [](F a, F b) { return a + b; });
  }
}

// RMS norm of every query and key head of [q heads | k heads | v heads]; v is copied.
void qk_norm(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  int d = op.head_dim, keys_end = op.num_heads + op.num_kv_heads;
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    float *out = op.out + t * op.out_stride;
    for (int h = 0; h < keys_end; h++)
      rms_norm_row(x + h * d, h < op.num_heads ? op.vector0 : op.vector1, op.eps, d,
                   FloatRow(out + h * d));
    memcpy(out + keys_end * d, x + keys_end * d, sizeof(float) * size_t(op.num_kv_heads) * size_t(d));
  }
}

void silu_mul(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    float *out = op.out + t * op.out_stride;
    auto gated = [](F g, F u) { return silu(g) * u; };
    is_quantized(op.out_format) ? map2_int8(op, x, x + op.width, out, gated)
                                : map2(x, x + op.width, FloatRow(out), op.width, gated);
  }
}
void gelu_mul(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    map2(x, x + op.width, FloatRow(op.out + t * op.out_stride), op.width, [](F g, F u) { return gelu(g) * u; });
  }
}
void gelu_rows(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  for (int64_t t = begin; t < end; t++)
    map(op.x + t * op.x_stride, op.out + t * op.out_stride, op.width, [](F x) { return gelu(x); });
}

void take_rows(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  for (int64_t i = begin; i < end; i++)
    memcpy(op.out + i * op.out_stride, op.x + step.in.logit_rows[i] * op.x_stride, sizeof(float) * size_t(op.width));
}

}  // namespace

const Kernel EMBED = {units_rows, embed, 1};
const Kernel EMBED_POSITIONS = {units_rows, embed_positions, 1};
const Kernel ADD = {units_rows, add, 4};
const Kernel RMS_NORM = {units_rows, rms_norm, 2};
const Kernel LAYER_NORM = {units_rows, layer_norm, 2};
const Kernel QK_NORM = {units_rows, qk_norm, 1};
const Kernel SILU_MUL = {units_rows, silu_mul, 1};
const Kernel GELU_MUL = {units_rows, gelu_mul, 1};
const Kernel GELU = {units_rows, gelu_rows, 1};
const Kernel TAKE_ROWS = {units_rows, take_rows, 8};

}  // namespace MV_ISA
}  // namespace mv
