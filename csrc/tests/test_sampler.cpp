// The sampler against its definition, written with sorts over the whole row; and row by row the same whatever the batch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "program.h"
#include "sampler.h"

namespace mvt {
namespace {

const float NEVER = -INFINITY;

// Parameters of a row with the arrays they point to.
struct Params {
  mv_sampler_row row = {};
  std::vector<int32_t> allowed, banned, early, bias_ids, seen_ids, seen_counts;
  std::vector<float> bias_values;

  Params(Random &random, int vocab) {
    row.noise_key = random.bits();
    row.position = random.below(1000);
    row.limit = random.below(2) ? vocab : random.between(1, vocab);
    row.num_allowed = -1;
    row.repetition = row.top_p = 1;
    row.log_min_p = NEVER;
    row.fallback_id = random.below(row.limit);
    row.early_until = row.position + random.between(-1, 1);
    if (random.below(4)) temper(random, vocab);
    if (random.below(2)) edit(random, vocab);
  }

  // The record, pointing to this object's arrays.
  mv_sampler_row get() const {
    mv_sampler_row r = row;
    r.allowed = allowed.data();
    r.banned = banned.data();
    r.early = early.data();
    r.bias_ids = bias_ids.data();
    r.bias_values = bias_values.data();
    r.seen_ids = seen_ids.data();
    r.seen_counts = seen_counts.data();
    if (r.num_allowed >= 0) r.num_allowed = int32_t(allowed.size());
    r.num_banned = int32_t(banned.size());
    r.num_early = int32_t(early.size());
    r.num_bias = int32_t(bias_ids.size());
    r.num_seen = int32_t(seen_ids.size());
    return r;
  }

 private:
  void temper(Random &random, int vocab) {
    row.inv_temperature = float(random.uniform() * 3 + 0.2);
    if (random.below(2)) row.top_k = random.between(1, random.below(2) ? 5 : vocab + 3);
    if (random.below(2)) row.top_p = random.uniform();
    if (random.below(3) == 0) row.log_min_p = float(-random.uniform() * 8);
  }
  // Distinct ids, ascending; those beyond the limit must do no harm.
  static std::vector<int32_t> some_ids(Random &random, int vocab, int one_in) {
    std::vector<int32_t> ids;
    for (int i = 0; i < vocab; i++)
      if (random.below(one_in) == 0) ids.push_back(i);
    return ids;
  }
  void edit(Random &random, int vocab) {
    if (random.below(3) == 0) {
      row.num_allowed = 0;
      allowed = some_ids(random, vocab, random.between(1, 40));
    }
    if (random.below(2)) banned = some_ids(random, vocab, 9);
    if (random.below(2)) early = some_ids(random, vocab, 20);
    if (random.below(2)) bias_ids = some_ids(random, vocab, 15);
    for (size_t i = 0; i < bias_ids.size(); i++) bias_values.push_back(float(random.normal() * 3));
    if (random.below(2)) seen_ids = some_ids(random, vocab, 6);
    for (size_t i = 0; i < seen_ids.size(); i++) seen_counts.push_back(random.below(4));
    row.repetition = float(1 + random.uniform());
    row.presence = float(random.normal());
    row.frequency = float(random.normal() / 2);
  }
};

float clean(float x) { return x > NEVER ? std::min(x, 3.402823466e38f) : NEVER; }

std::vector<float> edited(const float *x, int vocab, const mv_sampler_row &p) {
  std::vector<float> out(x, x + vocab);
  for (float &value : out) value = clean(value);
  if (p.num_allowed >= 0)
    for (int i = 0; i < vocab; i++)
      if (!std::binary_search(p.allowed, p.allowed + p.num_allowed, i)) out[size_t(i)] = NEVER;
  for (int i = 0; i < p.num_banned; i++) out[size_t(p.banned[i])] = NEVER;
  for (int i = 0; p.position < p.early_until && i < p.num_early; i++) out[size_t(p.early[i])] = NEVER;
  for (int i = 0; i < p.num_bias; i++) out[size_t(p.bias_ids[i])] += p.bias_values[i];
  for (int i = 0; i < p.num_seen; i++) {
    float &value = out[size_t(p.seen_ids[i])];
    value = value > 0 ? value / p.repetition : value * p.repetition;
    value -= p.frequency * float(p.seen_counts[i]);
    if (p.seen_counts[i] > 0) value -= p.presence;
  }
  for (int i = std::max(0, p.limit); i < vocab; i++) out[size_t(i)] = NEVER;
  return out;
}

// Noise as mini_vllm.sampling.noise defines it.
uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
double gumbel(uint64_t key, int position, int id) {
  uint64_t z = Random(key + 0x9e3779b97f4a7c15u * uint64_t(position)).bits();
  uint32_t bits = mix(mix(uint32_t(id) ^ uint32_t(z)) + uint32_t(z >> 32));
  return -std::log(-std::log1p(-(bits + 0.5) * 0x1p-32));
}

struct Choice {
  int32_t token;
  bool close;  // two tokens are within rounding of each other, or a cut is
};

Choice choose(const float *logits, int vocab, const mv_sampler_row &p) {
  std::vector<float> x = edited(logits, vocab, p);
  float largest = *std::max_element(x.begin(), x.end());
  if (!(largest > NEVER)) return {p.fallback_id, false};
  if (p.inv_temperature == 0) return {int32_t(std::max_element(x.begin(), x.end()) - x.begin()), false};
  std::vector<int> order;
  for (int i = 0; i < vocab; i++) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[size_t(a)] > x[size_t(b)]; });
  for (float &value : x) value = (value - largest) * p.inv_temperature;
  auto weight = [&](int id) { return std::exp(double(x[size_t(id)])); };
  if (p.top_k > 0 && p.top_k < vocab) order.resize(size_t(p.top_k));
  Choice choice = {-1, false};
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    size_t kept = 0;
    for (int id : order) total += weight(id);
    while (kept < order.size() && sum < p.top_p * total) sum += weight(order[kept++]);
    choice.close = std::fabs(sum - p.top_p * total) < 1e-6 * total;
    if (kept > 0) choice.close |= std::fabs(sum - weight(order[kept - 1]) - p.top_p * total) < 1e-6 * total;
    order.resize(kept);
  }
  double best = -INFINITY, second = -INFINITY;
  for (int id : order) {
    float s = x[size_t(id)];
    if (s < p.log_min_p || s < -87) continue;
    double score = s + gumbel(p.noise_key, p.position, id);
    if (score > best) {
      second = best;
      best = score;
      choice.token = id;
    } else {
      second = std::max(second, score);
    }
  }
  choice.close |= best - second < 1e-9;
  return choice;
}

