// Threads that claim work from each other: nothing is lost, done twice, or waited for in vain.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "check.h"
#include "models.h"
#include "reference.h"
#include "sampler.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mvt {

// Short jobs back to back, on more threads than there are cores, with pauses in which the threads go to sleep.
MV_TEST(short_jobs_back_to_back) {
  Random random(context.seed);
  const Batch batch(random, {5, 1}, 4, 9);
  const Matrix table(random, format_of(MV_F32), 9, 24, false), square(random, format_of(MV_F32), 24, 24, false);
  for (int threads : {1, 2, 3, 5}) {
    trying("%d threads", threads);
    const TeamHandle team(threads);
    Store store(MV_F32, 1, batch.num_blocks(), 4, 1, 4);
    Program program(team, context.isa, store, {8, 2, 8, 9, 9});
    Activation x = program.embed(table, 1);
    for (int i = 0; i < 6; i++) x = program.linear(program.rms_norm(x, program.vector(random, 24, 1), 1e-5f), square, &x, 0);
    Activation rows = program.take_rows(x);
    program.begin_head();
    program.linear(rows, table, nullptr, 0);
    if (!MV_CHECK(program.finish())) return;
    const Step step = batch.step({{0, 0, 5}, {1, 0, 1}});
    Mirror mirror(store.shape);
    for (int i = 0; i < 20 * context.rounds; i++) {
      if (i % 50 == 49) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (!MV_CHECK_EQUAL(program.run(step), MV_OK) || !check_run(program, step, mirror)) return;
    }
  }
}

