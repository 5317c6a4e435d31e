// Greedy steps that follow each other in the library: tokens of plain steps, and the next one begun just when it may be.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "models.h"

namespace mvt {
namespace {

constexpr int SEQS = 3, LENGTH = 40, BLOCK_SIZE = 8, VOCAB = 80;

struct Setup {
  explicit Setup(const Context &context, int threads)
      : random(context.seed), team(threads), model(weights, context.isa, team, batch, LIMITS),
        plain(weights, context.isa, team, batch, LIMITS) {}
  static constexpr mv_limits LIMITS = {SEQS * LENGTH, SEQS, SEQS, VOCAB, MODEL_POSITIONS, 0};

  // Every sequence at a position, with these tokens.
  Step at(const std::vector<int> &positions, const std::vector<int32_t> &tokens) const {
    std::vector<Part> parts;
    for (int r = 0; r < SEQS; r++) parts.push_back({r, positions[size_t(r)], positions[size_t(r)] + 1});
    Step step = batch.step(parts);
    step.token_ids = tokens;
    step.greedy_limit = VOCAB;
    return step;
  }
  std::vector<int32_t> choices(const Step &step) {
    Step all = step;
    all.greedy_limit = 0;
    MV_CHECK_EQUAL(plain.program.run(all), MV_OK);
    std::vector<int32_t> found;
    for (int r = 0; r < SEQS; r++) {
      const float *logits = plain.logits.data + r * plain.logits.stride;
      found.push_back(int32_t(std::max_element(logits, logits + VOCAB) - logits));
    }
    return found;
  }

