#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check.h"

namespace mvt {
namespace {

constexpr double EPS = 0x1p-24;      // half a unit in the last place of 1.0f
constexpr double TINY = 1.3e-38;     // denormals count as zero

struct Run {
  const Program &program;
  const Step &step;
  Mirror &mirror;
};

const float *row_of(const mv_op &op, int64_t row) { return op.x + row * op.x_stride; }

Expected exact(double value) { return {value, TINY}; }

Expected activation(int32_t kind, double x) {
  if (kind == MV_SILU_MUL) {
    double value = x / (1 + std::exp(-x));
    return {value, 16 * EPS * std::fabs(value) + 1e-30};
  }
  double value = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return {value, 8 * EPS * std::fabs(x) + 16 * EPS * std::fabs(value)};
}

Expected activated(const mv_op &op, const float *x, int i) {
  Expected gate = activation(op.kind, x[i]);
  if (op.kind == MV_GELU) return gate;
  double up = x[op.width + i], value = gate.value * up;
  return {value, gate.bound * std::fabs(up) + 2 * EPS * std::fabs(value) + TINY};
}

void look_up(const Run &run, const mv_op &op, int row, std::vector<Expected> &out) {
  const Matrix &table = run.program.matrix(op);
  bool by_token = op.kind == MV_EMBED;
  int32_t id = by_token ? run.step.token_ids[size_t(row)] : run.step.positions[size_t(row)];
  double scale = by_token ? op.scale : 1;
  for (int i = 0; i < op.width; i++) {
    double value = table.at(id, i) * scale;
    // Plain numbers times a scale round once; codes times their scale plus a minimum of about 4 may cancel.
    double slack = table.format().int8_inputs ? 4 * EPS * (std::fabs(value) + 16 * std::fabs(scale)) : 0;
    out.push_back({value, slack + EPS * std::fabs(value) + TINY});
  }
}

void rms_norm(const float *x, const float *weight, float eps, int n, std::vector<Expected> &out) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += double(x[i]) * x[i];
  double inverse = 1 / std::sqrt(sum / n + eps);
  for (int i = 0; i < n; i++) {
    double value = x[i] * inverse * weight[i];
    out.push_back({value, 32 * EPS * std::fabs(value) + TINY * (1 + std::fabs(weight[i]))});
  }
}

void layer_norm(const mv_op &op, const float *x, std::vector<Expected> &out) {
  int n = op.width;
  double mean = 0, variance = 0, largest = 0;
  for (int i = 0; i < n; i++) mean += double(x[i]) / n;
  for (int i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean) / n;
  for (int i = 0; i < n; i++) largest = std::max(largest, double(std::fabs(x[i])));
  double inverse = 1 / std::sqrt(variance + op.eps);
  for (int i = 0; i < n; i++) {
    double scaled = (x[i] - mean) * inverse * op.vector0[i];
    double cancelled = (8 * EPS * largest * inverse + TINY) * std::fabs(op.vector0[i]) + TINY;
    out.push_back({scaled + op.vector1[i], cancelled + 64 * EPS * std::fabs(scaled) + 2 * EPS * std::fabs(op.vector1[i])});
  }
}

void qk_norm(const mv_op &op, const float *x, std::vector<Expected> &out) {
  for (int h = 0; h < op.num_heads + op.num_kv_heads; h++)
    rms_norm(x + h * op.head_dim, h < op.num_heads ? op.vector0 : op.vector1, op.eps, op.head_dim, out);
  for (int i = int(out.size()); i < op.width; i++) out.push_back({x[i], 0});
}

// Number i of a row of bfloat16.
double rounded_at(const float *row, int64_t i) {
  uint16_t half;
  memcpy(&half, reinterpret_cast<const char *>(row) + 2 * i, 2);
  uint32_t bits = uint32_t(half) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Number i of a row of int8, and half of a step.
Expected int8_at(const float *row, int width, int64_t i) {
  const double scale = row[width / 4 + i / 32];
  return {reinterpret_cast<const int8_t *>(row)[i] * scale, 0.5 * scale};
}

// A row of x as its product multiplies it.
std::vector<double> inputs_of(const Run &run, const mv_op &op, int64_t row, const Matrix &weight) {
  const int K = weight.cols();
  const mv_op *quantizer = run.program.quantizer(op);
  const float *x = row_of(quantizer ? *quantizer : op, row);
  std::vector<double> inputs;
  if (weight.format().int8_inputs) {
    if (quantizer) return round_to_int8(x, K);
    for (int k = 0; k < K; k++) inputs.push_back(int8_at(x, K, k).value);
    return inputs;
  }
  for (int k = 0; k < K; k++) {
    if (weight.format().id != MV_BF16) inputs.push_back(x[k]);
    else inputs.push_back(quantizer ? round_to(MV_BF16, x[k]) : rounded_at(x, k));
  }
  return inputs;
}

void linear(const Run &run, const mv_op &op, int64_t row, std::vector<Expected> &out) {
  const Matrix &weight = run.program.matrix(op);
  const int K = weight.cols();
  const bool quantizer = weight.format().int8_inputs || weight.format().id == MV_BF16;
  const std::vector<double> inputs = inputs_of(run, op, row, weight);
  for (int n = 0; n < weight.rows(); n++) {
    double value = 0, size = 0;
    for (int k = 0; k < K; k++) {
      value += weight.at(n, k) * inputs[size_t(k)];
      size += std::fabs(weight.at(n, k) * inputs[size_t(k)]);
    }
    // A minimum and its codes may cancel: their products are larger than those of the weights.
    double bound = EPS * (8 + 4 * std::sqrt(K)) * size * (quantizer ? 4 : 1) + TINY;
    if (op.weight->bias) {
      value += op.weight->bias[n];
      bound += 2 * EPS * (std::fabs(value) + std::fabs(op.weight->bias[n]));
    }
    if (op.softcap != 0) {
      value = op.softcap * std::tanh(value / op.softcap);
      bound += 8 * EPS * std::fabs(value);
    }
    if (op.y) {
      double y = op.y[row * op.y_stride + n];
      value += y;
      bound += 2 * EPS * (std::fabs(value) + std::fabs(y));
    }
    out.push_back({value, bound});
  }
}

void linear_silu_mul(const Run &run, const mv_op &op, int64_t row, std::vector<Expected> &out) {
  std::vector<Expected> sums;
  linear(run, op, row, sums);
  for (int i = 0; i < op.width; i++) {
    const Expected gate = sums[size_t(i)], up = sums[size_t(op.width + i)];
    Expected active = activation(MV_SILU_MUL, gate.value);
    active.bound += 1.1 * gate.bound;  // silu is nowhere steeper
    const double value = active.value * up.value;
    out.push_back({value, active.bound * (std::fabs(up.value) + up.bound) + up.bound * std::fabs(active.value) +
                              2 * EPS * std::fabs(value) + TINY});
  }
}

// One head, rotated in float32 as the op says, a' = a cos - b sin, each product rounded.
void rotate(const mv_op &op, int position, const float *x, float *out) {
  int half = op.rope_dims / 2;
  for (int i = 0; i < op.head_dim; i++) out[i] = x[i];
  for (int i = 0; i < half; i++) {
    float cos = op.vector0[int64_t(position) * half + i], sin = op.vector1[int64_t(position) * half + i];
    out[i] = x[i] * cos - x[i + half] * sin;
    out[i + half] = x[i + half] * cos + x[i] * sin;
  }
}

// The int8 rounding of one head of K or V.
void round_head(const float *x, int d, double *out) {
  float peak = 0;
  for (int i = 0; i < d; i++) peak = std::max(peak, std::fabs(x[i]));
  const float inverse = peak < 1e-30f ? 0 : 127.0f / peak, scale = peak < 1e-30f ? 0 : peak / 127.0f;
  for (int i = 0; i < d; i++) out[i] = std::nearbyintf(x[i] * inverse) * scale;
}

void rope_store(const Run &run, const mv_op &op, int row, std::vector<Expected> &out) {
  const float *x = row_of(op, row);
  const int d = op.head_dim, position = run.step.positions[size_t(row)], format = run.program.store().shape.format;
  std::vector<float> rotated(static_cast<size_t>(d));
  for (int h = 0; h < op.num_heads; h++) {
    rotate(op, position, x + h * d, rotated.data());
    for (float value : rotated) out.push_back(exact(value));
  }
  for (int h = 0; h < op.num_kv_heads; h++) {
    const float *k = x + (op.num_heads + h) * d, *v = k + op.num_kv_heads * d;
    rotate(op, position, k, rotated.data());
    int64_t slot = run.step.slots[size_t(row)];
    if (format == MV_STORE_Q8) {
      round_head(rotated.data(), d, run.mirror.key(op.layer, slot, h));
      round_head(v, d, run.mirror.value(op.layer, slot, h));
      continue;
    }
    for (int i = 0; i < d; i++) {
      run.mirror.key(op.layer, slot, h)[i] = round_to(format, rotated[size_t(i)]);
      run.mirror.value(op.layer, slot, h)[i] = round_to(format, v[i]);
    }
  }
}

int sequence_of(const Step &step, int row) {
  int seq = 0;
  while (step.query_starts[size_t(seq) + 1] <= row) seq++;
  return seq;
}

// What a row sees of one K/V head: places of its keys, their weights, and how far those may be off.
struct Weights {
  std::vector<int64_t> slots;
  std::vector<double> values, errors;
};

// An int8 store is read with q in whole multiples of a scale, 15 bits and a sign.
void round_query(std::vector<double> &q) {
  float peak = 0;
  for (double x : q) peak = std::max(peak, std::fabs(float(x)));
  const float levels = q.size() <= 512 ? 32767.0f : 16383.0f;
  if (peak < 1e-30f) return;
  for (double &x : q) x = std::nearbyintf(float(x) * (levels / peak)) * double(peak / levels);
}

// Weights relative to a power of two. Bfloat16 stores are read with q and the weights rounded to bfloat16: a weight so near
// the middle of two numbers that an error in its score decides may be either.
Weights weigh(const Run &run, const mv_op &op, int row, int head) {
  const int d = op.head_dim, block_size = run.program.store().shape.block_size;
  const bool rounds = run.program.store().shape.format == MV_BF16;
  const int last = run.step.positions[size_t(row)], first = op.window > 0 ? std::max(0, last - op.window + 1) : 0;
  const int32_t *table = run.step.block_tables.data() + int64_t(sequence_of(run.step, row)) * run.step.table_width;
  const float log2_e = 1.44269504088896341f, factor = op.softcap != 0 ? op.scale : op.scale * log2_e;
  std::vector<double> q;
  for (int i = 0; i < d; i++) {
    float scaled = row_of(op, row)[head * d + i] * factor;
    q.push_back(rounds ? round_to(MV_BF16, scaled) : scaled);
  }
  if (run.program.store().shape.format == MV_STORE_Q8) round_query(q);
  Weights w;
  double largest = -INFINITY;
  for (int p = first; p <= last; p++) {
    w.slots.push_back(int64_t(table[p / block_size]) * block_size + p % block_size);
    const double *k = run.mirror.key(op.layer, w.slots.back(), head / (op.num_heads / op.num_kv_heads));
    double score = 0, size = 0;
    for (int i = 0; i < d; i++) {
      score += q[size_t(i)] * k[i];
      size += std::fabs(q[size_t(i)] * k[i]);
    }
    double error = EPS * (8 + 2 * std::sqrt(d)) * size;
    if (op.softcap != 0) {
      score = op.softcap * std::tanh(score / op.softcap) * log2_e;
      error = error * log2_e + 8 * EPS * op.softcap;
    }
    w.values.push_back(score);
    w.errors.push_back(error + 4 * EPS);
    largest = std::max(largest, score);
  }
  for (size_t j = 0; j < w.values.size(); j++) {
    double weight = std::exp2(w.values[j] - std::ceil(largest)), error = std::min(w.errors[j], 1.0) * weight;
    w.values[j] = rounds ? round_to(MV_BF16, weight) : weight;
    w.errors[j] = rounds ? round_to(MV_BF16, weight + error) - round_to(MV_BF16, weight - error) : error;
  }
  return w;
}

// Of an int8 store, a row's weights times V's scales are whole multiples of 1 / 32767 of the largest: half of one for each key.
double weight_error(const Run &run, const mv_op &op, int head, const Weights &w) {
  if (run.program.store().shape.format != MV_STORE_Q8) return 0;
  double largest = 0;
  for (size_t j = 0; j < w.slots.size(); j++) {
    const double *v = run.mirror.value(op.layer, w.slots[j], head / (op.num_heads / op.num_kv_heads));
    for (int i = 0; i < op.head_dim; i++) largest = std::max(largest, w.values[j] * std::fabs(v[i]));
  }
  return 0.5 * double(w.slots.size()) * largest / 32767;
}

// One query head over the keys that its row sees.
void attend_head(const Run &run, const mv_op &op, int row, int head, std::vector<Expected> &out) {
  const Weights w = weigh(run, op, row, head);
  const double rounding = weight_error(run, op, head, w);
  double total = 0;
  for (double weight : w.values) total += weight;
  for (int i = 0; i < op.head_dim; i++) {
    double sum = 0, size = 0, error = 0;
    auto value = [&](size_t j) { return run.mirror.value(op.layer, w.slots[j], head / (op.num_heads / op.num_kv_heads))[i]; };
    for (size_t j = 0; j < w.slots.size(); j++) sum += w.values[j] / total * value(j);
    for (size_t j = 0; j < w.slots.size(); j++) {
      size += w.values[j] / total * std::fabs(value(j));
      error += w.errors[j] / total * std::fabs(value(j) - sum);
    }
    error = 2 * error + rounding / total;
    out.push_back({sum, error + EPS * (64 + 2 * std::sqrt(double(w.slots.size()))) * size + TINY});
  }
}

void expect_row(const Run &run, const mv_op &op, int row, std::vector<Expected> &out) {
  const float *x = row_of(op, row);
  switch (op.kind) {
    case MV_EMBED:
    case MV_EMBED_POSITIONS: return look_up(run, op, row, out);
    case MV_ADD:
      for (int i = 0; i < op.width; i++) out.push_back(exact(x[i] + op.y[row * op.y_stride + i]));
      return;
    case MV_RMS_NORM: return rms_norm(x, op.vector0, op.eps, op.width, out);
    case MV_LAYER_NORM: return layer_norm(op, x, out);
    case MV_QK_NORM: return qk_norm(op, x, out);
    case MV_LINEAR: return linear(run, op, row, out);
    case MV_LINEAR_SILU_MUL: return linear_silu_mul(run, op, row, out);
    case MV_ROPE_STORE: return rope_store(run, op, row, out);
    case MV_ATTEND:
      for (int h = 0; h < op.num_heads; h++) attend_head(run, op, row, h, out);
      return;
    case MV_SILU_MUL:
    case MV_GELU_MUL:
    case MV_GELU:
      for (int i = 0; i < op.width; i++) out.push_back(activated(op, x, i));
      return;
    case MV_TAKE_ROWS:
      x = row_of(op, run.step.logit_rows[size_t(row)]);
      for (int i = 0; i < op.width; i++) out.push_back({x[i], 0});
      return;
    default: MV_CHECK(op.kind == MV_QUANTIZE);  // seen through the products that read it
  }
}

const char *op_name(int32_t kind) {
  static const char *names[] = {"embed",  "embed_positions", "add",     "rms_norm", "layer_norm", "qk_norm", "linear", "rope_store",
                                "attend", "attend_combine",  "silu_mul", "gelu_mul", "gelu",       "take_rows", "quantize", "linear_silu_mul",
                                "screen_make", "screen_lead", "screen_pick", "screen_rest"};
  static_assert(sizeof names / sizeof names[0] == MV_NUM_OPS, "names of all ops");
  return names[kind];
}

bool check_op(const Run &run, const mv_op &op, int num_rows) {
  std::vector<Expected> expected;
  for (int row = 0; row < num_rows; row++) {
    expected.clear();
    expect_row(run, op, row, expected);
    const float *out = op.out + row * op.out_stride;
    for (size_t i = 0; i < expected.size(); i++) {
      double value = out[i];
      if (op.out_format == MV_BF16) {
        value = rounded_at(out, int64_t(i));
        expected[i].bound += (std::fabs(expected[i].value) + expected[i].bound) * 0x1p-8;
      } else if (op.out_format != MV_F32) {
        const Expected code = int8_at(out, op.width, int64_t(i));
        value = code.value;
        expected[i].bound += code.bound * 1.001;
      }
      if (std::fabs(value - expected[i].value) <= expected[i].bound) continue;
      return fail(__FILE__, __LINE__, "%s: row %d column %zu is %.9g, not %.9g +- %.2g", op_name(op.kind), row, i,
                  value, expected[i].value, expected[i].bound);
    }
  }
  return true;
}

}  // namespace

Mirror::Mirror(const mv_store &shape)
    : shape_(shape),
      keys_(size_t(shape.num_layers) * size_t(shape.num_blocks) * size_t(shape.block_size) *
            size_t(shape.num_kv_heads) * size_t(shape.head_dim), NAN),
      values_(keys_) {}

std::vector<double> round_to_int8(const float *x, int width) {
  std::vector<double> out;
  for (int start = 0; start < width; start += 32) {
    float peak = 0;
    for (int i = start; i < start + 32; i++) peak = std::max(peak, std::fabs(x[i]));
    bool empty = peak < 1e-30f;
    float inverse = empty ? 0 : 127.0f / peak, scale = empty ? 0 : peak / 127.0f;
    for (int i = start; i < start + 32; i++) out.push_back(double(std::nearbyintf(x[i] * inverse)) * scale);
  }
  return out;
}

bool check_run(const Program &program, const Step &step, Mirror &mirror) {
  const Run run = {program, step, mirror};
  const int num_outputs = int(step.logit_rows.size());
  for (bool head : {false, true}) {
    if (head && num_outputs > program.limits().max_logit_rows) break;
    for (const mv_op &op : program.ops(head))
      if (!check_op(run, op, op.row_kind == MV_ROWS_TOKENS ? step.num_tokens() : num_outputs)) return false;
  }
  return true;
}

}  // namespace mvt
