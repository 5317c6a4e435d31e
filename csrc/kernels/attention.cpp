// Paged attention over the whole ragged batch, K and V read where they lie.
//
//   out[q] = sum over visible k of softmax_k(scale q.k) v[k],   visible: p_q - window < p_k <= p_q
//
// A task is a tile of up to TILE_POSITIONS consecutive tokens of one sequence and one K/V head; its rows are those tokens
// times the query heads that share the K/V head, so a key is loaded once for all of them. The history is read in SPANs of
// 64 keys at absolute positions. For each span (online softmax, m = largest score so far, l = sum of weights):
//
//     s = scale q.K^T        m' = max(m, max s)      p = e^(s - m')
//     l = l e^(m - m') + sum p                       acc = acc e^(m - m') + p V
//
// SPLITs of 256 positions start from nothing and meet in one binary tree over absolute split numbers:
//
//     join(a, b) = weights e^(m_a - m), e^(m_b - m) with m = max(m_a, m_b), summed;  a part without visible keys is skipped
//
// Whether one thread walks all parts of a task (and joins them as it goes) or every part is a unit of its own (and
// MV_ATTEND_COMBINE joins them) depends on how much work there is; the tree is the same, and so are the bits. A row's
// result depends on its own position and history alone: keys after it are never accumulated, only scored and dropped.
#include "kernels/attention_span.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int MAX_LEVELS = 24;  // of the tree: more splits than any 32-bit position has

// Rows of a task: row i * group + g is token i, query head head * group + g.
struct Task {
  const mv_op *op;
  const StepView *step;
  QueryTile tile;
  int head, group, num_rows, padded;

  Task(const mv_op &o, const StepView &s, int64_t index) : op(&o), step(&s) {
    tile = s.tiles[index / o.num_kv_heads];
    head = int(index % o.num_kv_heads);
    group = o.num_heads / o.num_kv_heads;
    num_rows = tile.num_rows * group;
    padded = padded_dim(o.head_dim);
  }
  int position(int row) const { return tile.first_position + row / group; }
  int first_visible(int position) const { return op->window > 0 ? max32(0, position - op->window + 1) : 0; }
  int first_split() const { return first_visible(tile.first_position) / SPLIT; }
  int last_split() const { return (tile.first_position + tile.num_rows - 1) / SPLIT; }
};

// m [rows], l [rows], acc [rows][padded]: what a part of the history adds up to.
struct State {
  float *m, *l, *acc;
  State() : m(nullptr), l(nullptr), acc(nullptr) {}
  State(float *memory, int max_rows) : m(memory), l(memory + max_rows), acc(memory + 2 * max_rows) {}
};

int max_rows(const mv_op &op) { return (TILE_POSITIONS * (op.num_heads / op.num_kv_heads) + 15) / 16 * 16; }
int64_t state_len(const mv_op &op) { return int64_t(max_rows(op)) * (2 + padded_dim(op.head_dim)); }

void clear(const Task &t, const State &s) {
  for (int r = 0; r < t.num_rows; r++) s.m[r] = -__builtin_inff();
  memset(s.l, 0, sizeof(float) * size_t(t.num_rows));
  memset(s.acc, 0, sizeof(float) * size_t(t.num_rows) * size_t(t.padded));
}

// b = join(a, b), row by row.
void join(const Task &t, const State &a, const State &b) {
  const float none = -__builtin_inff();
  for (int r = 0; r < t.num_rows; r++) {
    float *x = a.acc + r * t.padded, *y = b.acc + r * t.padded;
    if (a.m[r] == none) continue;
    if (b.m[r] == none) {
      b.m[r] = a.m[r];
      b.l[r] = a.l[r];
      memcpy(y, x, sizeof(float) * size_t(t.padded));
      continue;
    }
    float m = a.m[r] > b.m[r] ? a.m[r] : b.m[r];
    F wa = exp(set1(a.m[r] - m)), wb = exp(set1(b.m[r] - m));
    b.l[r] = a.l[r] * wa[0] + b.l[r] * wb[0];
    b.m[r] = m;
    for (int i = 0; i < t.padded; i += W) store(y + i, fma(load(x + i), wa, load(y + i) * wb));
  }
}

// The tree, fed with parts in ascending order: a binary counter whose digits are finished subtrees.
class Tree {
 public:
  Tree(const Task &task, float *memory) : task_(task), memory_(memory), len_(state_len(*task.op)) {}
  // Where to put the next part: the slot after the highest level in use.
  State next() { return state(MAX_LEVELS); }
  void push(int split) {
    int level = 0;
    for (; split >> level & 1; level++) {
      if (used_ >> level & 1) join(task_, state(level), next());
      used_ &= ~(1u << level);
    }
    move(MAX_LEVELS, level);
    used_ |= 1u << level;
  }
  State result() {
    int lowest = 0;
    while (!(used_ >> lowest & 1)) lowest++;
    for (int level = lowest + 1; level < MAX_LEVELS; level++)
      if (used_ >> level & 1) join(task_, state(level), state(lowest));
    return state(lowest);
  }

