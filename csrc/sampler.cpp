// Tokens and logprobs from rows of logits.
//
//   edits (mask, bias, penalties) -> greedy, or: s = (x - max) / T <= 0 -> top-k -> top-p -> min-p -> draw
//
// The draw is argmax of s + Gumbel noise, noise = -log(E) with E = -log u exponential. It is run as a race: the smallest
// E / e^s wins, and as E >= 1 - u, most tokens are out without a logarithm.
//
// Top-p needs no sort: the race is run first, and only then is it asked whether the winner belongs to the nucleus, that is,
// whether all that come before it weigh less than p of the total. If not (one time in 1 / (1 - p)), nothing after the winner
// belongs to it either, and those before it run again.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "control_word.h"
#include "sampler_passes.h"
#include "team.h"

namespace mv {
namespace {

struct Candidate {
  float s, weight;  // weight: e^s
  int32_t id;
};
// Falling; of equals the lowest id first.
inline bool before(const Candidate &a, const Candidate &b) { return a.s != b.s ? a.s > b.s : a.id < b.id; }

// Memory that a thread keeps from row to row.
struct Scratch {
  std::vector<float> edited, maxima, ranked_maxima, weights;
  std::vector<Candidate> candidates;
};

// Looks at x, or at a clean copy of it.
RowView view(const float *x, int n, float scale, Scratch &scratch) {
  scratch.maxima.resize(size_t(n / BLOCK + 1));
  bool dirty = false;
  float largest = sampler_passes().block_maxima(x, n, scratch.maxima.data(), &dirty);
  if (dirty) {
    scratch.edited.resize(size_t(n));
    for (int i = 0; i < n; i++) scratch.edited[size_t(i)] = clean(x[i]);
    x = scratch.edited.data();
    largest = sampler_passes().block_maxima(x, n, scratch.maxima.data(), &dirty);
  }
  return {x, n, scratch.maxima.data(), largest, scale};
}

bool has_edits(const mv_sampler_row &row) {
  return row.grammar != nullptr || row.num_allowed >= 0 || row.num_banned || row.num_bias || row.num_seen ||
         (row.num_early && row.position < row.early_until);
}

float penalised(float x, int count, const mv_sampler_row &row) {
  x = x > 0 ? x / row.repetition : x * row.repetition;
  x = std::min(x, FLOAT_MAX);
  x = x - row.frequency * float(count);
  return count > 0 ? x - row.presence : x;
}

// Tokens that the grammar does not allow are out, 32 at a time.
void obey(const uint32_t *grammar, int n, float *out) {
  for (int first = 0; first < n; first += 32) {
    const uint32_t bits = grammar[first / 32];
    const int count = std::min(32, n - first);
    if (bits == 0) {
      std::fill(out + first, out + first + count, NEVER);
    } else if (bits != ~0u) {
      for (int i = 0; i < count; i++)
        if (!(bits >> i & 1)) out[first + i] = NEVER;
    }
  }
}

const float *edit(const float *x, int n, int vocab, const mv_sampler_row &row, std::vector<float> &out) {
  out.resize(size_t(vocab));  // ids from the limit n on may be named too
  if (row.num_allowed >= 0) {
    std::fill(out.begin(), out.end(), NEVER);
    for (int i = 0; i < row.num_allowed; i++) out[row.allowed[i]] = clean(x[row.allowed[i]]);
  } else {
    for (int i = 0; i < n; i++) out[i] = clean(x[i]);
  }
  if (row.grammar != nullptr) obey(row.grammar, n, out.data());
  for (int i = 0; i < row.num_banned; i++) out[row.banned[i]] = NEVER;
  if (row.position < row.early_until)
    for (int i = 0; i < row.num_early; i++) out[row.early[i]] = NEVER;
  for (int i = 0; i < row.num_bias; i++) out[row.bias_ids[i]] += row.bias_values[i];
  for (int i = 0; i < row.num_seen; i++) {
    float &logit = out[row.seen_ids[i]];
    logit = penalised(logit, row.seen_counts[i], row);
  }
  return out.data();
}

int first_largest(const RowView &row) {
  int block = 0;
  while (row.maxima[block] != row.largest) block++;
  int i = block * BLOCK;
  while (row.x[i] != row.largest) i++;
  return i;
}

// The `count` first candidates by `before` with s >= lowest, in order. As many blocks hold a candidate as large as the
// count-th largest block maximum, so nothing below that is looked at.
void select_top(const RowView &row, int count, float lowest, Scratch &scratch) {
  std::vector<Candidate> &out = scratch.candidates;
  out.clear();
  float floor = lowest;
  if (count < row.num_blocks()) {
    std::vector<float> &ranked = scratch.ranked_maxima;
    ranked.assign(row.maxima, row.maxima + row.num_blocks());
    std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<float>());
    floor = std::max(floor, row.s_of(ranked[size_t(count - 1)]));
  }
  for (int block = 0; block < row.num_blocks(); block++) {
    if (!(row.s_of(row.maxima[block]) >= floor)) continue;
    for (int i = block * BLOCK; i < row.block_end(block); i++) {
      float s = row.s(i);
      if (s >= floor) out.push_back({s, exp_nonpositive(s), i});
    }
  }
  if (out.size() > size_t(count)) {
    std::nth_element(out.begin(), out.begin() + (count - 1), out.end(), before);
    out.resize(size_t(count));
  }
  std::sort(out.begin(), out.end(), before);
}

// Keeps the shortest prefix of sorted candidates whose weights reach `target`.
void cut_nucleus(std::vector<Candidate> &candidates, double target) {
  double sum = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || sum < target)) sum += double(candidates[count++].weight);
  candidates.resize(count);
}

