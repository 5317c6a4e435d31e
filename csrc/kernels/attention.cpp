// Paged attention over the whole ragged batch, K and V read where they lie (kv_layout.h; attention_span.h finds them).
//
//   out[q] = sum over visible k of softmax_k(scale q.k) v[k],   visible: p_q - window < p_k <= p_q, or p_k <= p_q without window
//
// A task is a query tile, up to TILE_POSITIONS consecutive tokens of one sequence, and one K/V head; its rows are those tokens
// times the query heads that share the K/V head, so what is loaded of the store serves all of them. The history is read in
// SPANs of 64 keys at absolute positions. For each span (online softmax in powers of two; m = the largest score so far, rounded
// up; l = sum of weights; acc = weighted sum of V):
//
//     s = (scale log2(e) q).K^T      m' = max(m, ceil(max s))      p = 2^(s - m')
//     l = l 2^(m - m') + sum p                                     acc = acc 2^(m - m') + p V
//
// m is a whole number, so going over to a larger m changes exponents alone, and p has the same digits whatever m is.
//
// SPLITs of 256 positions start from nothing and meet in one binary tree over absolute split numbers:
//
//     join(a, b): l and acc of a times 2^(m_a - m) plus those of b times 2^(m_b - m), m = max(m_a, m_b)
//
// where a part without visible keys is skipped. Whether one thread walks all parts of a task (and joins them as it goes) or every
// part is a unit of its own (and MV_ATTEND_COMBINE joins them) depends on how much work there is; the tree is the same, and so are
// the bits. A row's result depends on its own position and history alone: keys after it are never accumulated, only scored and
// dropped.
#include "kernels/attention_span.h"
#include "kernels/numeric.h"
#include "kernels/quantize.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int MAX_LEVELS = 24;  // of the tree: more splits than any 32-bit position has
constexpr float LOG2_E = 1.44269504088896341f;

// Rows of a task: row i * group + g is token i, query head head * group + g.
struct Task {
  const mv_op *op;
  const StepView *step;
  QueryTile tile;
  int head, group, num_rows, padded;

  // Tiles of the end of a sequence, which have the longest histories, come first.
  Task(const mv_op &o, const StepView &s, int64_t index) : op(&o), step(&s) {
    tile = s.tiles[s.num_tiles - 1 - index / o.num_kv_heads];
    head = int(index % o.num_kv_heads);
    group = o.num_heads / o.num_kv_heads;
    num_rows = tile.num_rows * group;
    padded = padded_dim(o.head_dim);
  }
  int position(int row) const { return tile.first_position + row / group; }
  int last_position() const { return tile.first_position + tile.num_rows - 1; }
  int first_visible(int position) const { return op->window > 0 ? max32(0, position - op->window + 1) : 0; }
  int first_key() const { return first_visible(tile.first_position); }
  int first_split() const { return first_key() / SPLIT; }
  int last_split() const { return last_position() / SPLIT; }
  bool has(int split) const { return split >= first_split() && split <= last_split(); }
  SpanPlace place(const LayerTiles &tiles, int start) const {
    const int32_t *table = step->in.block_tables + int64_t(tile.seq) * step->in.table_width;
    int low = max32(0, first_key() - start), high = min32(SPAN, last_position() + 1 - start);
    return {&tiles, table, head, start, low, high};
  }
};

// Units: tasks; or their splits, heads innermost, as one split of all heads is one piece of memory.
struct Unit {
  int64_t task;
  int split;  // 0 when tasks are units
  Unit(const mv_op &op, const StepView &step, int64_t unit) : task(unit), split(0) {
    if (!step.split_units) return;
    const int64_t each = int64_t(step.num_splits) * op.num_kv_heads, rest = unit % each;
    split = int(rest / op.num_kv_heads);
    task = unit / each * op.num_kv_heads + rest % op.num_kv_heads;
  }
};
int64_t attend_units(const mv_op &op, const StepView &step) {
  return int64_t(step.num_tiles) * op.num_kv_heads * (step.split_units ? step.num_splits : 1);
}

// m [rows], l [rows][W] (the sum of a row's lanes counts), acc [rows][padded]: what a part of the history adds up to.
struct State {
  float *m, *l, *acc;
  State(float *memory, const Task &t)
      : m(memory), l(memory + (t.num_rows + 15) / 16 * 16), acc(l + t.num_rows * W) {}
};