// Rows of logits set apart by NaN, in shuffled order.
struct Logits {
  int vocab, num_rows;
  int64_t stride;
  Bytes memory;
  std::vector<int32_t> rows;

  Logits(Random &random, int v, int n)
      : vocab(v), num_rows(n), stride(v + 3), memory(4 * ((2 * n - 1) * stride + v)) {
    for (int i = 0; i < n; i++) rows.push_back(2 * n - 1 - 2 * i);
    for (int i = 0; i < n; i++) fill(random, row(i), i);
  }
  float *row(int i) const { return reinterpret_cast<float *>(memory.data()) + rows[size_t(i)] * stride; }
  mv_logits view(int first, int count) const {
    return {reinterpret_cast<const float *>(memory.data()), stride, rows.data() + first, count, vocab};
  }

 private:
  void fill(Random &random, float *x, int i) const {
    const double size = i % 3 ? 3 : 30;
    for (int k = 0; k < vocab; k++) x[k] = float(random.normal() * size);
    const float odd[] = {NAN, INFINITY, NEVER, -0.0f, 1e38f, -1e38f};
    for (int k = 0; i % 4 == 0 && k < vocab; k += 7) x[k] = odd[random.below(i % 8 ? 6 : 4)];
    for (int k = 0; i % 5 == 0 && k < vocab; k++) x[k] = std::round(x[k]);  // ties
    for (int k = 0; i % 11 == 10 && k < vocab; k++) x[k] = i % 2 ? NAN : NEVER;
  }
};

const int VOCABS[] = {1, 15, 64, 65, 200, 1000};

// How a sampler's call is split over rows and threads.
void sample_in_pieces(const Logits &logits, const std::vector<mv_sampler_row> &records, mv_team *team, int piece,
                      std::vector<int32_t> &tokens) {
  for (int first = 0; first < logits.num_rows; first += piece) {
    int count = std::min(piece, logits.num_rows - first);
    mv_logits view = logits.view(first, count);
    mv_sample(team, &view, records.data() + first, tokens.data() + first);
  }
}

}  // namespace

