// A head that greedy steps may read in part, and what its logits must be: those of a step that reads all of it, to the bit,
// or estimates below the largest.
//
// Whether a step was screened shows in the number of ops it took: PICK, LEAD and REST are three, rounding may be one more.
#ifndef MINI_VLLM_TESTS_HEAD_H
#define MINI_VLLM_TESTS_HEAD_H

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "check.h"
#include "program.h"

namespace mvt {

constexpr int TOKENS = 12;

typedef std::function<void(uint8_t *row, int index)> Edit;  // of a row's bytes, as the file has them
typedef std::function<void(mv_op &op)> Change;              // of the head's product, and of the rounding before it

// An embedding of float32 rows, and a head over it whose rows a test may write itself.
class Head {
 public:
  Head(const mvt::Context &context, Random &random, int32_t format, int rows, int cols, const Edit &edit = {},
       const Change &change = {})
      : format_(format_of(format)),
        team_(context.threads),
        store_(MV_F32, 1, TOKENS, 4, 1, 4),
        table_(random, format_of(MV_F32), TOKENS, cols, false),
        packed_(mv_matrix_bytes(format, rows, cols)),
        head_{format, rows, cols, 0, packed_.data(), nullptr},
        rounded_(4 * TOKENS * int64_t(cols)),
        hidden_(4 * TOKENS * int64_t(cols)),
        logits_(4 * TOKENS * int64_t(rows)) {
    std::memset(packed_.data(), 0, size_t(packed_.size()));
    const int groups = cols / format_.group;
    Bytes row(groups * format_.group_bytes);
    for (int r = 0; r < rows; r++) {
      for (int g = 0; g < groups; g++) format_.fill(random, row.data() + g * format_.group_bytes);
      if (edit) edit(row.data(), r);
      mv_pack_rows(&head_, r, 1, row.data());
    }
    mv_op embed = {}, round = {}, product = {};
    embed.kind = MV_EMBED, embed.weight = table_.get(), embed.width = cols, embed.scale = 1;
    embed.out = floats(hidden_), embed.out_stride = cols;
    round.kind = MV_QUANTIZE, round.row_kind = MV_ROWS_OUTPUT, round.weight = &head_, round.x = floats(hidden_);
    round.x_stride = cols, round.out = floats(rounded_), round.out_stride = cols, round.width = cols;
    product.kind = MV_LINEAR, product.row_kind = MV_ROWS_OUTPUT, product.weight = &head_, product.width = rows;
    product.out = floats(logits_), product.out_stride = rows, product.x_stride = cols;
    if (change) change(round), change(product);
    const bool rounds = format_.int8_inputs || format == MV_BF16;
    product.x = floats(rounds ? rounded_ : hidden_);
    const mv_op head[] = {rounds ? round : product, product};
    const mv_limits limits = {TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, 0};
    program_ = mv_program_create(team_.team, context.isa, &store_.shape, &limits, &embed, 1, head, rounds ? 2 : 1);
    MV_CHECK(program_ != nullptr);
  }
  ~Head() { mv_program_destroy(program_); }

  float *token(int i) { return const_cast<float *>(reinterpret_cast<const float *>(table_.get()->data)) + i % 16; }
  int rows() const { return head_.rows; }

  // A decode step of tokens 0 … count - 1, a sequence each. `ops`: how many it took.
  std::vector<float> run(int count, int32_t greedy_limit, bool begins = false) {
    logits_.poison();
    const mv_step step = decode(count, greedy_limit);
    const uint32_t before = mv_team_progress(team_.team);
    if (begins) MV_CHECK_EQUAL(mv_program_begin(program_, &step), MV_OK);
    if (!begins || mv_program_end(program_, 1) != 1) MV_CHECK_EQUAL(mv_program_run(program_, &step), MV_OK);
    ops = int(mv_team_progress(team_.team) - before);
    return {floats(logits_), floats(logits_) + int64_t(count) * rows()};
  }
  // Begins such a step, and drops it.
  void drop(int count, int32_t greedy_limit) {
    const mv_step step = decode(count, greedy_limit);
    MV_CHECK_EQUAL(mv_program_begin(program_, &step), MV_OK);
    mv_program_end(program_, 0);
  }
  int ops = 0;
  // Of a step without screening, once `run` has been called so.
  bool was_screened(int plain_ops) const { return ops >= plain_ops + 3; }

 private:
  static float *floats(const Bytes &bytes) { return reinterpret_cast<float *>(bytes.data()); }
  mv_step decode(int count, int32_t greedy_limit) const {
    return {count, count, count, 1, ramp_, zeros_, slots_, ramp_, ones_, zeros_, ramp_, greedy_limit, 0};
  }

  const Format &format_;
  TeamHandle team_;
  Store store_;
  Matrix table_;
  Bytes packed_;
  mv_matrix head_;
  Bytes rounded_, hidden_, logits_;
  const int32_t ramp_[TOKENS + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const int32_t zeros_[TOKENS] = {}, ones_[TOKENS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const int32_t slots_[TOKENS] = {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44};
  mv_program *program_ = nullptr;
};

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The first of the largest that is a number; -1: there is none.
inline int choice(const float *logits, int limit) {
  int best = -1;
  for (int i = 0; i < limit; i++)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  return best;
}

// Each greedy logit below the limit is the real one, or an estimate below the largest. Returns how many are estimates.
inline int check_row(const float *greedy, const float *all, int limit) {
  const int expected = choice(all, limit);
  if (!MV_CHECK_EQUAL(choice(greedy, limit), expected)) return 0;
  int estimates = 0, wrong = 0;
  for (int i = 0; i < limit; i++) {
    if (same_bits(greedy[i], all[i])) continue;
    estimates++;
    wrong += expected < 0 || !(greedy[i] < all[expected]);
  }
  MV_CHECK_EQUAL(wrong, 0);
  return estimates;
}

// All rows of a greedy step against those of a plain one. Returns the estimates of all rows.
inline int check_step(Head &head, int count, int limit, bool *was_screened = nullptr, bool begins = false) {
  const std::vector<float> all = head.run(count, 0);
  const int plain_ops = head.ops;
  const std::vector<float> greedy = head.run(count, limit, begins);
  if (was_screened) *was_screened = head.was_screened(plain_ops);
  int estimates = 0;
  for (int r = 0; r < count; r++)
    estimates += check_row(&greedy[size_t(r * head.rows())], &all[size_t(r * head.rows())], std::min(limit, head.rows()));
  return estimates;
}

const int32_t SCREENED[] = {MV_F32, MV_F16, MV_BF16, MV_Q8_0};

}  // namespace mvt
#endif
