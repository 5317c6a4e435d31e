// The end of a greedy decode step and the beginning of the next one, in one call.
//
// Between two steps all threads but one have nothing to do, and the memory is idle. What has to happen there, choosing tokens and
// moving arrays on, takes a few microseconds here; in Python, whose data a step has just driven out of the caches, forty.
#include <algorithm>
#include <cmath>

#include "mini_vllm.h"
#include "program.h"
#include "sampler.h"

namespace {

constexpr int32_t NONE = -1;  // the sampler's answer where a row has no logit that is a number

void choose(const mv_step &step, const mv_follow &follow) {
  mv_sampler_row greedy = {};
  greedy.num_allowed = -1;
  greedy.top_p = 1;
  greedy.log_min_p = -INFINITY;
  greedy.limit = step.greedy_limit;
  greedy.fallback_id = NONE;
  const int32_t count = step.num_logit_rows, row = 0;
  for (int32_t i = 0; i < count; i++) {
    const mv_logits logits = {follow.logits + i * int64_t(follow.vocab), follow.vocab, &row, 1, follow.vocab};
    mv_sample(nullptr, &logits, &greedy, follow.chosen + i);
  }
}

// Whether all sequences go on, each with a slot for its next token in the block that it has. The runner decides the same for
// tokens that are drawn elsewhere (runner/inputs.py, can_guess; tests/runner/test_executor.py compares the two).
bool goes_on(const mv_step &step, const mv_follow &follow) {
  for (int32_t r = 0; r < step.num_seqs; r++) {
    const int32_t *ends = follow.end_ids + follow.end_starts[r], *last = follow.end_ids + follow.end_starts[r + 1];
    const int32_t position = step.positions[r];
    if (std::find(ends, last, follow.chosen[r]) != last || position + 2 >= follow.max_lens[r] ||
        (position + 1) % follow.block_size == 0)
      return false;
  }
  return true;
}

}  // namespace

extern "C" int32_t mv_program_follow(mv_program *program, const mv_step *step, mv_follow *follow) {
  follow->next_begun = 0;
  if (step->num_tokens != step->num_seqs || step->num_logit_rows != step->num_seqs || step->greedy_limit < 1 ||
      step->num_logit_rows > mv::max_logit_rows(*program))
    return MV_BAD_COUNTS;
  if (!(follow->is_begun && mv_program_end(program, 1) == 1)) {
    if (int32_t status = mv_program_run(program, step)) return status;
  }
  choose(*step, *follow);
  const int32_t count = step->num_seqs;
  if (!follow->may_begin || std::count(follow->chosen, follow->chosen + count, NONE) || !goes_on(*step, *follow)) return MV_OK;
  for (int32_t r = 0; r < count; r++) {
    follow->token_ids[r] = follow->chosen[r];
    follow->positions[r]++, follow->slots[r]++, follow->seq_lens[r]++;
  }
  const int32_t status = mv_program_begin(program, step);
  follow->next_begun = status == MV_OK;
  return status;
}