int max_rows(const mv_op &op) { return (TILE_POSITIONS * (op.num_heads / op.num_kv_heads) + 15) / 16 * 16; }
int64_t state_len(int rows, int padded) { return (rows + 15) / 16 * 16 + int64_t(rows) * (W + padded); }
int64_t max_state_len(const mv_op &op) { return state_len(max_rows(op), padded_dim(op.head_dim)); }

void clear(const Task &t, const State &s) {
  for (int r = 0; r < t.num_rows; r++) s.m[r] = -__builtin_inff();
  memset(s.l, 0, sizeof(float) * size_t(t.num_rows) * W);
  memset(s.acc, 0, sizeof(float) * size_t(t.num_rows) * size_t(t.padded));
}

// b = join(a, b), row by row.
void join(const Task &t, const State &a, const State &b) {
  const float none = -__builtin_inff();
  for (int r = 0; r < t.num_rows; r++) {
    float *x = a.acc + r * t.padded, *y = b.acc + r * t.padded;
    if (a.m[r] == none) continue;
    float m = a.m[r] > b.m[r] ? a.m[r] : b.m[r];
    F wa = exp2(set1(a.m[r] - m)), wb = exp2(set1(b.m[r] - m));
    store(b.l + r * W, fma(load(a.l + r * W), wa, load(b.l + r * W) * wb));
    b.m[r] = m;
    for (int i = 0; i < t.padded; i += W) store(y + i, fma(load(x + i), wa, load(y + i) * wb));
  }
}

// The tree, fed with parts in ascending order: a binary counter whose digits are finished subtrees.
class Tree {
 public:
  // memory: of MAX_LEVELS + 1 states, or NULL where all parts are already in memory.
  Tree(const Task &task, float *memory) : task_(task) {
    const int64_t len = memory ? state_len(task.num_rows, task.padded) : 0;
    for (int i = 0; i <= MAX_LEVELS; i++) parts_[i] = memory + i * len;
  }
  // Where to put the next part.
  float *next() { return parts_[MAX_LEVELS]; }
  // The part in next() is complete.
  void push(int split) {
    int level = 0;
    for (; split >> level & 1; level++) {
      if (used_ >> level & 1) join(task_, state(level), state(MAX_LEVELS));
      used_ &= ~(1u << level);
    }
    float *free = parts_[level];
    parts_[level] = parts_[MAX_LEVELS];
    parts_[MAX_LEVELS] = free;
    used_ |= 1u << level;
  }
  // The same for a part that lies elsewhere; it is written to.
  void push(int split, float *part) {
    parts_[MAX_LEVELS] = part;
    push(split);
  }
  State result() {
    int lowest = 0;
    while (!(used_ >> lowest & 1)) lowest++;
    for (int level = lowest + 1; level < MAX_LEVELS; level++)
      if (used_ >> level & 1) join(task_, state(level), state(lowest));
    return state(lowest);
  }

 private:
  // Level 0 … MAX_LEVELS - 1 are subtrees, MAX_LEVELS is the newest part; pointers swap instead of states being copied.
  State state(int level) { return State(parts_[level], task_); }
  const Task &task_;
  uint32_t used_ = 0;
  float *parts_[MAX_LEVELS + 1];
};

// Per-thread memory, in order: scores and weights of a register tile, queries [rows][steps] and their scales, a copied span,
// tree states.
struct Scratch {
  float *scores, *weights, *queries, *query_scales, *states;
  char *copy;
  Scratch(char *memory, const mv_op &op) {
    scores = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    weights = scores + MAX_TILE_ROWS * SPAN;
    queries = weights + MAX_TILE_ROWS * SPAN;
    query_scales = queries + int64_t(max_rows(op)) * (padded_dim(op.head_dim) + 15);
    copy = (char *)(query_scales + max_rows(op));
    states = (float *)(copy + span_copy_bytes(op.head_dim));
  }
  static int64_t bytes(const mv_op &op) {
    int64_t floats = 2 * MAX_TILE_ROWS * SPAN + int64_t(max_rows(op)) * (padded_dim(op.head_dim) + 16);
    return 4 * (floats + (MAX_LEVELS + 1) * max_state_len(op)) + span_copy_bytes(op.head_dim) + 64;
  }
};