MV_TEST(tokens_follow_the_definition) {
  int close = 0;
  for (int round = 0; round < context.rounds; round++) {
    Random random(context.seed * 31 + uint64_t(round));
    const int vocab = VOCABS[round % 6];
    const Logits logits(random, vocab, 33);
    std::vector<Params> params;
    std::vector<mv_sampler_row> records;
    for (int i = 0; i < 33; i++) params.emplace_back(random, vocab);
    for (const Params &p : params) records.push_back(p.get());
    std::vector<int32_t> alone(33, -7);
    sample_in_pieces(logits, records, nullptr, 1, alone);
    for (int i = 0; i < 33; i++) {
      Choice choice = choose(logits.row(i), vocab, records[size_t(i)]);
      trying("round %d, vocabulary of %d, row %d", round, vocab, i);
      close += choice.close;
      if (!choice.close) MV_CHECK_EQUAL(alone[size_t(i)], choice.token);
    }
    for (int threads : {1, 2, 3}) {
      const TeamHandle team(threads);
      for (int piece : {33, 8, 1}) {
        std::vector<int32_t> together(33, -7);
        sample_in_pieces(logits, records, team.team, piece, together);
        MV_CHECK(together == alone);
      }
    }
  }
  MV_CHECK(close <= context.rounds);  // else the comparison says little
}

// Many draws from one row, so that tokens at the edge of what may be drawn come up too.
MV_TEST(draws_at_the_edges_follow_the_definition) {
  const int vocab = 300, num_draws = 200;
  for (int round = 0; round < context.rounds; round++) {
    Random random(context.seed * 41 + uint64_t(round));
    Logits logits(random, vocab, 1);
    for (int k = 0; k < vocab; k++) logits.row(0)[k] = float(random.normal());
    logits.rows.assign(num_draws, logits.rows[0]);
    mv_sampler_row row = Params(random, vocab).row;
    row.num_allowed = -1;
    row.inv_temperature = float(0.2 + random.uniform());
    row.top_k = round % 2 ? random.between(1, 40) : 0;
    row.top_p = round % 3 ? random.uniform() : 1;
    std::vector<mv_sampler_row> records(num_draws, row);
    for (int i = 0; i < num_draws; i++) records[size_t(i)].position = i;
    std::vector<int32_t> tokens(num_draws, -7);
    const mv_logits view = logits.view(0, num_draws);
    mv_sample(nullptr, &view, records.data(), tokens.data());
    trying("round %d, top_k %d, top_p %g, limit %d", round, row.top_k, row.top_p, row.limit);
    for (int i = 0; i < num_draws; i++) {
      Choice choice = choose(logits.row(0), vocab, records[size_t(i)]);
      if (!choice.close && !MV_CHECK_EQUAL(tokens[size_t(i)], choice.token)) break;
    }
  }
}

namespace {

// What mv_score writes, poisoned.
struct Scores {
  int most;
  std::vector<float> logprobs, top_logprobs;
  std::vector<int32_t> ranks, top_ids;