NoiseKey position_key(uint64_t noise_key, int32_t position) {
  uint64_t z = noise_key + 0x9e3779b97f4a7c15u * (uint64_t(position) + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return {uint32_t(z), uint32_t(z >> 32)};
}

// The best of s + noise so far; ties go to the lowest id.
struct Race {
  NoiseKey key;
  float lowest;  // what s must reach to take part
  double score = -INFINITY;
  int32_t id = -1;
  float s = NEVER;  // of the best
  float bound = INFINITY;

  // Only a token with E / weight < e^-score can win, and E >= bits / 2^32; the factor covers rounding.
  bool contends(uint32_t bits, float weight) const { return float(bits >> 8) <= weight * (bound * 0x1p24f); }

  void enter(const Candidate &candidate) {
    uint32_t bits = token_bits(key, uint32_t(candidate.id));
    if (!(candidate.s >= lowest) || !contends(bits, candidate.weight)) return;
    double value = double(candidate.s) - std::log(-std::log1p(-(double(bits) + 0.5) * 0x1p-32));
    if (value > score || (value == score && candidate.id < id)) {
      score = value;
      id = candidate.id;
      s = candidate.s;
      bound = float(std::exp(-score) * 1.0001);
    }
  }
};

// The winner among all tokens of the row that come before `end`.
Race run_race(const RowView &row, const float *weights, Race race, const Candidate &end) {
  auto enter = [&](int i) {
    const Candidate candidate = {row.s(i), weights[i], i};
    if (before(candidate, end)) race.enter(candidate);
  };
  enter(first_largest(row));  // which is likely to win: most others are out at once
  for (int block = 0;; block++) {
    block = sampler_passes().next_contender(row, weights, race.key, race.bound, race.lowest, block);
    if (block < 0) return race;
    for (int i = block * BLOCK; i < row.block_end(block); i++) enter(i);
  }
}

// What s must reach to be of the nucleus: all n tokens below it together cannot weigh 1 - p of the total.
float nucleus_floor(double top_p, double total, int n) { return float(std::log((1 - top_p) * total / n)) - 0.01f; }

int32_t draw_from_row(const RowView &row, double top_p, Race race, Scratch &scratch) {
  const Passes &passes = sampler_passes();
  scratch.weights.resize(size_t(row.num_blocks()) * BLOCK);
  float *weights = scratch.weights.data();
  const double total = passes.exp_weights(row, weights);
  if (top_p < 1) race.lowest = std::max(race.lowest, nucleus_floor(top_p, total, row.n));
  for (Candidate end = {NEVER, 0, row.n};;) {
    const Race won = run_race(row, weights, race, end);
    if (top_p >= 1) return won.id;
    double sum = passes.sum_before(row, weights, won.s, won.id);
    if (sum == 0 || sum < top_p * total) return won.id;
    end = {won.s, 0, won.id};
  }
}

int32_t draw_from(const std::vector<Candidate> &candidates, Race race) {
  for (const Candidate &candidate : candidates) race.enter(candidate);
  return race.id;
}

int32_t sample_row(const float *logits, int vocab, const mv_sampler_row &params, Scratch &scratch) {
  const int n = std::min(vocab, params.limit);
  const float *x = has_edits(params) ? edit(logits, n, vocab, params, scratch.edited) : logits;
  RowView row = view(x, n, params.inv_temperature, scratch);
  if (!(row.largest > NEVER)) return params.fallback_id;
  if (params.inv_temperature == 0) return first_largest(row);
  Race race{position_key(params.noise_key, params.position), std::max(EXP_FLOOR, params.log_min_p)};
  if (params.top_k <= 0 || params.top_k >= vocab) return draw_from_row(row, params.top_p, race, scratch);
  std::vector<Candidate> &candidates = scratch.candidates;
  select_top(row, params.top_k, EXP_FLOOR, scratch);
  double total = 0;
  for (const Candidate &candidate : candidates) total += double(candidate.weight);
  if (params.top_p < 1) cut_nucleus(candidates, params.top_p * total);
  return draw_from(candidates, race);
}

// 1 + how many ids come before this one.
int rank_of(const RowView &row, float logit, int32_t id) {
  int rank = 1;
  for (int block = 0; block < row.num_blocks(); block++) {
    if (!(row.maxima[block] >= logit)) continue;
    for (int i = block * BLOCK; i < row.block_end(block); i++) {
      float x = row.x[i];
      rank += int(x > logit) + int(x == logit && i < id);
    }
  }
  return rank;
}

void score_row(const float *x, int vocab, const mv_scores &scores, int index, Scratch &scratch) {
  const int32_t token = scores.token_ids[index], limit = std::min(scores.limit, vocab);
  float *top_logprobs = scores.top_logprobs + int64_t(index) * scores.max_count;
  int32_t *top_ids = scores.top_ids + int64_t(index) * scores.max_count;
  scores.ranks[index] = 1;
  scores.logprobs[index] = scores.floor;
  RowView whole = view(x, vocab, 1.0f, scratch);
  if (!(whole.largest > NEVER)) {
    std::fill(top_ids, top_ids + scores.max_count, -1);
    return;
  }
  scratch.weights.resize(size_t(whole.num_blocks()) * BLOCK);
  const double sum = sampler_passes().exp_weights(whole, scratch.weights.data());
  const double log_sum = double(whole.largest) + std::log(sum);
  auto logprob = [&](float logit) { return float(std::max(double(logit) - log_sum, double(scores.floor))); };
  const float chosen = whole.x[token];
  scores.logprobs[index] = logprob(chosen);
  // Ranks and alternatives are by the logits themselves, s = x - 0, of ids below the limit; so the limit's block has
  // the maximum of those.
  if (limit % BLOCK) {
    const float *begin = whole.x + limit / BLOCK * BLOCK;
    scratch.maxima[size_t(limit / BLOCK)] = *std::max_element(begin, whole.x + limit);
  }
  const RowView known = {whole.x, limit, whole.maxima, 0, 1.0f};
  scores.ranks[index] = rank_of(known, chosen, token);
  const int count = std::min(scores.counts[index], limit);
  scratch.candidates.clear();
  if (count > 0) select_top(known, count, NEVER, scratch);
  for (int i = 0; i < scores.max_count; i++) {
    bool listed = i < int(scratch.candidates.size());
    top_ids[i] = listed ? scratch.candidates[size_t(i)].id : -1;
    top_logprobs[i] = listed ? logprob(scratch.candidates[size_t(i)].s) : 0;
  }
}

// A call, as the team sees it: one op whose units are rows.
struct Call {
  const mv_logits *logits;
  const mv_sampler_row *params;
  int32_t *token_ids;
  const mv_scores *scores;

  void run(int64_t begin, int64_t end) const {
    ControlWord mode;
    thread_local Scratch scratch;
    for (int64_t i = begin; i < end; i++) {
      const float *x = logits->data + logits->rows[i] * logits->stride;
      if (scores != nullptr)
        score_row(x, logits->vocab, *scores, int(i), scratch);
      else
        token_ids[i] = sample_row(x, logits->vocab, params[i], scratch);
    }
  }
};

void run_call(mv_team *team, const Call &call) {
  const int32_t num_rows = call.logits->num_rows;
  if (team == nullptr || num_rows < 2) {
    call.run(0, num_rows);
    return;
  }
  static const KernelTable table = [] {
    KernelTable rows = {};
    rows.kernels[0].units = [](const mv_op &, const StepView &step) { return int64_t(step.in.num_seqs); };
    rows.kernels[0].run = [](const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
      reinterpret_cast<const Call *>(op.x)->run(begin, end);
    };
    rows.kernels[0].grain = 1;
    return rows;
  }();
  mv_op op = {};
  op.x = reinterpret_cast<const float *>(&call);
  StepView step = {};
  step.in.num_seqs = num_rows;
  team->team.run(Job{&table, &op, 1, &step, nullptr, 0});
}

}  // namespace
}  // namespace mv

extern "C" int32_t mv_sampler_row_bytes(void) { return int32_t(sizeof(mv_sampler_row)); }

extern "C" void mv_sample(mv_team *team, const mv_logits *logits, const mv_sampler_row *params, int32_t *token_ids) {
  mv::run_call(team, {logits, params, token_ids, nullptr});
}

extern "C" void mv_score(mv_team *team, const mv_logits *logits, const mv_scores *scores) {
  mv::run_call(team, {logits, nullptr, nullptr, scores});
}
