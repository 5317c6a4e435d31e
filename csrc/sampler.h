// The C interface of the sampler: tokens and logprobs from rows of logits, row by row.
//
// A row's result never depends on other rows, on how many there are, or on threads. The same choices, to the last bit,
// as mini_vllm.sampling.transforms, which is the reference and the documentation.
#ifndef MINI_VLLM_SAMPLER_H
#define MINI_VLLM_SAMPLER_H

#include "mini_vllm.h"

#ifdef __cplusplus
extern "C" {
#endif

// One row's parameters: mini_vllm.sampling.state.ROW_RECORD, field by field.
typedef struct mv_sampler_row {
  uint64_t noise_key;
  const int32_t *allowed;  // ascending
  const int32_t *banned, *early;
  const int32_t *bias_ids;
  const float *bias_values;
  const int32_t *seen_ids, *seen_counts;  // what penalties look at; count 0: in the prompt only
  const uint32_t *grammar;                // bit i % 32 of word i / 32: token i may be chosen; NULL: all may
  double top_p;                           // 1: off
  int32_t num_allowed;                    // -1: all
  int32_t num_banned, num_early, num_bias, num_seen;
  int32_t early_until;  // positions below it mask the early tokens
  float repetition, presence, frequency;
  float inv_temperature;  // 0: greedy
  float log_min_p;        // -inf: off
  int32_t top_k;          // 0: off
  int32_t limit;          // ids at or above it are never chosen
  int32_t fallback_id;    // when nothing can be chosen
  int32_t position;       // of the token being chosen
  int32_t padding;
} mv_sampler_row;

// Rows of logits: row i is data + rows[i] * stride, vocab floats.
typedef struct mv_logits {
  const float *data;
  int64_t stride;
  const int32_t *rows;
  int32_t num_rows;
  int32_t vocab;
} mv_logits;

MV_EXPORT int32_t mv_sampler_row_bytes(void);  // checks the binding

// The next token of each row. Every id in params must lie below vocab. team may be NULL: on the calling thread.
MV_EXPORT void mv_sample(mv_team *team, const mv_logits *logits, const mv_sampler_row *params, int32_t *token_ids);

// Log-probability and rank (1 = likeliest) of token_ids[i] in row i, and the counts[i] likeliest ids below limit with
// theirs, written to row i of top_ids, top_logprobs [num_rows, max_count]. Values below floor are floor.
typedef struct mv_scores {
  const int32_t *token_ids, *counts;
  int32_t max_count, limit;
  float floor;
  float *logprobs;
  int32_t *ranks, *top_ids;
  float *top_logprobs;
} mv_scores;
MV_EXPORT void mv_score(mv_team *team, const mv_logits *logits, const mv_scores *scores);

#ifdef __cplusplus
}
#endif
#endif