 private:
  // Level 0 … MAX_LEVELS - 1 are subtrees, MAX_LEVELS is the newest part; slots swap instead of being copied.
  State state(int level) { return State(memory_ + slot_[level] * len_, max_rows(*task_.op)); }
  void move(int from, int to) {
    int slot = slot_[to];
    slot_[to] = slot_[from];
    slot_[from] = slot;
  }
  const Task &task_;
  float *memory_;
  int64_t len_;
  uint32_t used_ = 0;
  int slot_[MAX_LEVELS + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 0};
};

// Per-thread memory, in order: span scratch, queries [rows][D], tree states.
struct Scratch {
  SpanScratch span;
  float *queries, *states;
  Scratch(char *memory, const mv_op &op) {
    span.scores = (float *)memory;
    span.tile = (char *)(span.scores + max_rows(op) * SPAN);
    queries = (float *)(span.tile + span_tile_bytes(op.head_dim));
    states = queries + (int64_t(max_rows(op)) * op.head_dim + 15) / 16 * 16;
  }
};

void copy_queries(const Task &t, float *queries) {
  int d = t.op->head_dim;
  for (int i = 0; i < t.tile.num_rows; i++) {
    const float *q = t.op->x + (t.tile.first_row + i) * t.op->x_stride + t.head * t.group * d;
    memcpy(queries + i * t.group * d, q, sizeof(float) * size_t(t.group) * size_t(d));
  }
}

// Scales and caps one row's scores [from, to), in place; lanes outside become -infinity. Returns the largest.
float prepare_scores(const mv_op &op, float *scores, const RowRange &range) {
  const float none = -__builtin_inff();
  F largest = set1(none);
  for (int j = range.from / W * W; j < range.to; j += W) {
    I index = lane_index(j);
    F x = load(scores + j) * op.scale;
    if (op.softcap != 0.0f) x = softcap(x, op.softcap);
    I visible = (index >= range.from) & (index < range.to);
    x = visible ? x : set1(none);
    store(scores + j, x);
    largest = max(largest, x);
  }
  return max_lanes(largest);
}

// Scores become softmax weights relative to m. Returns their sum.
float weigh_scores(float *scores, const RowRange &range, float m) {
  F sum = zero();
  for (int j = range.from / W * W; j < range.to; j += W) {
    F p = exp(load(scores + j) - m);
    store(scores + j, p);
    sum += p;
  }
  return sum_lanes(sum);
}

// The online softmax of rows first … first + count over a span, phase by phase so that the rows' steps overlap.
void weigh_rows(const Task &t, const State &s, int first, int count, float *scores, const RowRange *ranges) {
  float largest[MAX_GROUP_ROWS], difference[(MAX_GROUP_ROWS + W - 1) / W * W] = {};
  for (int i = 0; i < count; i++) {
    float before = s.m[first + i];
    largest[i] = before;
    if (ranges[i].from >= ranges[i].to) continue;
    float here = prepare_scores(*t.op, scores + i * SPAN, ranges[i]);
    largest[i] = before > here ? before : here;
    difference[i] = before - largest[i];
  }
  for (int i = 0; i < MAX_GROUP_ROWS; i += W) store(difference + i, exp(load(difference + i)));
  for (int i = 0; i < count; i++) {
    if (ranges[i].from >= ranges[i].to) continue;
    float sum = weigh_scores(scores + i * SPAN, ranges[i], largest[i]);
    s.l[first + i] = s.l[first + i] * difference[i] + sum;
  }
  for (int i = 0; i < count; i++) {
    if (s.m[first + i] == largest[i]) continue;  // the factor is exactly 1
    s.m[first + i] = largest[i];
    float *acc = s.acc + (first + i) * t.padded;
    for (int d = 0; d < t.padded; d += W) store(acc + d, load(acc + d) * difference[i]);
  }
}

