#include "batch.h"

#include <algorithm>
#include <utility>

namespace mvt {

Batch::Batch(Random &random, const std::vector<int> &lengths, int block_size, int vocab) : block_size_(block_size) {
  for (int length : lengths) num_blocks_ += (length + block_size - 1) / block_size;
  num_blocks_ += 2;  // two that nobody uses
  const int together = std::vector<int>{1, 4, 16}[size_t(random.below(3))];  // neighbours: kernels read those in one piece
  std::vector<int32_t> starts, order;
  for (int i = 0; i < num_blocks_; i += together) starts.push_back(i);
  for (int i = int(starts.size()) - 1; i > 0; i--) std::swap(starts[size_t(i)], starts[size_t(random.below(i + 1))]);
  for (int32_t start : starts)
    for (int32_t i = start; i < std::min(start + together, num_blocks_); i++) order.push_back(i);
  auto next = order.begin();
  for (int length : lengths) {
    int count = (length + block_size - 1) / block_size;
    tables_.emplace_back(next, next + count);
    next += count;
    tokens_.emplace_back();
    for (int i = 0; i < length; i++) tokens_.back().push_back(random.below(vocab));
  }
}

Step Batch::step(const std::vector<Part> &parts, Outputs outputs) const {
  Step step;
  for (const Part &part : parts)
    step.table_width = std::max(step.table_width, int32_t(tables_[size_t(part.seq)].size()) + 1);
  for (const Part &part : parts) {
    const std::vector<int32_t> &table = tables_[size_t(part.seq)];
    for (int p = part.begin; p < part.end; p++) {
      if (outputs == Outputs::ALL || p == part.end - 1) step.logit_rows.push_back(step.num_tokens());
      step.token_ids.push_back(tokens_[size_t(part.seq)][size_t(p)]);
      step.positions.push_back(p);
      step.slots.push_back(table[size_t(p / block_size_)] * block_size_ + p % block_size_);
    }
    step.query_starts.push_back(step.num_tokens());
    step.seq_lens.push_back(part.end);
    size_t used = size_t((part.end + block_size_ - 1) / block_size_);
    for (size_t i = 0; i < size_t(step.table_width); i++) step.block_tables.push_back(i < used ? table[i] : -1);
  }
  return step;
}

std::vector<std::vector<Part>> Batch::random_schedule(Random &random, int max_tokens) const {
  std::vector<int> done(tokens_.size());
  std::vector<std::vector<Part>> steps;
  for (bool more = true; more;) {
    std::vector<Part> parts;
    int budget = max_tokens;
    more = false;
    for (int seq = 0; seq < num_seqs(); seq++) {
      int &position = done[size_t(seq)], left = length(seq) - position;
      more = more || left > 0;
      if (left == 0 || budget == 0 || random.below(4) == 0) continue;
      int count = std::min({left, budget, random.below(3) == 0 ? 1 : random.between(1, max_tokens)});
      parts.push_back({seq, position, position + count});
      position += count;
      budget -= count;
    }
    if (!parts.empty()) steps.push_back(parts);
  }
  return steps;
}

}  // namespace mvt
