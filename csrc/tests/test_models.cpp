// Whole models, random ones, through random schedules: every op against the reference, and every bit of the logits the
// same for any number of rows, threads, chunks and neighbours.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "check.h"
#include "models.h"
#include "reference.h"

namespace mvt {
namespace {

typedef std::map<std::pair<int, int>, std::vector<float>> Results;  // by sequence and position

std::vector<float> copy_row(const Activation &x, int row) {
  const float *begin = x.data + row * x.stride;
  return std::vector<float>(begin, begin + x.width);
}

// Hidden states and logits of a step's rows, which may need several calls of the head.
void collect(Model &model, const std::vector<Part> &parts, int num_rows, Results &results) {
  const int most = model.program.limits().max_logit_rows;
  std::vector<std::vector<float>> rows;
  for (int first = 0; first < num_rows; first += most) {
    int count = std::min(most, num_rows - first);
    if (num_rows > most) MV_CHECK_EQUAL(model.program.logits(first, count), MV_OK);
    for (int i = 0; i < count; i++) {
      rows.push_back(copy_row(model.hidden, first + i));
      std::vector<float> logits = copy_row(model.logits, i);
      rows.back().insert(rows.back().end(), logits.begin(), logits.end());
    }
  }
  size_t row = 0;
  for (const Part &part : parts)
    for (int p = part.begin; p < part.end; p++) results[{part.seq, p}] = rows[row++];
}

// Runs a model through a schedule.
Results run_schedule(Model &model, const Batch &batch, const std::vector<std::vector<Part>> &schedule, Mirror *mirror) {
  Results results;
  for (const std::vector<Part> &parts : schedule) {
    Step step = batch.step(parts);
    if (!MV_CHECK_EQUAL(model.program.run(step), MV_OK)) break;
    if (mirror && !check_run(model.program, step, *mirror)) break;
    collect(model, parts, step.num_tokens(), results);
  }
  return results;
}

void try_shape(const ModelShape &s, int round, uint64_t seed) {
  trying("round %d, seed %llu: %s %s, store %s, %d layers, hidden %d, %d/%d heads of %d, window %d", round,
         (unsigned long long)seed, s.gpt2 ? "gpt2" : "llama", format_of(s.format).name, format_of(s.store_format).name,
         s.layers, s.hidden, s.num_heads, s.num_kv_heads, s.head_dim, s.window);
}

mv_limits limits_of(const Batch &batch, const ModelShape &shape, int max_tokens, int max_logit_rows) {
  return {max_tokens, batch.num_seqs(), max_logit_rows, shape.vocab, MODEL_POSITIONS};
}

}  // namespace

MV_TEST(random_models_follow_the_reference) {
  for (int round = 0; round < context.rounds; round++) {
    Random random(context.seed * 7919 + uint64_t(round));
    const ModelShape shape = random_shape(random);
    try_shape(shape, round, context.seed);
    std::vector<int> lengths;
    for (int i = random.between(1, 4); i > 0; i--) lengths.push_back(random.between(1, 60));
    const Weights weights(random, shape);
    const Batch batch(random, lengths, std::vector<int>{1, 7, 16}[size_t(random.below(3))], shape.vocab);
    const TeamHandle team(random.between(1, 3));
    Model model(weights, context.isa, team, batch, limits_of(batch, shape, 40, random.between(1, 40)));
    Mirror mirror(model.store.shape);
    run_schedule(model, batch, batch.random_schedule(random, 40), &mirror);
  }
}

MV_TEST(models_have_the_same_bits_for_any_rows_threads_and_chunks) {
  for (const Format &format : formats()) {
    Random random(context.seed + uint64_t(format.id));
    ModelShape shape = random_shape(random);
    shape = {format.id == MV_F16, false, format.id, MV_BF16, 2, 96, 6, 2, 32, 160, 70, format.id == MV_F32 ? 20 : 0, 0,
             format.id != MV_F16};
    if (format.group > 32) {  // whole super-blocks where a product reads them
      shape.num_heads = 8;
      shape.hidden = shape.intermediate = format.group;
    }
    try_shape(shape, 0, context.seed);
    const Weights weights(random, shape);
    const int longest = context.quick() ? 40 : 120;
    const Batch batch(random, {33, 1, longest, 20}, 16, shape.vocab);
    const TeamHandle one(1);
    Model alone(weights, context.isa, one, batch, limits_of(batch, shape, longest, longest));
    std::vector<std::vector<Part>> one_by_one;
    for (int seq = 0; seq < batch.num_seqs(); seq++) one_by_one.push_back({{seq, 0, batch.length(seq)}});
    const Results expected = run_schedule(alone, batch, one_by_one, nullptr);
    for (int threads : {1, 2, 3}) {
      const TeamHandle team(threads);
      Model single(weights, context.isa, team, batch, limits_of(batch, shape, 4, 3));
      std::vector<std::vector<Part>> tokens;  // token by token, all sequences side by side
      for (int p = 0; p < longest; p++) {
        tokens.emplace_back();
        for (int seq = 0; seq < batch.num_seqs(); seq++)
          if (p < batch.length(seq)) tokens.back().push_back({seq, p, p + 1});
      }
      MV_CHECK(run_schedule(single, batch, tokens, nullptr) == expected);
      for (int max_tokens : {1, 33, 49, 150}) {
        Model mixed(weights, context.isa, team, batch, limits_of(batch, shape, max_tokens, random.between(1, 50)));
        MV_CHECK(run_schedule(mixed, batch, batch.random_schedule(random, max_tokens), nullptr) == expected);
      }
    }
  }
}

// Ops in any order that makes sense, not only in that of a model.
MV_TEST(random_op_lists_follow_the_reference) {
  for (int round = 0; round < context.rounds; round++) {
    Random random(context.seed * 104729 + uint64_t(round));
    const Format &format = formats()[size_t(random.below(int(formats().size())))];
    const int width = format.group > 1 ? std::max(64, format.group) : random.between(1, 80), vocab = 30;
    const Matrix table(random, format, vocab, width, false), square(random, format, width, width, true),
        wide(random, format, 2 * width, width, false);
    const Batch batch(random, {20, 1, 9}, 7, vocab);
    const TeamHandle team(random.between(1, 3));
    Store store(MV_F16, 1, batch.num_blocks(), 7, 1, 4);
    Program program(team, context.isa, store, {30, 3, 30, vocab, vocab});
    std::vector<Activation> made = {program.embed(table, 0.5f)};
    std::string list;
    for (int i = random.between(1, 12); i > 0; i--) {
      const Activation &x = made[size_t(random.below(int(made.size())))], &y = made[size_t(random.below(int(made.size())))];
      const int kind = random.below(9);
      list += char('a' + kind);
      const float *weight = program.vector(random, width, 1);
      const Activation normed = program.rms_norm(x, weight, 1e-5f);  // products of two products grow fast
      Activation out = kind == 0   ? program.add(x, y)
                       : kind == 1 ? program.rms_norm(x, weight, 1e-5f)
                       : kind == 2 ? program.layer_norm(x, weight, program.vector(random, width, 0), 1e-5f)
                       : kind == 3 ? program.linear(x, square, &y, 0)
                       : kind == 4 ? program.linear(x, square, nullptr, random.below(2) ? 0 : 20)
                       : kind == 5 ? program.activate(MV_SILU_MUL, program.linear(normed, wide, nullptr, 0))
                       : kind == 6 ? program.activate(MV_GELU_MUL, program.linear(normed, wide, nullptr, 0))
                       : kind == 7 ? program.activate(MV_GELU, x)
                                   : program.embed_positions(table);
      made.push_back(out);
    }
    trying("round %d, seed %llu: %s, width %d, ops %s", round, (unsigned long long)context.seed, format.name, width,
           list.c_str());
    Activation last = program.take_rows(program.rms_norm(made.back(), program.vector(random, width, 1), 1e-5f));
    program.begin_head();
    program.linear(last, table, nullptr, 0);
    if (!MV_CHECK(program.finish())) return;
    Mirror mirror(store.shape);
    for (const std::vector<Part> &parts : batch.random_schedule(random, 30)) {
      Step step = batch.step(parts, random.below(2) ? Outputs::ALL : Outputs::LAST);
      if (!MV_CHECK_EQUAL(program.run(step), MV_OK) || !check_run(program, step, mirror)) break;
    }
  }
}

}  // namespace mvt
