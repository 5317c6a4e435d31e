// Builds programs through the C interface. Every activation has its own buffer, so that after a run each op can be
// checked against its own inputs (reference.h); rows are set apart by odd gaps that must stay untouched.
#ifndef MINI_VLLM_TESTS_PROGRAM_H
#define MINI_VLLM_TESTS_PROGRAM_H

#include <deque>
#include <memory>
#include <vector>

#include "batch.h"
#include "formats.h"
#include "memory.h"
#include "mini_vllm.h"

namespace mvt {

struct TeamHandle {
  explicit TeamHandle(int threads);
  ~TeamHandle() { mv_team_destroy(team); }
  TeamHandle(const TeamHandle &) = delete;
  TeamHandle &operator=(const TeamHandle &) = delete;
  mv_team *team;
};

struct Store {
  Store(int32_t format, int layers, int blocks, int block_size, int kv_heads, int head_dim);
  mv_store shape;
  Bytes memory;
};

// Attention of one layer.
struct Heads {
  int layer, num_heads, num_kv_heads, head_dim;
  float scale;
  int window;
  float softcap;
  int rope_dims;
};

struct Activation {
  float *data;
  int64_t stride;
  int width;
  int32_t row_kind;
  int index;  // of its buffer
  int32_t format = MV_F32;  // or that of the weights which it is rounded for

  int words() const { return format == MV_F32 ? width : format == MV_BF16 ? width / 2 : width / 32 * 10; }
};

class Program {
 public:
  Program(const TeamHandle &team, const char *isa, Store &store, const mv_limits &limits);
  ~Program();
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  // What the test itself fills, for each token.
  Activation input(int width);
  Activation embed(const Matrix &table, float scale);
  Activation embed_positions(const Matrix &table);
  Activation add(const Activation &x, const Activation &y);
  Activation rms_norm(const Activation &x, const float *weight, float eps);
  Activation layer_norm(const Activation &x, const float *weight, const float *bias, float eps);
  Activation qk_norm(const Activation &x, const float *q_weight, const float *k_weight, float eps, const Heads &heads);
  // With the rounding that the format wants before it; `residual` may be null.
  Activation linear(const Activation &x, const Matrix &weight, const Activation *residual, float softcap);
  Activation linear_silu_mul(const Activation &x, const Matrix &gate_up);
  // What the last op made, x, is written as products with weights in this format take it: bfloat16 or int8.
  Activation round(Activation x, int32_t format);
  Activation rope_store(const Activation &qkv, const float *cos, const float *sin, const Heads &heads);
  Activation attend(const Activation &q, const Heads &heads);
  Activation activate(int32_t kind, const Activation &x);  // MV_SILU_MUL, MV_GELU_MUL or MV_GELU
  Activation take_rows(const Activation &x);
  // From here on ops belong to the output head.
  void begin_head();
  // No more ops. False when the library refuses the program.
  bool finish();

  // A random vector that lives as long as the program.
  const float *vector(Random &random, int width, double mean);

  // Poisons all outputs, runs, and checks that nothing was written but the rows of the step.
  int32_t run(const Step &step);
  // The same in two calls. `end` is whether the step was done; `gaps_untouched` is then left to the caller.
  int32_t begin(const Step &step);
  // In place of a step that is under way; outputs stay as they are.
  int32_t begin_instead(const Step &step);
  bool end(bool keep);
  // The head alone, on hidden rows first … first + count.
  int32_t logits(int first, int count) { return mv_program_logits(program_, first, count); }
  int32_t follow(const mv_step &step, mv_follow &follow) { return mv_program_follow(program_, &step, &follow); }
  bool drop() { return mv_program_end(program_, 0) == 1; }
  void poison();  // all outputs
  bool untouched() const;  // all outputs
  bool gaps_untouched(const Step &step) const;

  const mv_limits &limits() const { return limits_; }
  Store &store() const { return store_; }
  const std::vector<mv_op> &ops(bool head) const { return head ? head_ops_ : ops_; }
  const Matrix &matrix(const mv_op &op) const;
  // The rounding that made the input of a product.
  const mv_op *quantizer(const mv_op &op) const;

 private:
  mv_op op(int32_t kind, const Activation &x, const Activation &out) const;
  // x as products with these weights take it.
  Activation factor(const Activation &x, const Matrix &weight);
  Activation make(int width, int32_t row_kind);
  Activation push(const mv_op &op, const Activation &out);
  int rows(int32_t row_kind) const {
    return row_kind == MV_ROWS_TOKENS || !in_head_ ? limits_.max_tokens : limits_.max_logit_rows;
  }

  const TeamHandle &team_;
  const char *isa_;
  Store &store_;
  mv_limits limits_;
  bool in_head_ = false;
  std::deque<Bytes> buffers_, vectors_;
  std::vector<Activation> outputs_;
  std::vector<bool> made_in_head_;
  std::vector<mv_op> ops_, head_ops_;
  std::vector<const Matrix *> matrices_;
  mv_program *program_ = nullptr;
  std::shared_ptr<void> begun_;  // the arrays of a step that is under way
};

}  // namespace mvt
#endif