// The scale goes into q, and with it the change to powers of two, unless scores are capped in between.
template <typename Lanes>
void write_queries(const Task &t, const Scratch &scratch) {
  typename Lanes::Operand *out = (typename Lanes::Operand *)scratch.queries;
  const int d = t.op->head_dim, steps = (d + Lanes::P - 1) / Lanes::P;
  const float factor = t.op->softcap != 0.0f ? t.op->scale : t.op->scale * LOG2_E;
  for (int r = 0; r < t.num_rows; r++) {
    const float *row = t.op->x + (t.tile.first_row + r / t.group) * t.op->x_stride;
    const float *q = row + (t.head * t.group + r % t.group) * d;
    if constexpr (Lanes::HAS_SCALES)
      scratch.query_scales[r] = write_query_codes(q, d, factor, out + r * steps);
    else
      Lanes::write_query(q, d, factor, out + r * steps);
  }
}

// Up to MAX_TILE_ROWS rows of a task, and what each of them sees of the span at hand.
struct TileRows {
  int first, count;
  RowRange ranges[MAX_TILE_ROWS];
  int low, high;  // keys that some row sees
  bool whole;     // every row sees the whole span

  TileRows(const Task &t, int first_row, int start) : first(first_row), count(min32(MAX_TILE_ROWS, t.num_rows - first_row)) {
    low = SPAN;
    high = 0;
    whole = true;
    for (int i = 0; i < count; i++) {
      int position = t.position(first + i);
      RowRange &range = ranges[i];
      range.from = max32(0, t.first_visible(position) - start);
      range.to = min32(SPAN, position + 1 - start);
      whole = whole && range.from == 0 && range.to == SPAN;
      if (range.from >= range.to) {
        range.from = range.to = 0;
        continue;
      }
      low = min32(low, range.from);
      high = max32(high, range.to);
    }
  }
  bool empty() const { return low >= high; }
};

// Caps scores and makes those that a row does not see -infinity.
void adjust_scores(const mv_op &op, const TileRows &rows, float *scores) {
  for (int i = 0; i < rows.count; i++) {
    for (int j = 0; j < SPAN; j += W) {
      F x = load(scores + i * SPAN + j);
      if (op.softcap != 0.0f) x = softcap(x, op.softcap) * LOG2_E;
      I index = lane_index(j);
      I visible = (index >= rows.ranges[i].from) & (index < rows.ranges[i].to);
      store(scores + i * SPAN + j, visible ? x : set1(-__builtin_inff()));
    }
  }
}

// The online softmax of a tile's rows over a span, phase by phase so that the rows' steps overlap: scores [rows][SPAN] become
// weights [rows][SPAN / P], of an int8 store with a scale each.
template <typename Lanes>
void weigh_rows(const Task &t, const State &s, const TileRows &rows, const Span<Lanes> &span, float *scores,
                typename Lanes::Operand *weights, float *scales) {
  F now[MAX_TILE_ROWS];
  bool grown = false;
  for (int i = 0; i < rows.count; i++) {
    F largest = load(scores + i * SPAN);
    MV_UNROLL for (int j = W; j < SPAN; j += W) largest = max(largest, load(scores + i * SPAN + j));
    float before = s.m[rows.first + i];
    now[i] = max(set1(before), ceil(set1(max_lanes(largest))));
    grown = grown || now[i][0] != before;
  }
  for (int i = 0; grown && i < rows.count; i++) {  // else the factors are exactly 1
    int r = rows.first + i;
    F factor = exp2(s.m[r] - now[i]);
    if (s.m[r] == now[i][0]) continue;
    s.m[r] = now[i][0];
    store(s.l + r * W, load(s.l + r * W) * factor);
    float *acc = s.acc + r * t.padded;
    for (int d = 0; d < t.padded; d += W) store(acc + d, load(acc + d) * factor);
  }
  for (int i = 0; i < rows.count; i++) {
    scales[i] = 0.0f;
    if (rows.ranges[i].from >= rows.ranges[i].to) continue;  // there may be no m yet
    F sum = zero();
    float *row = scores + i * SPAN;
    MV_UNROLL for (int j = 0; j < SPAN; j += 2 * W) {
      F a = exp2(load(row + j) - now[i]), b = exp2(load(row + j + W) - now[i]);
      if constexpr (Lanes::HAS_SCALES) {
        store(row + j, a);
        store(row + j + W, b);
        sum += a + b;
      } else {
        sum += Lanes::write_weights(a, b, weights + i * (SPAN / Lanes::P) + j / Lanes::P);
      }
    }
    if constexpr (Lanes::HAS_SCALES) scales[i] = write_weight_codes(span, row, weights + i * (SPAN / Lanes::P));
    float *l = s.l + (rows.first + i) * W;
    store(l, load(l) + sum);
  }
}

