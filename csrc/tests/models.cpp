#include "models.h"

#include <cmath>

#include "check.h"

namespace mvt {

ModelShape random_shape(Random &random) {
  ModelShape s = {};
  s.gpt2 = random.below(3) == 0;
  s.qk_norm = random.below(3) == 0;
  s.format = formats()[size_t(random.below(int(formats().size())))].id;
  const int store_formats[] = {MV_F32, MV_F16, MV_BF16};
  s.store_format = store_formats[random.below(3)];
  s.layers = random.between(1, 3);
  // Multiples of the format's groups where a product reads them.
  const int group = format_of(s.format).group, unit = group > 1 ? group : 1;
  s.num_kv_heads = random.between(1, 3);
  s.num_heads = s.num_kv_heads * random.between(1, 3);
  s.head_dim = unit > 1 ? unit : 4 * random.between(1, 6);
  s.hidden = unit > 1 ? unit * random.between(1, 3) : random.between(5, 90);
  s.intermediate = unit > 1 ? unit * random.between(1, 4) : random.between(5, 130);
  s.fused = !s.gpt2 && random.below(2);
  if (s.fused && unit == 1) s.intermediate = 16 * random.between(1, 8);
  s.vocab = random.between(20, 120);
  s.window = random.below(3) ? 0 : random.between(1, 50);
  s.softcap = random.below(3) ? 0 : 10;
  return s;
}

const Matrix *Weights::make(Random &random, int rows, int cols, bool bias) {
  matrices_.emplace_back(random, format_of(shape.format), rows, cols, bias);
  return &matrices_.back();
}

Weights::Weights(Random &random, const ModelShape &s)
    : shape(s), cos(4 * int64_t(MODEL_POSITIONS) * (s.head_dim / 2)), sin(cos.size()) {
  embedding = make(random, s.vocab, s.hidden, false);
  positions = s.gpt2 ? make(random, MODEL_POSITIONS, s.hidden, false) : nullptr;
  for (int i = 0; i < s.layers; i++) {
    Layer layer;
    layer.qkv = make(random, (s.num_heads + 2 * s.num_kv_heads) * s.head_dim, s.hidden, s.gpt2);
    layer.out = make(random, s.hidden, s.num_heads * s.head_dim, s.gpt2);
    layer.up = make(random, s.gpt2 ? s.intermediate : 2 * s.intermediate, s.hidden, s.gpt2);
    layer.down = make(random, s.hidden, s.intermediate, s.gpt2);
    layers.push_back(layer);
  }
  float *c = reinterpret_cast<float *>(cos.data()), *n = reinterpret_cast<float *>(sin.data());
  for (int p = 0; p < MODEL_POSITIONS; p++) {
    for (int i = 0; i < s.head_dim / 2; i++) {
      double angle = p * std::pow(10000.0, -2.0 * i / s.head_dim);
      c[p * (s.head_dim / 2) + i] = float(std::cos(angle));
      n[p * (s.head_dim / 2) + i] = float(std::sin(angle));
    }
  }
}

Model::Model(const Weights &weights, const char *isa, const TeamHandle &team, const Batch &batch,
             const mv_limits &limits)
    : store(weights.shape.store_format, weights.shape.layers, batch.num_blocks(), batch.block_size(),
            weights.shape.num_kv_heads, weights.shape.head_dim),
      program(team, isa, store, limits),
      hidden{},
      logits{},
      random_(11),
      gpt2_(weights.shape.gpt2),
      gates_(weights.shape.fused && weights.shape.format <= MV_BF16),
      rounded_(weights.shape.fused && weights.shape.format >= MV_BF16 ? weights.shape.format : MV_F32) {
  Activation x = program.embed(*weights.embedding, gpt2_ ? 1.0f : 1.5f);
  if (gpt2_) x = program.add(x, program.embed_positions(*weights.positions));
  for (int i = 0; i < weights.shape.layers; i++) x = layer(weights, i, x);
  hidden = program.take_rows(norm(x));
  program.begin_head();
  logits = program.linear(hidden, *weights.embedding, nullptr, weights.shape.softcap);
  MV_CHECK(program.finish());
}

Activation Model::norm(const Activation &x) {
  const float *weight = program.vector(random_, x.width, 1);
  return gpt2_ ? program.layer_norm(x, weight, program.vector(random_, x.width, 0), 1e-5f)
               : program.rms_norm(x, weight, 1e-5f);
}

Activation Model::factor(const Activation &x) {
  return rounded_ != MV_F32 && x.width % 2 == 0 ? program.round(x, rounded_) : x;
}

Activation Model::layer(const Weights &weights, int index, const Activation &x) {
  const ModelShape &s = weights.shape;
  const Weights::Layer &w = weights.layers[size_t(index)];
  Heads heads = {index, s.num_heads, s.num_kv_heads, s.head_dim, 1 / std::sqrt(float(s.head_dim)), s.window, 0,
                 s.gpt2 ? 0 : s.head_dim};
  Activation qkv = program.linear(factor(norm(x)), *w.qkv, nullptr, 0);
  if (s.qk_norm)
    qkv = program.qk_norm(qkv, program.vector(random_, s.head_dim, 1), program.vector(random_, s.head_dim, 1), 1e-6f,
                          heads);
  const float *cos = reinterpret_cast<const float *>(weights.cos.data());
  const float *sin = reinterpret_cast<const float *>(weights.sin.data());
  Activation mixed = factor(program.attend(program.rope_store(qkv, cos, sin, heads), heads));
  Activation y = program.linear(mixed, *w.out, &x, 0);
  if (gates_) return program.linear(factor(program.linear_silu_mul(factor(norm(y)), *w.up)), *w.down, &y, 0);
  Activation up = program.activate(s.gpt2 ? MV_GELU : MV_SILU_MUL, program.linear(factor(norm(y)), *w.up, nullptr, 0));
  return program.linear(factor(up), *w.down, &y, 0);
}

}  // namespace mvt
