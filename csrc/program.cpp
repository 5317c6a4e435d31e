// A program: the ops of a model over fixed buffers, checked and replayed for any ragged batch.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <vector>

#include "first_touch.h"
#include "isa.h"
#include "kernel_table.h"
#include "kv_layout.h"
#include "program.h"
#include "screen.h"
#include "team.h"

namespace mv {
namespace {

// Below this many attention tasks per thread, the parts of long histories become units of their own.
constexpr int TASKS_PER_THREAD = 4;
constexpr int64_t MOST_AHEAD = int64_t(96) << 20;  // of the store, taken from the system before it is used
constexpr int LOPSIDED = 8;  // one part in so many of the time may go by waiting for the last task
constexpr int64_t MAX_PARTIALS = 16 << 20;  // floats; more is not spent on balance

struct Bounds {
  const mv_limits &limits;
  const mv_store &store;
};

bool ascending_within(const int32_t *values, int32_t count, int32_t limit) {
  for (int32_t i = 0; i < count; i++)
    if (values[i] < (i ? values[i - 1] + 1 : 0) || values[i] >= limit) return false;
  return true;
}

int32_t check_tokens(const mv_step &s, const Bounds &b) {
  const int64_t slots = int64_t(b.store.num_blocks) * b.store.block_size;
  for (int32_t t = 0; t < s.num_tokens; t++) {
    if (s.token_ids[t] < 0 || s.token_ids[t] >= b.limits.vocab_size) return MV_BAD_TOKEN;
    if (s.positions[t] < 0 || s.positions[t] >= b.limits.max_positions) return MV_BAD_POSITION;
    if (s.slots[t] < 0 || s.slots[t] >= slots) return MV_BAD_SLOT;
  }
  return MV_OK;
}

int32_t check_sequence(const mv_step &s, const Bounds &b, int32_t r) {
  int32_t begin = s.query_starts[r], end = s.query_starts[r + 1];
  for (int32_t t = begin + 1; t < end; t++)
    if (s.positions[t] != s.positions[t - 1] + 1) return MV_BAD_POSITION;
  int64_t blocks = (int64_t(s.seq_lens[r]) + b.store.block_size - 1) / b.store.block_size;
  if (s.positions[end - 1] + 1 != s.seq_lens[r] || blocks > s.table_width) return MV_BAD_SEQ_LEN;
  const int32_t *table = s.block_tables + int64_t(r) * s.table_width;
  for (int64_t i = 0; i < blocks; i++)
    if (table[i] < 0 || table[i] >= b.store.num_blocks) return MV_BAD_BLOCK;
  return MV_OK;
}

// Numbers that fill what they are rounded to: pairs of bfloat16, or groups of 32 in int8.
bool can_round(const mv_op &op) {
  if (op.kind != MV_RMS_NORM && op.kind != MV_ATTEND && op.kind != MV_SILU_MUL && op.kind != MV_LINEAR_SILU_MUL) return false;
  if (op.out_format == MV_BF16) return op.width % 2 == 0 && op.kind != MV_SILU_MUL;
  return op.out_format >= MV_Q8_0 && op.out_format < MV_NUM_FORMATS && op.width % 32 == 0 &&
         op.kind != MV_LINEAR_SILU_MUL && (op.kind != MV_ATTEND || op.head_dim % 32 == 0);
}

// Gate and up fill whole panels of 16 rows, in float32, float16 or bfloat16, and nothing else happens to the sums.
bool can_gate(const mv_op &op) {
  return op.weight->format <= MV_BF16 && op.weight->rows == 2 * op.width && op.width % 16 == 0 && !op.weight->bias &&
         !op.y && op.softcap == 0.0f;
}

// What kernels take for granted of an op.
bool can_run(const mv_op &op, const mv_store &s) {
  if (op.kind < 0 || op.kind >= MV_SCREEN_MAKE) return false;
  if (op.out_format != MV_F32 && !can_round(op)) return false;
  if (op.kind == MV_LINEAR_SILU_MUL && !can_gate(op)) return false;
  const bool is_product = op.kind == MV_LINEAR || op.kind == MV_LINEAR_SILU_MUL;  // teams deal them out by their bytes
  if (is_product && mv_matrix_bytes(op.weight->format, 1, op.weight->cols) < 1) return false;
  if (op.kind != MV_ROPE_STORE && op.kind != MV_ATTEND) return true;
  return op.layer >= 0 && op.layer < s.num_layers && op.num_kv_heads == s.num_kv_heads && op.num_kv_heads > 0 &&
         op.num_heads % op.num_kv_heads == 0 && op.head_dim == s.head_dim && op.head_dim <= MAX_HEAD_DIM &&
         op.rope_dims >= 0 && op.rope_dims <= op.head_dim;
}

int32_t check_step(const mv_step &s, const Bounds &b) {
  if (s.num_tokens < 1 || s.num_tokens > b.limits.max_tokens || s.num_seqs < 1 || s.num_seqs > b.limits.max_seqs ||
      s.num_logit_rows < 0 || s.num_logit_rows > s.num_tokens || s.table_width < 1)
    return MV_BAD_COUNTS;
  if (int32_t status = check_tokens(s, b)) return status;
  if (s.query_starts[0] != 0 || s.query_starts[s.num_seqs] != s.num_tokens) return MV_BAD_QUERY_STARTS;
  for (int32_t r = 0; r < s.num_seqs; r++)
    if (s.query_starts[r + 1] <= s.query_starts[r]) return MV_BAD_QUERY_STARTS;
  for (int32_t r = 0; r < s.num_seqs; r++)
    if (int32_t status = check_sequence(s, b, r)) return status;
  return ascending_within(s.logit_rows, s.num_logit_rows, s.num_tokens) ? MV_OK : MV_BAD_LOGIT_ROW;
}

}  // namespace
}  // namespace mv

