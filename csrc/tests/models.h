// Small random models as programs.
#ifndef MINI_VLLM_TESTS_MODELS_H
#define MINI_VLLM_TESTS_MODELS_H

#include <deque>

#include "program.h"

namespace mvt {

// What a model is made of. `format` is of all its matrices, store_format of its keys and values.
struct ModelShape {
  bool gpt2;  // layer norms, biases, learned positions, gelu; else RMS norms, rope, silu
  bool qk_norm;
  int format, store_format, layers, hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab, window;
  float softcap;  // of the logits
  bool fused;     // silu in the product before it where it can be, and roundings in the op before them
};

ModelShape random_shape(Random &random);

constexpr int MODEL_POSITIONS = 512;

// Weights and rope tables: shared by any number of programs.
class Weights {
 public:
  Weights(Random &random, const ModelShape &shape);
  ModelShape shape;
  struct Layer {
    const Matrix *qkv, *out, *up, *down;
  };
  const Matrix *embedding, *positions;
  std::vector<Layer> layers;
  Bytes cos, sin;

 private:
  const Matrix *make(Random &random, int rows, int cols, bool bias);
  std::deque<Matrix> matrices_;
};

// A model as one program, with its store.
class Model {
 public:
  Model(const Weights &weights, const char *isa, const TeamHandle &team, const Batch &batch, const mv_limits &limits);
  Store store;
  Program program;
  Activation hidden, logits;

 private:
  Activation layer(const Weights &weights, int index, const Activation &x);
  Activation norm(const Activation &x);
  Activation factor(const Activation &x);
  Random random_;
  bool gpt2_, gates_;
  int32_t rounded_;  // the format that ops round for by themselves
};

}  // namespace mvt
#endif
