// Steps and programs that must be refused: the right status, and not a byte written anywhere.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <functional>

#include "check.h"
#include "memory.h"
#include "models.h"
#include "reference.h"

namespace mvt {
namespace {

struct BadStep {
  const char *name;
  int32_t status;
  std::function<void(Step &)> spoil;
};

constexpr int VOCAB = 50, BLOCK_SIZE = 8, MAX_TOKENS = 40, MAX_SEQS = 3;

// The good step: three sequences, tokens 0 … 3, 4 … 23 and 24.
std::vector<BadStep> bad_steps(int num_blocks) {
  const int32_t slots = num_blocks * BLOCK_SIZE;
  return {
      {"no token", MV_BAD_COUNTS, [](Step &s) { s = Step(); }},
      {"no sequence", MV_BAD_COUNTS, [](Step &s) { s.seq_lens.clear(); }},
      {"too many tokens", MV_BAD_COUNTS, [](Step &s) { s.token_ids.resize(MAX_TOKENS + 1); }},
      {"too many sequences", MV_BAD_COUNTS, [](Step &s) { s.seq_lens.resize(MAX_SEQS + 1); }},
      {"more outputs than tokens", MV_BAD_COUNTS, [](Step &s) { s.logit_rows.resize(26); }},
      {"no table", MV_BAD_COUNTS, [](Step &s) { s.table_width = 0; }},
      {"a negative table", MV_BAD_COUNTS, [](Step &s) { s.table_width = -1; }},
      {"a negative token", MV_BAD_TOKEN, [](Step &s) { s.token_ids[5] = -1; }},
      {"a token beyond the vocabulary", MV_BAD_TOKEN, [](Step &s) { s.token_ids[24] = VOCAB; }},
      {"the largest token", MV_BAD_TOKEN, [](Step &s) { s.token_ids[24] = INT32_MAX; }},
      {"a negative position", MV_BAD_POSITION, [](Step &s) { s.positions[0] = -1; }},
      {"a position beyond the tables", MV_BAD_POSITION, [](Step &s) { s.positions[24] = MODEL_POSITIONS; }},
      {"a position twice", MV_BAD_POSITION, [](Step &s) { s.positions[6] = s.positions[5]; }},
      {"a position left out", MV_BAD_POSITION, [](Step &s) { s.positions[23]++; }},
      {"a negative slot", MV_BAD_SLOT, [](Step &s) { s.slots[0] = -1; }},
      {"a slot beyond the store", MV_BAD_SLOT, [=](Step &s) { s.slots[24] = slots; }},
      {"the least slot", MV_BAD_SLOT, [](Step &s) { s.slots[24] = INT32_MIN; }},
      {"starts that do not start", MV_BAD_QUERY_STARTS, [](Step &s) { s.query_starts[0] = 1; }},
      {"starts that do not end", MV_BAD_QUERY_STARTS, [](Step &s) { s.query_starts[3] = 24; }},
      {"a start beyond the end", MV_BAD_QUERY_STARTS, [](Step &s) { s.query_starts[2] = 1000000; }},
      {"a negative start", MV_BAD_QUERY_STARTS, [](Step &s) { s.query_starts[1] = -1; }},
      {"a sequence without tokens", MV_BAD_QUERY_STARTS, [](Step &s) { s.query_starts[2] = 4; }},
      {"a length too short", MV_BAD_SEQ_LEN, [](Step &s) { s.seq_lens[1]--; }},
      {"a length too long", MV_BAD_SEQ_LEN, [](Step &s) { s.seq_lens[1]++; }},
      {"the largest length", MV_BAD_SEQ_LEN, [](Step &s) { s.seq_lens[2] = INT32_MAX; }},
      {"a negative length", MV_BAD_SEQ_LEN, [](Step &s) { s.seq_lens[2] = INT32_MIN; }},
      {"a table too narrow", MV_BAD_SEQ_LEN, [](Step &s) { s.table_width = 1; }},
      {"a negative block", MV_BAD_BLOCK, [](Step &s) { s.block_tables[0] = -1; }},
      {"a block beyond the store", MV_BAD_BLOCK, [=](Step &s) { s.block_tables[0] = num_blocks; }},
      {"outputs out of order", MV_BAD_LOGIT_ROW, [](Step &s) { s.logit_rows = {3, 2}; }},
      {"an output twice", MV_BAD_LOGIT_ROW, [](Step &s) { s.logit_rows = {3, 3}; }},
      {"a negative output", MV_BAD_LOGIT_ROW, [](Step &s) { s.logit_rows = {-1, 3}; }},
      {"an output beyond the step", MV_BAD_LOGIT_ROW, [](Step &s) { s.logit_rows = {25}; }},
      {"the largest output", MV_BAD_LOGIT_ROW, [](Step &s) { s.logit_rows = {INT32_MAX}; }},
  };
}

ModelShape small_shape() { return {false, false, MV_F16, MV_F16, 2, 20, 2, 1, 8, 30, VOCAB, 0, 0, false}; }

// Whether a program is refused, and errno says why.
bool refused(Program &program, int reason) {
  errno = 0;
  return !program.finish() && errno == reason;
}

}  // namespace

MV_TEST(bad_steps_are_named_and_touch_nothing) {
  Random random(context.seed);
  const Weights weights(random, small_shape());
  const Batch batch(random, {4, 20, 1}, BLOCK_SIZE, VOCAB);
  const TeamHandle team(context.threads);
  Model model(weights, context.isa, team, batch, {MAX_TOKENS, MAX_SEQS, MAX_TOKENS, VOCAB, MODEL_POSITIONS});
  const Step good = batch.step({{0, 0, 4}, {1, 0, 20}, {2, 0, 1}});
  for (const BadStep &bad : bad_steps(batch.num_blocks())) {
    trying("%s", bad.name);
    Step step = good;
    bad.spoil(step);
    MV_CHECK_EQUAL(model.program.run(step), bad.status);
    MV_CHECK(model.program.untouched());
    MV_CHECK(model.store.memory.untouched());
  }
  trying("a good step after the bad ones");
  Mirror mirror(model.store.shape);
  MV_CHECK_EQUAL(model.program.run(good), MV_OK);
  check_run(model.program, good, mirror);
}

MV_TEST(output_rows_out_of_range_are_refused) {
  Random random(context.seed);
  const Weights weights(random, small_shape());
  const Batch batch(random, {4, 20, 1}, BLOCK_SIZE, VOCAB);
  const TeamHandle team(context.threads);
  Model model(weights, context.isa, team, batch, {MAX_TOKENS, MAX_SEQS, 5, VOCAB, MODEL_POSITIONS});
  MV_CHECK_EQUAL(model.program.run(batch.step({{1, 0, 20}})), MV_OK);
  const int32_t bad[][2] = {{-1, 1}, {0, -1}, {0, 6}, {MAX_TOKENS, 1}, {INT32_MAX, 1}, {INT32_MAX, INT32_MAX}};
  for (auto [first, count] : bad) {
    trying("rows %d, %d of them", first, count);
    MV_CHECK_EQUAL(model.program.logits(first, count), MV_BAD_COUNTS);
  }
  MV_CHECK(std::isnan(model.logits.data[0]));
  MV_CHECK_EQUAL(model.program.logits(15, 5), MV_OK);
  MV_CHECK(!std::isnan(model.logits.data[0]));
}

MV_TEST(programs_that_cannot_run_are_refused) {
  Random random(context.seed);
  const TeamHandle team(1);
  Store store(MV_F32, 1, 2, 4, 1, 4);
  const mv_limits limits = {4, 1, 4, 9, 9};
  {
    trying("no op");
    Program program(team, context.isa, store, limits);
    MV_CHECK(refused(program, EINVAL));
  }
  {
    trying("an unknown instruction set");
    Program program(team, "z80", store, limits);
    program.activate(MV_GELU, program.input(4));
    MV_CHECK(refused(program, ENOSYS));
  }
  {
    trying("heads larger than a kernel holds");
    Store wide(MV_F32, 1, 2, 4, 1, 1028);
    Program program(team, context.isa, wide, limits);
    Heads heads = {0, 1, 1, 1028, 1, 0, 0, 0};
    program.attend(program.rope_store(program.input(3 * 1028), nullptr, nullptr, heads), heads);
    MV_CHECK(refused(program, EINVAL));
  }
  {
    trying("heads that the store does not have");
    Program program(team, context.isa, store, limits);
    Heads heads = {1, 1, 1, 4, 1, 0, 0, 0};
    program.rope_store(program.input(3 * 4), nullptr, nullptr, heads);
    MV_CHECK(refused(program, EINVAL));
  }
  for (int width : {32, 33}) {
    for (int format : {MV_Q8_0, MV_Q4_K, MV_NUM_FORMATS, MV_F16}) {
      trying("a norm of %d numbers rounded for format %d", width, format);
      Program program(team, context.isa, store, limits);
      program.round(program.rms_norm(program.input(width), program.vector(random, width, 1), 1e-5f), format);
      MV_CHECK_EQUAL(program.finish(), width == 32 && format != MV_NUM_FORMATS && format != MV_F16);
    }
  }
  for (int head_dim : {16, 32}) {
    trying("attention of heads of %d rounded to int8", head_dim);
    Store own(MV_F32, 1, 2, 4, 2, head_dim);
    Program program(team, context.isa, own, limits);
    const Heads heads = {0, 2, 2, head_dim, 1, 0, 0, 0};
    program.round(program.attend(program.input(2 * head_dim), heads), MV_Q8_0);
    MV_CHECK_EQUAL(program.finish(), head_dim == 32);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What kernels put aside for 64 heads over one of K and V is megabytes.
MV_TEST(programs_without_memory_are_refused) {
  const TeamHandle team(2);
  Store store(MV_F32, 1, 2, 4, 1, 1024);
  const Heads heads = {0, 64, 1, 1024, 1, 0, 0, 0};
  Program program(team, context.isa, store, {4, 1, 4, 9, 9});
  program.attend(program.input(64 * 1024), heads);
  bool made = false;
  int reason = 0;
  {
    const TightMemory tight(int64_t(1) << 20);
    if (!tight.is_tight()) return skip("the address space cannot be limited here");
    made = program.finish();
    reason = errno;
  }
  if (made) return skip("this system did not refuse");
  MV_CHECK_EQUAL(reason, ENOMEM);
}
#endif

// Their panels have no bytes, by which a team deals products out.
MV_TEST(products_without_columns_are_refused) {
  Random random(context.seed);
  const TeamHandle team(2);
  Store store(MV_F32, 1, 2, 4, 1, 4);
  const mv_limits limits = {4, 1, 4, 9, 9};
  for (const Format &format : formats()) {
    for (int cols : {0, format.group}) {
      trying("a %s matrix of %d columns", format.name, cols);
      const Matrix matrix(random, format, 32, cols, false);
      Program plain(team, context.isa, store, limits);
      plain.linear(plain.input(cols), matrix, nullptr, 0);
      MV_CHECK_EQUAL(plain.finish(), cols > 0);
      if (format.id > MV_BF16) continue;
      Program gated(team, context.isa, store, limits);
      gated.linear_silu_mul(gated.input(cols), matrix);
      MV_CHECK_EQUAL(gated.finish(), cols > 0);
    }
  }
}

// A budget that was checked in blocks holds in bytes.
MV_TEST(stores_take_no_more_than_their_blocks) {
  for (int format : {int(MV_F32), int(MV_F16), int(MV_BF16), int(MV_STORE_Q8)}) {
    for (int block_size : {1, 16, 48, 64, 256}) {
      mv_store shape = {format, 3, 1, block_size, 2, 20, nullptr};
      const int64_t one = mv_store_bytes(&shape);
      for (int blocks : {2, 15, 16, 17, 35}) {
        trying("%d blocks of %d", blocks, block_size);
        shape.num_blocks = blocks;
        MV_CHECK_EQUAL(mv_store_bytes(&shape), blocks * one);
      }
    }
  }
}

// An index that 32 bits cannot hold: elements of a store, and of a matrix.
MV_TEST(large_pools_and_tables_are_addressed_in_full) {
  Random random(context.seed);
  const mv_store shape = {MV_F16, 2, (1 << 20) + 3, 16, 1, 32, nullptr};
  const int64_t bytes = mv_store_bytes(&shape);
  MV_CHECK(bytes / 2 > INT32_MAX);
  void *memory = mv_alloc(bytes);
  if (!memory) return skip("the system does not give %lld bytes", (long long)bytes);
  {
    const TeamHandle team(context.threads);
    Store store(MV_F16, 1, 1, 16, 1, 32);
    store.shape = shape;
    store.shape.data = memory;
    Program program(team, context.isa, store, {20, 1, 20, 5, 50});
    const Heads heads = {1, 2, 1, 32, 0.2f, 0, 0, 0};
    Activation x = program.input(4 * 32);
    Activation out = program.attend(program.rope_store(x, nullptr, nullptr, heads), heads);
    MV_CHECK(program.finish());
    for (int64_t i = 0; i < 20; i++)
      for (int j = 0; j < x.width; j++) x.data[i * x.stride + j] = float(random.normal());
    Step step = Batch(random, {20}, 16, 5).step({{0, 0, 20}});
    std::vector<std::vector<float>> results;
    for (int32_t first : {0, shape.num_blocks - 2}) {
      step.block_tables = {first + 1, first, -1};
      for (int p = 0; p < 20; p++) step.slots[size_t(p)] = step.block_tables[size_t(p / 16)] * 16 + p % 16;
      MV_CHECK_EQUAL(program.run(step), MV_OK);
      results.emplace_back(out.data, out.data + 19 * out.stride + out.width);
      for (float &value : results.back())
        if (std::isnan(value)) value = 0;  // the gaps
    }
    MV_CHECK(results[0] == results[1]);
  }
  mv_free(memory, bytes);
}

MV_TEST(large_matrices_are_addressed_in_full) {
  Random random(context.seed);
  const int32_t rows = (1 << 17) + 21, cols = 1 << 14;
  for (const Format &format : formats()) {
    trying("%s", format.name);
    const int64_t bytes = mv_matrix_bytes(format.id, rows, cols);
    MV_CHECK(bytes > INT32_MAX / 2);
    void *memory = mv_alloc(bytes);
    if (!memory) return skip("the system does not give %lld bytes", (long long)bytes);
    const int num_groups = cols / format.group;
    Bytes file(num_groups * format.group_bytes);
    std::vector<double> values(static_cast<size_t>(cols));
    for (int g = 0; g < num_groups; g++) {
      format.fill(random, file.data() + g * format.group_bytes);
      format.decode(file.data() + g * format.group_bytes, values.data() + int64_t(g) * format.group);
    }
    const mv_matrix matrix = {format.id, rows, cols, 0, memory, nullptr};
    mv_pack_rows(&matrix, rows - 2, 1, file.data());
    const TeamHandle team(1);
    Store store(MV_F32, 1, 2, 4, 1, 4);
    const mv_limits limits = {1, 1, 1, rows, 9};
    Bytes out(4 * int64_t(cols));
    mv_op op = {};
    op.kind = MV_EMBED;
    op.width = cols;
    op.scale = 1;
    op.out = reinterpret_cast<float *>(out.data());
    op.out_stride = cols;
    op.weight = &matrix;
    mv_program *program = mv_program_create(team.team, context.isa, &store.shape, &limits, &op, 1, nullptr, 0);
    const int32_t token = rows - 2, zero = 0, starts[] = {0, 1}, length = 1;
    const mv_step step = {1, 1, 0, 1, &token, &zero, &zero, starts, &length, &zero, nullptr, 0, 0};
    MV_CHECK_EQUAL(mv_program_run(program, &step), MV_OK);
    double error = 0;
    for (int i = 0; i < cols; i++) error = std::max(error, std::fabs(op.out[i] - values[size_t(i)]));
    MV_CHECK(error < 1e-5);
    mv_program_destroy(program);
    mv_free(memory, bytes);
  }
}

}  // namespace mvt