struct mv_program {
  mv::Team *team;
  const mv::KernelTable *table;
  mv_store store;
  mv_limits limits;
  std::vector<mv_op> hidden_ops, logit_ops, all_ops, screened_ops;
  std::unique_ptr<mv::Screen> screen;  // for greedy steps: all_ops, but for the head
  const float *hidden = nullptr;  // where the last hidden op writes
  int64_t hidden_stride = 0;
  int64_t scratch_stride = 64, partial_len = 0;
  int32_t kv_heads = 1;
  std::unique_ptr<char[]> scratch;
  std::unique_ptr<mv::FirstTouch> first_touch;
  std::vector<float> partials;
  std::vector<mv::QueryTile> tiles;
  std::vector<int32_t> pass_starts, pass_lens, pass_rows;  // arrays of the part of a step that is under way
  std::vector<int64_t> loads;  // of each thread, to see whether tasks are balanced
  mv::StepView whole = {};     // of the step that is one job, and may be under way
  uint64_t begun = 0;          // that job

  ~mv_program() { team->drop(begun); }

  void add_ops(std::vector<mv_op> &to, const mv_op *ops, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
      to.push_back(ops[i]);
      if (ops[i].kind != MV_ATTEND) continue;
      to.push_back(ops[i]);
      to.back().kind = MV_ATTEND_COMBINE;
      scratch_stride = std::max(scratch_stride, table->attend_scratch_bytes(ops[i], store));
      partial_len = std::max(partial_len, table->attend_partial_len(ops[i]));
      kv_heads = std::max(kv_heads, ops[i].num_kv_heads);
    }
  }

  void make_tiles(const mv_step &in) {
    tiles.clear();
    for (int32_t r = 0; r < in.num_seqs; r++) {
      for (int32_t t = in.query_starts[r]; t < in.query_starts[r + 1]; t += mv::TILE_POSITIONS) {
        int32_t count = std::min(mv::TILE_POSITIONS, in.query_starts[r + 1] - t);
        tiles.push_back({r, t, count, in.positions[t]});
      }
    }
  }

  // What attention costs for a tile: its rows times its history, and something for either alone.
  static int64_t cost(const mv::QueryTile &tile) {
    return int64_t(tile.num_rows + 2) * (tile.first_position + tile.num_rows + 32);
  }

  // Whether some tasks are much longer than others: a chunk of a long prompt beside sequences with short histories.
  bool uneven() const {
    auto [least, most] = std::minmax_element(tiles.begin(), tiles.end(),
                                             [](const auto &a, const auto &b) { return cost(a) < cost(b); });
    return cost(*most) > 4 * cost(*least);
  }

  // Whether threads that take whole tasks, in their order, would wait long for the last.
  bool lopsided() {
    loads.assign(size_t(team->threads()), 0);
    int64_t total = 0;
    for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile) {
      for (int32_t head = 0; head < kv_heads; head++, total += cost(*tile))
        *std::min_element(loads.begin(), loads.end()) += cost(*tile);
    }
    return *std::max_element(loads.begin(), loads.end()) * team->threads() > total + total / mv::LOPSIDED;
  }

  // The step as kernels see it. Parts become units when whole tasks would not keep every thread busy.
  mv::StepView view(const mv_step &in) {
    make_tiles(in);
    mv::StepView v = {};
    v.in = in;
    v.store = &store;
    v.tiles = tiles.data();
    v.num_tiles = int32_t(tiles.size());
    int32_t longest = *std::max_element(in.seq_lens, in.seq_lens + in.num_seqs);
    v.num_splits = (longest + mv::SPLIT - 1) / mv::SPLIT;
    int64_t tasks = int64_t(v.num_tiles) * kv_heads;
    const int64_t needed = tasks * v.num_splits * partial_len;
    v.uneven = uneven();
    v.split_units = v.num_splits > 1 && team->threads() > 1 &&
                    (tasks < int64_t(mv::TASKS_PER_THREAD) * team->threads() ||
                     (v.uneven && needed <= mv::MAX_PARTIALS && lopsided()));
    v.partial_len = partial_len;
    if (v.split_units && int64_t(partials.size()) < needed) partials.resize(size_t(needed));
    v.partials = partials.data();
    v.rows[MV_ROWS_TOKENS] = in.num_tokens;
    v.rows[MV_ROWS_OUTPUT] = in.num_logit_rows;
    return v;
  }

  mv::Job job(const std::vector<mv_op> &ops, size_t count, const mv::StepView &v) const {
    return {table, ops.data(), int32_t(count), &v, scratch.get(), scratch_stride};
  }

  void run(const std::vector<mv_op> &ops, const mv::StepView &v) { team->run(job(ops, ops.size(), v)); }

  // Whether all of the step is one job: it need not be cut, and its logits fit.
  bool is_whole(const mv_step &in) const {
    return (limits.pass_tokens <= 0 || in.num_tokens <= limits.pass_tokens) && in.num_logit_rows <= limits.max_logit_rows;
  }

  // A step that is_whole.
  void begin_whole(const mv_step &in) {
    const bool screened = in.num_logit_rows > 0 && screen && screen->takes(in, *team, *table);
    whole = view(in);
    whole.screen = screened ? screen->view() : nullptr;
    const std::vector<mv_op> &ops = screened ? screened_ops : all_ops;
    begun = team->begin(job(ops, in.num_logit_rows > 0 ? ops.size() : hidden_ops.size(), whole));
  }

  // Long steps go through the ops in parts of about the same length, so that what one op leaves for the next is still in
  // the caches. A sequence that is cut goes on in the next part: its K and V are stored by then.
  void run_hidden(const mv_step &in) {
    const int32_t most = limits.pass_tokens > 0 ? limits.pass_tokens : in.num_tokens;
    const int32_t parts = (in.num_tokens + most - 1) / most;
    if (parts == 1) return run(hidden_ops, view(in));
    const int32_t length = (in.num_tokens + parts - 1) / parts;
    std::vector<mv_op> ops = hidden_ops;
    int32_t outputs = 0;
    for (int32_t begin = 0; begin < in.num_tokens; begin += length) {
      const mv_step part = cut(in, begin, std::min(in.num_tokens, begin + length), outputs);
      const int32_t done = ops.back().row_kind == MV_ROWS_TOKENS ? begin : outputs;
      for (size_t i = 0; i < ops.size(); i++)
        if (hidden_ops[i].out == hidden) ops[i].out = hidden_ops[i].out + done * hidden_stride;
      run(ops, view(part));
      outputs += part.num_logit_rows;
    }
  }

  // Tokens begin … end of a step; outputs: how many of its rows are for earlier tokens.
  mv_step cut(const mv_step &in, int32_t begin, int32_t end, int32_t outputs) {
    const int32_t *starts = in.query_starts;
    const int32_t first = int32_t(std::upper_bound(starts, starts + in.num_seqs, begin) - starts) - 1;
    pass_starts.clear(), pass_lens.clear(), pass_rows.clear();
    for (int32_t r = first; r < in.num_seqs && starts[r] < end; r++) {
      pass_starts.push_back(std::max(starts[r], begin) - begin);
      pass_lens.push_back(in.positions[std::min(starts[r + 1], end) - 1] + 1);
    }
    pass_starts.push_back(end - begin);
    for (int32_t i = outputs; i < in.num_logit_rows && in.logit_rows[i] < end; i++)
      pass_rows.push_back(in.logit_rows[i] - begin);
    mv_step part = in;
    part.num_tokens = end - begin, part.num_seqs = int32_t(pass_lens.size());
    part.num_logit_rows = int32_t(pass_rows.size());
    part.token_ids += begin, part.positions += begin, part.slots += begin;
    part.block_tables += int64_t(first) * in.table_width;
    part.query_starts = pass_starts.data(), part.seq_lens = pass_lens.data(), part.logit_rows = pass_rows.data();
    return part;
  }

  // The head's ops on hidden rows first … first + count.
  void run_head(int32_t first, int32_t count) {
    std::vector<mv_op> ops = logit_ops;
    for (mv_op &op : ops)
      if (op.x == hidden) op.x += first * hidden_stride;
    mv::StepView v = {};
    v.store = &store;
    v.rows[MV_ROWS_OUTPUT] = count;
    run(ops, v);
  }
};