// Reads spans of tasks one after the other, and knows the one that comes next in time to ask for its memory.
template <typename Lanes>
class Reader {
 public:
  Reader(const mv_op &op, const StepView &step, const Scratch &scratch)
      : op_(op), step_(step), scratch_(scratch), tiles_(*step.store, op.layer) {}

  // Adds the split's visible keys to s; the split is the unit, or one of the task that is.
  void accumulate_split(const Task &t, int64_t unit, const State &s, int split) {
    int begin = max32(split * SPLIT, t.first_key() / SPAN * SPAN), end = min32((split + 1) * SPLIT, t.last_position() + 1);
    for (int start = begin; start < end; start += SPAN) {
      if (!in_place()) {
        accumulate_span(t, s, start, copy_span<Lanes>(t.place(tiles_, start), scratch_.copy), nullptr);
        continue;
      }
      Span<Lanes> span = located_ == unit && located_start_ == start ? next_ : locate_span<Lanes>(t.place(tiles_, start));
      accumulate_span(t, s, start, span, locate_next(t, unit, start) ? &next_ : nullptr);
    }
  }

 private:
  bool in_place() const { return tiles_.block_size % GROUP == 0; }

  // The unit's next span, or the first one of the next unit.
  bool locate_next(const Task &t, int64_t unit, int start) {
    const int next = start + SPAN;
    if (next <= t.last_position() && !(step_.split_units && next % SPLIT == 0)) return locate(t, unit, next);
    if (unit + 1 == attend_units(op_, step_)) return false;
    const Unit after(op_, step_, unit + 1);
    const Task task(op_, step_, after.task);
    if (step_.split_units && !task.has(after.split)) return false;
    return locate(task, unit + 1, max32(after.split * SPLIT, task.first_key() / SPAN * SPAN));
  }
  bool locate(const Task &t, int64_t unit, int start) {
    located_ = unit;
    located_start_ = start;
    next_ = locate_span<Lanes>(t.place(tiles_, start));
    return true;
  }

  void accumulate_span(const Task &t, const State &s, int start, const Span<Lanes> &span, const Span<Lanes> *ahead) {
    typedef typename Lanes::Operand Operand;
    const Operand *queries = (const Operand *)scratch_.queries;
    Operand *weights = (Operand *)scratch_.weights;
    float *scores = scratch_.scores, scales[MAX_TILE_ROWS];
    for (int first = 0; first < t.num_rows; first += MAX_TILE_ROWS) {
      TileRows rows(t, first, start);
      if (rows.empty()) continue;
      const int group = rows.low / GROUP, end = (rows.high + GROUP - 1) / GROUP;
      dispatch_rows<ScoreRows, Lanes>(rows.count, span, ahead, queries + first * span.steps, group, end, scores);
      if constexpr (Lanes::HAS_SCALES) scale_scores(span, scratch_.query_scales + first, rows.count, group, end, scores);
      if (!rows.whole || t.op->softcap != 0.0f) adjust_scores(*t.op, rows, scores);
      weigh_rows<Lanes>(t, s, rows, span, scores, weights, scales);
      float *acc = s.acc + first * t.padded;
      if constexpr (Lanes::HAS_SCALES)
        dispatch_rows<CodeRows, Lanes>(rows.count, span, ahead, weights, scales, rows.low / 2, (rows.high + 1) / 2, acc);
      else
        add_values(span, ahead, weights, rows.ranges, rows.count, acc);
      ahead = nullptr;
    }
  }

  const mv_op &op_;
  const StepView &step_;
  const Scratch &scratch_;
  const LayerTiles tiles_;
  Span<Lanes> next_;
  int64_t located_ = -1;  // the unit that next_ belongs to, and where it starts
  int located_start_ = 0;
};