  Random random;
  const Weights weights{random, ModelShape{false, true, MV_F32, MV_F32, 2, 64, 4, 2, 16, 60, VOCAB, 0, 0, false}};
  const Batch batch{random, {LENGTH, LENGTH, LENGTH}, BLOCK_SIZE, VOCAB};
  const TeamHandle team;
  Model model, plain;
};

// A step's arrays and what the library is told of them.
struct Following {
  Following(Step &s, Setup &setup, const std::vector<int32_t> &lens, const std::vector<int32_t> &ids, const std::vector<int32_t> &starts)
      : step{SEQS, SEQS, SEQS, s.table_width, s.token_ids.data(), s.positions.data(), s.slots.data(), s.query_starts.data(),
             s.seq_lens.data(), s.block_tables.data(), s.logit_rows.data(), s.greedy_limit, 0},
        follow{setup.model.logits.data, int32_t(setup.model.logits.stride), BLOCK_SIZE, 0, 1, -1, 0, lens.data(), ids.data(), starts.data(),
               s.token_ids.data(), s.positions.data(), s.slots.data(), s.seq_lens.data(), chosen} {}
  int32_t chosen[SEQS] = {-7, -7, -7};
  mv_step step;
  mv_follow follow;
};

}  // namespace

MV_TEST(greedy_steps_follow_each_other) {
  for (int threads : {1, 2, 3}) {
    Setup setup(context, threads);
    for (int round = 0; round < context.rounds; round++) {
      std::vector<int> positions;
      std::vector<int32_t> tokens, lens, ids, starts{0};
      std::vector<Part> prompts;
      for (int r = 0; r < SEQS; r++) {
        positions.push_back(setup.random.between(1, 12));
        prompts.push_back({r, 0, positions.back()});
        tokens.push_back(setup.random.below(VOCAB));
        lens.push_back(positions.back() + setup.random.between(8, 30));
        for (int i = setup.random.below(3); i > 0; i--) ids.push_back(setup.random.below(VOCAB));
        starts.push_back(int32_t(ids.size()));
      }
      const Step prompt = setup.batch.step(prompts, Outputs::LAST);
      MV_CHECK_EQUAL(setup.plain.program.run(prompt), MV_OK);
      MV_CHECK_EQUAL(setup.model.program.run(prompt), MV_OK);
      Step step = setup.at(positions, tokens);
      Following told(step, setup, lens, ids, starts);
      for (int count = 0; count < 20; count++) {
        trying("%d threads, round %d, step %d", threads, round, count);
        const std::vector<int32_t> expected = setup.choices(setup.at(positions, tokens));
        told.follow.may_begin = setup.random.below(5) > 0;
        if (!MV_CHECK_EQUAL(setup.model.program.follow(told.step, told.follow), MV_OK)) return;
        bool goes_on = told.follow.may_begin, ends = false;
        for (int r = 0; r < SEQS; r++) {
          MV_CHECK_EQUAL(told.chosen[r], expected[size_t(r)]);
          const bool last = positions[size_t(r)] + 2 >= lens[size_t(r)] ||
                            std::count(ids.begin() + starts[size_t(r)], ids.begin() + starts[size_t(r) + 1], expected[size_t(r)]);
          ends = ends || last || positions[size_t(r)] + 2 > LENGTH;
          goes_on = goes_on && !last && (positions[size_t(r)] + 1) % BLOCK_SIZE;
          positions[size_t(r)]++;
        }
        MV_CHECK_EQUAL(told.follow.next_begun, goes_on);
        if (ends) break;
        tokens = expected;
        const Step next = setup.at(positions, tokens);
        if (told.follow.next_begun) {
          MV_CHECK(step.token_ids == next.token_ids && step.positions == next.positions && step.slots == next.slots);
          MV_CHECK(step.seq_lens == next.seq_lens);
          if (setup.random.below(6) == 0) setup.model.program.drop();  // then the next call runs it
        } else {
          std::copy(next.token_ids.begin(), next.token_ids.end(), step.token_ids.begin());
          std::copy(next.positions.begin(), next.positions.end(), step.positions.begin());
          std::copy(next.slots.begin(), next.slots.end(), step.slots.begin());
          std::copy(next.seq_lens.begin(), next.seq_lens.end(), step.seq_lens.begin());
          std::copy(next.block_tables.begin(), next.block_tables.end(), step.block_tables.begin());
        }
        told.follow.is_begun = told.follow.next_begun;
      }
      setup.model.program.drop();
    }
  }
}

MV_TEST(steps_that_cannot_follow) {
  Setup setup(context, 2);
  const std::vector<int32_t> lens(SEQS, 100), ids(1, 0), starts(SEQS + 1, 0);
  Step step = setup.at({0, 0, 0}, {1, 2, 3});
  {
    trying("no limit");
    Following told(step, setup, lens, ids, starts);
    told.step.greedy_limit = 0;
    MV_CHECK_EQUAL(setup.model.program.follow(told.step, told.follow), MV_BAD_COUNTS);
    told.step.greedy_limit = VOCAB;
    told.step.num_logit_rows = SEQS - 1;
    MV_CHECK_EQUAL(setup.model.program.follow(told.step, told.follow), MV_BAD_COUNTS);
    MV_CHECK_EQUAL(told.follow.next_begun, 0);
  }
  {
    trying("more sequences than the program has logits for");
    Model narrow(setup.weights, context.isa, setup.team, setup.batch, {SEQS * LENGTH, SEQS, SEQS - 1, VOCAB, MODEL_POSITIONS, 0});
    Following told(step, setup, lens, ids, starts);
    MV_CHECK_EQUAL(narrow.program.follow(told.step, told.follow), MV_BAD_COUNTS);
  }
  {
    trying("a bad token");
    step.token_ids[1] = VOCAB;
    Following told(step, setup, lens, ids, starts);
    MV_CHECK_EQUAL(setup.model.program.follow(told.step, told.follow), MV_BAD_TOKEN);
    step.token_ids[1] = 2;
  }
  {
    trying("logits that are not numbers");
    Following told(step, setup, lens, ids, starts);
    std::vector<float> nothing(size_t(SEQS * setup.model.logits.stride), std::numeric_limits<float>::quiet_NaN());
    told.follow.logits = nothing.data();
    MV_CHECK_EQUAL(setup.model.program.follow(told.step, told.follow), MV_OK);
    MV_CHECK_EQUAL(told.chosen[0], -1);
    MV_CHECK_EQUAL(told.follow.next_begun, 0);
    MV_CHECK_EQUAL(step.positions[0], 0);
  }
}

}  // namespace mvt