namespace {

// No program, and why.
mv_program *refuse(int reason) {
  errno = reason;
  return nullptr;
}

}  // namespace

extern "C" mv_program *mv_program_create(mv_team *team, const char *isa, const mv_store *store,
                                         const mv_limits *limits, const mv_op *hidden_ops, int32_t num_hidden_ops,
                                         const mv_op *logit_ops, int32_t num_logit_ops) {
  const mv::KernelTable *table = mv::find_table(isa);
  if (!table) return refuse(ENOSYS);
  if (num_hidden_ops < 1) return refuse(EINVAL);
  auto refused = [store](const mv_op &op) { return !mv::can_run(op, *store); };
  if (std::any_of(hidden_ops, hidden_ops + num_hidden_ops, refused)) return refuse(EINVAL);
  if (std::any_of(logit_ops, logit_ops + num_logit_ops, refused)) return refuse(EINVAL);
  try {
    auto program = std::make_unique<mv_program>();
    program->team = &team->team;
    program->table = table;
    program->store = *store;
    program->limits = *limits;
    program->add_ops(program->hidden_ops, hidden_ops, num_hidden_ops);
    program->add_ops(program->logit_ops, logit_ops, num_logit_ops);
    program->all_ops = program->hidden_ops;
    program->all_ops.insert(program->all_ops.end(), program->logit_ops.begin(), program->logit_ops.end());
    program->screen = mv::Screen::of(program->logit_ops, *limits);
    if (program->screen) {
      const std::vector<mv_op> &head = program->screen->ops();
      program->screened_ops = program->hidden_ops;
      program->screened_ops.insert(program->screened_ops.end(), head.begin(), head.end());
    }
    program->hidden = program->hidden_ops.back().out;
    program->hidden_stride = program->hidden_ops.back().out_stride;
    program->scratch_stride = (program->scratch_stride + 4095) / 4096 * 4096;
    const int64_t token = mv::block_bytes(*store) / store->block_size, ahead = token * limits->max_tokens;
    program->first_touch = std::make_unique<mv::FirstTouch>(*program->team, store->data, mv_store_bytes(store),
                                                            std::min(ahead, mv::MOST_AHEAD));
    program->scratch.reset(new char[size_t(program->scratch_stride * team->team.threads())]);
    return program.release();
  } catch (const std::bad_alloc &) {
    return refuse(ENOMEM);
  }
}