template <typename Format>
void accumulate_span(const Task &t, const Scratch &scratch, const State &s, int start) {
  int last = t.tile.first_position + t.tile.num_rows - 1;
  int low = max32(0, t.first_visible(t.tile.first_position) - start), high = min32(SPAN, last + 1 - start);
  SpanView<Format> span = locate_span<Format>(*t.op, *t.step, t.tile.seq, t.head, start, low, high, scratch.span);
  locate_next(span, *t.op, *t.step, t.tile.seq, t.head, start + SPAN, last);
  score_rows(span, scratch.queries, t.num_rows, scratch.span.scores);
  RowRange ranges[MAX_GROUP_ROWS];
  for (int first = 0; first < t.num_rows; first += MAX_GROUP_ROWS) {
    int count = min32(MAX_GROUP_ROWS, t.num_rows - first);
    for (int i = 0; i < count; i++) {
      int position = t.position(first + i);
      ranges[i].from = max32(0, t.first_visible(position) - start);
      ranges[i].to = min32(SPAN, position + 1 - start);
      if (ranges[i].from >= ranges[i].to) ranges[i].from = ranges[i].to = 0;
    }
    weigh_rows(t, s, first, count, scratch.span.scores + first * SPAN, ranges);
    add_values(span, scratch.span.scores + first * SPAN, ranges, count, s.acc + first * t.padded);
  }
}

void accumulate_split(const Task &t, const Scratch &scratch, const State &s, int split) {
  clear(t, s);
  int first = t.first_visible(t.tile.first_position), last = t.tile.first_position + t.tile.num_rows - 1;
  int begin = max32(split * SPLIT, first / SPAN * SPAN), end = min32((split + 1) * SPLIT, last + 1);
  for (int start = begin; start < end; start += SPAN) {
    if (t.step->store->format == MV_F32) accumulate_span<F32>(t, scratch, s, start);
    if (t.step->store->format == MV_F16) accumulate_span<F16>(t, scratch, s, start);
    if (t.step->store->format == MV_BF16) accumulate_span<BF16>(t, scratch, s, start);
  }
}

void write_rows(const Task &t, const State &s) {
  int d = t.op->head_dim;
  for (int r = 0; r < t.num_rows; r++) {
    float *out = t.op->out + (t.tile.first_row + r / t.group) * t.op->out_stride + (t.head * t.group + r % t.group) * d;
    const float *acc = s.acc + r * t.padded;
    F inverse = set1(1.0f / s.l[r]);
    int i = 0;
    for (; i + W <= d; i += W) store(out + i, load(acc + i) * inverse);
    if (i < d) store_n(out + i, load(acc + i) * inverse, d - i);
  }
}

// Units: (tile, K/V head), times the number of splits when every split is a unit.
int64_t attend_units(const mv_op &op, const StepView &step) {
  return int64_t(step.num_tiles) * op.num_kv_heads * (step.split_units ? step.num_splits : 1);
}
int64_t combine_units(const mv_op &op, const StepView &step) {
  return step.split_units ? int64_t(step.num_tiles) * op.num_kv_heads : 0;
}

void attend(const mv_op &op, const StepView &step, int64_t begin, int64_t end, char *memory) {
  Scratch scratch(memory, op);
  for (int64_t unit = begin; unit < end; unit++) {
    Task t(op, step, step.split_units ? unit / step.num_splits : unit);
    int split = step.split_units ? int(unit % step.num_splits) : 0;
    if (step.split_units && (split < t.first_split() || split > t.last_split())) continue;
    copy_queries(t, scratch.queries);
    if (step.split_units) {
      accumulate_split(t, scratch, State(step.partials + unit * step.partial_len, max_rows(op)), split);
      continue;
    }
    Tree tree(t, scratch.states);
    for (split = t.first_split(); split <= t.last_split(); split++) {
      accumulate_split(t, scratch, tree.next(), split);
      tree.push(split);
    }
    write_rows(t, tree.result());
  }
}

void combine(const mv_op &op, const StepView &step, int64_t begin, int64_t end, char *memory) {
  Scratch scratch(memory, op);
  for (int64_t unit = begin; unit < end; unit++) {
    Task t(op, step, unit);
    Tree tree(t, scratch.states);
    for (int split = t.first_split(); split <= t.last_split(); split++) {
      const float *part = step.partials + (unit * step.num_splits + split) * step.partial_len;
      memcpy(tree.next().m, part, sizeof(float) * size_t(state_len(op)));
      tree.push(split);
    }
    write_rows(t, tree.result());
  }
}

}  // namespace

int64_t attend_partial_len(const mv_op &op) { return state_len(op); }
int64_t attend_scratch_bytes(const mv_op &op, const mv_store &) {
  int64_t floats = int64_t(max_rows(op)) * SPAN + (int64_t(max_rows(op)) * op.head_dim + 15) / 16 * 16;
  return 4 * (floats + (MAX_LEVELS + 1) * state_len(op)) + span_tile_bytes(op.head_dim) + 64;
}

const Kernel ATTEND = {attend_units, attend, 1};
const Kernel COMBINE = {combine_units, combine, 1};

}  // namespace MV_ISA
}  // namespace mv