template <typename Row>
void write_rows_as(const Task &t, const State &s) {
  const int d = t.op->head_dim;
  for (int r = 0; r < t.num_rows; r++) {
    const Row out(t.op->out + (t.tile.first_row + r / t.group) * t.op->out_stride);
    const int column = (t.head * t.group + r % t.group) * d;
    const float *acc = s.acc + r * t.padded;
    F inverse = set1(1.0f / sum_lanes(load(s.l + r * W)));
    int i = 0;
    for (; i + W <= d; i += W) out.put(column + i, load(acc + i) * inverse);
    if (i < d) out.put_n(column + i, load(acc + i) * inverse, d - i);
  }
}
// In int8, a few rows at a time; heads are whole groups.
void write_rows_int8(const Task &t, const State &s) {
  const int d = t.op->head_dim, each = d / GROUP_COLUMNS;
  alignas(64) float values[W * GROUP_COLUMNS];
  Scattered to;
  to.columns = t.op->width;
  int count = 0;
  for (int r = 0; r < t.num_rows; r++) {
    const F inverse = set1(1.0f / sum_lanes(load(s.l + r * W)));
    for (int g = 0; g < each; g++) {
      const float *acc = s.acc + r * t.padded + g * GROUP_COLUMNS;
      MV_UNROLL for (int i = 0; i < GROUP_COLUMNS; i += W)
        store(values + count * GROUP_COLUMNS + i, load(acc + i) * inverse);
      to.row[count] = t.op->out + (t.tile.first_row + r / t.group) * t.op->out_stride;
      to.column[count++] = (t.head * t.group + r % t.group) * d + g * GROUP_COLUMNS;
      if (count < W && (r + 1 < t.num_rows || g + 1 < each)) continue;
      quantize_groups(values, count, t.op->out_format, to);
      count = 0;
    }
  }
}
void write_rows(const Task &t, const State &s) {
  if (is_quantized(t.op->out_format)) return write_rows_int8(t, s);
  t.op->out_format == MV_BF16 ? write_rows_as<RoundedRow>(t, s) : write_rows_as<FloatRow>(t, s);
}

int64_t combine_units(const mv_op &op, const StepView &step) {
  return step.split_units ? int64_t(step.num_tiles) * op.num_kv_heads : 0;
}

template <typename Lanes>
void attend_units_of(const mv_op &op, const StepView &step, int64_t begin, int64_t end, char *memory) {
  Scratch scratch(memory, op);
  Reader<Lanes> reader(op, step, scratch);
  for (int64_t unit = begin; unit < end; unit++) {
    const Unit u(op, step, unit);
    Task t(op, step, u.task);
    if (step.split_units && !t.has(u.split)) continue;
    write_queries<Lanes>(t, scratch);
    if (step.split_units) {
      State part(step.partials + (u.task * step.num_splits + u.split) * step.partial_len, t);
      clear(t, part);
      reader.accumulate_split(t, unit, part, u.split);
      continue;
    }
    Tree tree(t, scratch.states);
    for (int split = t.first_split(); split <= t.last_split(); split++) {
      State part(tree.next(), t);
      clear(t, part);
      reader.accumulate_split(t, unit, part, split);
      tree.push(split);
    }
    write_rows(t, tree.result());
  }
}

void attend(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &thread) {
  if (step.store->format == MV_F32) attend_units_of<Singles<F32>>(op, step, begin, end, thread.scratch);
  if (step.store->format == MV_F16) attend_units_of<Singles<F16>>(op, step, begin, end, thread.scratch);
  if (step.store->format == MV_BF16) attend_units_of<Pairs>(op, step, begin, end, thread.scratch);
  if (step.store->format == MV_STORE_Q8) attend_units_of<Codes>(op, step, begin, end, thread.scratch);
}

void combine(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  for (int64_t unit = begin; unit < end; unit++) {
    Task t(op, step, unit);
    Tree tree(t, nullptr);
    for (int split = t.first_split(); split <= t.last_split(); split++)
      tree.push(split, step.partials + (unit * step.num_splits + split) * step.partial_len);
    write_rows(t, tree.result());
  }
}

}  // namespace

int64_t attend_partial_len(const mv_op &op) { return max_state_len(op); }
int64_t attend_scratch_bytes(const mv_op &op, const mv_store &) { return Scratch::bytes(op); }

const Kernel ATTEND = {attend_units, attend, 1};
const Kernel COMBINE = {combine_units, combine, 1};

}  // namespace MV_ISA
}  // namespace mv