extern "C" void mv_program_destroy(mv_program *program) { delete program; }

int32_t mv::max_logit_rows(const mv_program &program) { return program.limits.max_logit_rows; }

namespace {

// Before a step: ends what was begun, which looks at the program's arrays; refuses what the program cannot run; tells who
// takes memory ahead how much of the store is in use.
int32_t admit(mv_program &program, const mv_step &step) {
  program.team->drop(program.begun);
  if (int32_t status = mv::check_step(step, {program.limits, program.store})) return status;
  const int32_t block = *std::max_element(step.slots, step.slots + step.num_tokens) / program.store.block_size;
  program.first_touch->used(mv::front_bytes(program.store, int64_t(block) + 1));
  return MV_OK;
}

}  // namespace

extern "C" int32_t mv_program_run(mv_program *program, const mv_step *step) {
  if (int32_t status = admit(*program, *step)) return status;
  try {
    if (program->is_whole(*step)) {
      program->begin_whole(*step);
      program->team->end(program->begun);
      return MV_OK;
    }
    program->run_hidden(*step);
    if (step->num_logit_rows > 0 && step->num_logit_rows <= program->limits.max_logit_rows)
      program->run_head(0, step->num_logit_rows);
  } catch (const std::bad_alloc &) {
    return MV_NO_MEMORY;
  }
  return MV_OK;
}

extern "C" int32_t mv_program_begin(mv_program *program, const mv_step *step) {
  if (int32_t status = admit(*program, *step)) return status;
  if (program->team->threads() < 2 || !program->is_whole(*step)) return MV_OK;
  try {
    program->begin_whole(*step);
  } catch (const std::bad_alloc &) {
    return MV_NO_MEMORY;
  }
  return MV_OK;
}

extern "C" int32_t mv_program_end(mv_program *program, int32_t keep) {
  if (keep) return program->team->end(program->begun);
  program->team->drop(program->begun);
  if (program->screen) program->screen->forget();
  return 0;
}

extern "C" int32_t mv_program_logits(mv_program *program, int32_t first, int32_t count) {
  const mv_limits &limits = program->limits;
  if (first < 0 || count < 0 || count > limits.max_logit_rows || first > limits.max_tokens - count)
    return MV_BAD_COUNTS;
  try {
    program->run_head(first, count);
  } catch (const std::bad_alloc &) {
    return MV_NO_MEMORY;
  }
  return MV_OK;
}