  Scores(int num_rows, int max_count)
      : most(max_count),
        logprobs(size_t(num_rows), NAN),
        top_logprobs(size_t(num_rows * max_count), NAN),
        ranks(size_t(num_rows), -7),
        top_ids(size_t(num_rows * max_count), -7) {}
  void run(const Logits &logits, const std::vector<int32_t> &tokens, const std::vector<int32_t> &counts, int limit,
           mv_team *team, int first, int count) {
    mv_scores s = {tokens.data() + first, counts.data() + first, most, limit, -9999,
                   logprobs.data() + first, ranks.data() + first, top_ids.data() + first * most,
                   top_logprobs.data() + first * most};
    mv_logits view = logits.view(first, count);
    mv_score(team, &view, &s);
  }
  bool operator==(const Scores &other) const {
    auto same = [](const std::vector<float> &a, const std::vector<float> &b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(logprobs, other.logprobs) && same(top_logprobs, other.top_logprobs) && ranks == other.ranks &&
           top_ids == other.top_ids;
  }
};

void check_scores(const Logits &logits, int i, int limit, int32_t token, int count, const Scores &scores) {
  std::vector<double> x;
  for (int k = 0; k < logits.vocab; k++) x.push_back(clean(logits.row(i)[k]));
  const int32_t *ids = scores.top_ids.data() + i * scores.most;
  double largest = *std::max_element(x.begin(), x.end()), sum = 0;
  if (!(largest > NEVER)) {
    MV_CHECK_EQUAL(scores.logprobs[size_t(i)], -9999);
    for (int k = 0; k < scores.most; k++) MV_CHECK_EQUAL(ids[k], -1);
    return;
  }
  for (double value : x) sum += std::exp(value - largest);
  auto logprob = [&](int id) { return std::max(x[size_t(id)] - largest - std::log(sum), -9999.0); };
  // x - (largest + log sum): of huge logits the last digits are lost.
  auto near = [&](double got, double expected) {
    return std::fabs(got - expected) <= 2e-6 * (1 + std::fabs(expected)) + 1e-15 * std::fabs(largest);
  };
  MV_CHECK(near(scores.logprobs[size_t(i)], logprob(token)));
  int rank = 1;
  for (int k = 0; k < limit; k++) rank += x[size_t(k)] > x[size_t(token)] || (x[size_t(k)] == x[size_t(token)] && k < token);
  MV_CHECK_EQUAL(scores.ranks[size_t(i)], rank);
  std::vector<int> order;
  for (int k = 0; k < limit; k++) order.push_back(k);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[size_t(a)] > x[size_t(b)]; });
  for (int k = 0; k < scores.most; k++) {
    if (!MV_CHECK_EQUAL(ids[k], k < std::min(count, limit) ? order[size_t(k)] : -1)) return;
    if (ids[k] >= 0) MV_CHECK(near(scores.top_logprobs[size_t(i * scores.most + k)], logprob(ids[k])));
  }
}

}  // namespace

MV_TEST(logprobs_follow_the_definition) {
  for (int round = 0; round < context.rounds; round++) {
    Random random(context.seed * 37 + uint64_t(round));
    const int vocab = VOCABS[round % 6], limit = random.below(2) ? vocab : random.between(1, vocab), most = 8;
    const Logits logits(random, vocab, 33);
    std::vector<int32_t> tokens, counts;
    for (int i = 0; i < 33; i++) tokens.push_back(random.below(vocab));
    for (int i = 0; i < 33; i++) counts.push_back(random.between(0, most));
    Scores alone(33, most);
    for (int i = 0; i < 33; i++) alone.run(logits, tokens, counts, limit, nullptr, i, 1);
    for (int i = 0; i < 33; i++) {
      trying("round %d, %d of %d ids, row %d", round, limit, vocab, i);
      check_scores(logits, i, limit, tokens[size_t(i)], counts[size_t(i)], alone);
    }
    for (int threads : {1, 2, 3}) {
      const TeamHandle team(threads);
      Scores together(33, most);
      together.run(logits, tokens, counts, limit, team.team, 0, 33);
      MV_CHECK(together == alone);
    }
  }
}

// The likeliest ids lie beyond the limit, in the block that the limit cuts.
MV_TEST(alternatives_are_listed_although_larger_logits_lie_beyond_the_limit) {
  Random random(context.seed);
  const Logits logits(random, 130, 1);
  for (int k = 0; k < 130; k++) logits.row(0)[k] = k < 70 ? float(k % 7) : 100;
  for (int count : {1, 2, 8}) {
    trying("%d alternatives", count);
    Scores scores(1, 8);
    scores.run(logits, {3}, {count}, 70, nullptr, 0, 1);
    check_scores(logits, 0, 70, 3, count, scores);
  }
}

// Each block of the row holds one of the likeliest ids.
MV_TEST(alternatives_are_found_in_every_block) {
  Random random(context.seed);
  const Logits logits(random, 1000, 1);
  for (int k = 0; k < 1000; k++) logits.row(0)[k] = k % 64 == 5 ? float(100 + k * 7 % 15) : float(-k);
  for (int count : {1, 2, 7, 8}) {
    trying("%d alternatives", count);
    Scores scores(1, 8);
    scores.run(logits, {3}, {count}, 1000, nullptr, 0, 1);
    check_scores(logits, 0, 1000, 3, count, scores);
  }
}

}  // namespace mvt
