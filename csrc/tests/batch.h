// Sequences whose K/V blocks lie scattered over the store, and steps over parts of them.
#ifndef MINI_VLLM_TESTS_BATCH_H
#define MINI_VLLM_TESTS_BATCH_H

#include <vector>

#include "memory.h"
#include "mini_vllm.h"

namespace mvt {

// The arrays of one step. They are copied to memory of exactly their size for the run.
struct Step {
  std::vector<int32_t> token_ids, positions, slots, query_starts{0}, seq_lens, block_tables, logit_rows;
  int32_t table_width = 1, greedy_limit = 0;

  int num_tokens() const { return int(token_ids.size()); }
  int num_seqs() const { return int(seq_lens.size()); }
};

// Positions begin … end - 1 of a sequence.
struct Part {
  int seq, begin, end;
};

enum class Outputs { ALL, LAST };

class Batch {
 public:
  // One sequence of each length; their tokens are random ids below vocab.
  Batch(Random &random, const std::vector<int> &lengths, int block_size, int vocab);

  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  int num_seqs() const { return int(tokens_.size()); }
  int length(int seq) const { return int(tokens_[size_t(seq)].size()); }
  Step step(const std::vector<Part> &parts, Outputs outputs = Outputs::ALL) const;
  // Steps that run through all sequences, in random chunks of at most max_tokens tokens in all.
  std::vector<std::vector<Part>> random_schedule(Random &random, int max_tokens) const;

 private:
  int block_size_, num_blocks_ = 0;
  std::vector<std::vector<int32_t>> tokens_, tables_;
};

}  // namespace mvt
#endif