// Teams come and go, idle, busy or asleep.
MV_TEST(teams_come_and_go) {
  Random random(context.seed);
  const int vocab = 200;
  std::vector<float> logits(static_cast<size_t>(8 * vocab));
  for (float &x : logits) x = float(random.normal());
  const int32_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7};
  mv_sampler_row row = {};
  row.top_p = 1;
  row.num_allowed = -1;
  row.repetition = 1;
  row.limit = vocab;
  const std::vector<mv_sampler_row> params(8, row);
  const mv_logits view = {logits.data(), vocab, rows, 8, vocab};
  int32_t alone[8], together[8];
  mv_sample(nullptr, &view, params.data(), alone);
  for (int i = 0; i < 5 * context.rounds; i++) {
    const TeamHandle team(random.between(1, 6));
    for (int runs = random.below(3); runs > 0; runs--) {
      std::fill(together, together + 8, -7);
      mv_sample(team.team, &view, params.data(), together);
      if (!MV_CHECK(std::equal(alone, alone + 8, together))) return;
    }
    if (i % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

// A small model, three sequences, and the step that is all of them.
struct SmallModel {
  explicit SmallModel(const Context &context) : isa(context.isa), random(context.seed) {}
  // The model as a program of this team, with room for so many outputs.
  Model on(const TeamHandle &team, int outputs = 38) const {
    return Model(weights, isa, team, batch, {38, 3, outputs, 40, MODEL_POSITIONS});
  }
  const char *isa;
  Random random;
  const Weights weights{random, ModelShape{false, true, MV_F16, MV_F32, 2, 20, 2, 1, 8, 30, 40, 0, 0, false}};
  const Batch batch{random, {30, 7, 1}, 4, 40};
  const Step whole = batch.step({{0, 0, 30}, {1, 0, 7}, {2, 0, 1}});
};

// Programs that share a team, one after the other, each with its own callers' thread.
MV_TEST(programs_share_a_team) {
  const SmallModel small(context);
  const TeamHandle team(3);
  Model first = small.on(team), second = small.on(team);
  Mirror mirror(first.store.shape);
  for (int i = 0; i < context.rounds; i++) {
    Model &model = i % 2 ? first : second;
    std::thread caller([&] { MV_CHECK_EQUAL(model.program.run(small.whole), MV_OK); });
    caller.join();
    if (!check_run(model.program, small.whole, mirror)) return;
  }
}

// Steps that are begun, then ended, dropped, displaced by another program's or by the next, or left to the end of the
// program: whatever the end says is done is right, and so is every run after it.
MV_TEST(steps_begun_ahead) {
  SmallModel small(context);
  const Step &whole = small.whole;
  const Step part = small.batch.step({{0, 0, 9}, {1, 0, 2}});
  for (int threads : {1, 2, 3}) {
    trying("%d threads", threads);
    const TeamHandle team(threads);
    Model other = small.on(team), model = small.on(team);
    Program &program = model.program;
    Mirror mirror(model.store.shape);
    MV_CHECK(!program.end(true));
    for (int i = 0; i < 10 * context.rounds; i++) {
      if (!MV_CHECK_EQUAL(program.begin(whole), MV_OK)) return;
      const int what = small.random.below(5);
      if (what == 0) MV_CHECK(!program.end(false));
      if (what == 1) MV_CHECK_EQUAL(other.program.run(whole), MV_OK);
      if (what == 2) MV_CHECK_EQUAL(program.begin(part), MV_OK);
      if (what == 3) std::this_thread::sleep_for(std::chrono::microseconds(small.random.below(300)));
      if (what == 2) {
        if (MV_CHECK_EQUAL(program.end(true), threads > 1) && threads > 1) {
          if (!MV_CHECK(program.gaps_untouched(part)) || !check_run(program, part, mirror)) return;
        }
      } else {
        const bool is_under_way = threads > 1 && what >= 3;
        if (!MV_CHECK_EQUAL(program.end(true), is_under_way)) return;
        if (!is_under_way && !MV_CHECK_EQUAL(program.run(whole), MV_OK)) return;
        if (!MV_CHECK(program.gaps_untouched(whole)) || !check_run(program, whole, mirror)) return;
      }
      MV_CHECK(!program.end(true));
    }
    program.begin(part);
  }
}

// What cannot be begun is refused or left to the run.
MV_TEST(steps_that_cannot_begin) {
  const SmallModel small(context);
  const TeamHandle team(2);
  Model model = small.on(team, 20);
  Step wrong = small.batch.step({{0, 0, 9}});
  wrong.token_ids[3] = 40;
  MV_CHECK_EQUAL(model.program.begin(wrong), MV_BAD_TOKEN);
  MV_CHECK(!model.program.end(true));
  const Step large = small.batch.step({{0, 0, 30}});  // 30 outputs, room for 20
  MV_CHECK_EQUAL(model.program.begin(large), MV_OK);
  MV_CHECK(!model.program.end(true));
  for (const Step *after : {static_cast<const Step *>(&wrong), &large}) {  // nor does what was begun before it pass for it
    MV_CHECK_EQUAL(model.program.begin(small.batch.step({{0, 0, 9}})), MV_OK);
    MV_CHECK_EQUAL(model.program.begin_instead(*after), after == &wrong ? MV_BAD_TOKEN : MV_OK);
    MV_CHECK(!model.program.end(true));
  }
}

// The counter moves with every op, times go to the kinds that ran, and a plain split gives the same bits.
MV_TEST(progress_times_and_plain_split) {
  const SmallModel small(context);
  setenv("MINI_VLLM_SPLIT", "static", 1);
  const TeamHandle split(3);
  unsetenv("MINI_VLLM_SPLIT");
  Model model = small.on(split);
  Mirror mirror(model.store.shape);
  const uint32_t before = mv_team_progress(split.team);
  int64_t ns[MV_NUM_OPS] = {};
  mv_team_profile(split.team, ns);
  if (!MV_CHECK_EQUAL(model.program.run(small.whole), MV_OK) || !check_run(model.program, small.whole, mirror)) return;
  mv_team_profile(split.team, nullptr);
  MV_CHECK(mv_team_progress(split.team) - before >= 2 * 6);  // two layers of at least six ops
  MV_CHECK(ns[MV_EMBED] > 0 && ns[MV_LINEAR] > 0 && ns[MV_ATTEND] > 0);
  MV_CHECK_EQUAL(ns[MV_EMBED_POSITIONS], 0);
  const int64_t linear = ns[MV_LINEAR];
  if (!MV_CHECK_EQUAL(model.program.run(small.whole), MV_OK) || !check_run(model.program, small.whole, mirror)) return;
  MV_CHECK_EQUAL(ns[MV_LINEAR], linear);
}

#if defined(__linux__)
// How many of the first `bytes` at memory the system has given.
int64_t resident(const char *memory, int64_t bytes) {
  std::vector<unsigned char> pages(size_t(bytes / 4096));
  if (mincore(const_cast<char *>(memory), size_t(bytes), pages.data()) != 0) return -1;
  return 4096 * std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

// While a team rests, memory for the next steps is taken from the system, and no more than that.
MV_TEST(memory_of_a_store_is_taken_ahead) {
  const TeamHandle team(context.threads);
  mv_store store = {MV_F32, 4, 4096, 4, 4, 64, nullptr};  // 128 MiB, 8 KiB a token
  const int64_t bytes = mv_store_bytes(&store), ahead = 512 << 13;
  store.data = mv_alloc(bytes);
  char *memory = static_cast<char *>(store.data);
  const mv_limits limits = {512, 1, 1, 9, 9, 0};
  mv_op op = {};
  op.kind = MV_GELU;
  mv_program *program = mv_program_create(team.team, context.isa, &store, &limits, &op, 1, nullptr, 0);
  for (int wait = 0; wait < 500 && resident(memory, ahead) < ahead; wait++)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  mv_program_destroy(program);
  if (resident(memory, ahead) == 0) skip("this system takes no memory ahead");
  else MV_CHECK_EQUAL(resident(memory, ahead), ahead);
  MV_CHECK(resident(memory, bytes) <= ahead + (2 << 20));
  MV_CHECK(std::count(memory, memory + ahead, 0) == ahead);
  mv_free(store.data, bytes);
}
#endif

}  // namespace mvt
