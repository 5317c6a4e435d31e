// One span of 64 keys of one sequence and K/V head: where its keys lie, q.K^T over it and p.V over it.
//
// Blocks whose size is a multiple of 16 are read in place; other block sizes are first copied to the same shape. Each
// score is one chain of multiply-adds in the order of dimensions, each output one chain in the order of keys.
#ifndef MINI_VLLM_KERNELS_ATTENTION_SPAN_H
#define MINI_VLLM_KERNELS_ATTENTION_SPAN_H

#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/numeric.h"
#include "kv_layout.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int GROUP = 16;             // keys side by side in K^T
constexpr int GROUPS = SPAN / GROUP;  // of a span
constexpr int GV = GROUP / W;         // vectors of a group
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MAX_GROUP_ROWS = 6;  // rows of a register tile
constexpr int VALUE_VECTORS = 4;   // vectors of V's dimensions in a register tile
#else
constexpr int MAX_GROUP_ROWS = W == 8 ? 4 : 2;
constexpr int VALUE_VECTORS = 2;
#endif
constexpr int SCORE_GROUPS = W == 16 ? 4 : 1;  // groups of keys in a register tile

struct SpanScratch {
  float *scores;  // [rows][SPAN]
  char *tile;     // K and V of a span, for block sizes that are not multiples of 16
};
inline int64_t span_tile_bytes(int head_dim) { return int64_t(SPAN) * (head_dim + padded_dim(head_dim)) * 4; }

// Keys group g: dimension d of its 16 keys starts at keys[g] + d * key_stride. V of its key j at values[g] + j * padded.
template <typename Format>
struct SpanView {
  typedef typename Format::Element Element;
  const Element *keys[GROUPS], *values[GROUPS];
  const Element *next_keys[GROUPS];  // of the span to be read next, to ask for in time; else these again
  int64_t key_stride;
  int head_dim, padded, low, high;  // keys low … high - 1 of the span are visible to some row
};

// Copies keys low … high of an oddly sized block structure; the rest of the scratch is never used but as dead lanes.
template <typename Format>
void copy_span(SpanView<Format> &view, const mv_op &op, const mv_store &s, const int32_t *table, int head, int start,
               char *memory) {
  typedef typename Format::Element Element;
  Element *keys = (Element *)memory, *values = keys + SPAN * op.head_dim;
  for (int j = view.low; j < view.high; j++) {
    int position = start + j, offset = position % s.block_size;
    const Element *tile =
        (const Element *)s.data + tile_offset(s, op.layer, table[position / s.block_size], head);
    Element *to = keys + j / GROUP * GROUP * op.head_dim + j % GROUP;
    for (int d = 0; d < op.head_dim; d++) to[d * GROUP] = tile[int64_t(d) * s.block_size + offset];
    memcpy(values + j * view.padded, tile + key_elements(s) + int64_t(offset) * view.padded,
           sizeof(Element) * size_t(view.padded));
  }
  for (int g = 0; g < GROUPS; g++) {
    view.keys[g] = keys + g * GROUP * op.head_dim;
    view.values[g] = values + g * GROUP * view.padded;
  }
  view.key_stride = GROUP;
}

template <typename Format>
SpanView<Format> locate_span(const mv_op &op, const StepView &step, int seq, int head, int start, int low, int high,
                             const SpanScratch &scratch) {
  typedef typename Format::Element Element;
  const mv_store &s = *step.store;
  const int32_t *table = step.in.block_tables + int64_t(seq) * step.in.table_width;
  SpanView<Format> view;
  view.head_dim = op.head_dim;
  view.padded = padded_dim(op.head_dim);
  view.low = low;
  view.high = high;
  if (s.block_size % GROUP != 0) {
    copy_span(view, op, s, table, head, start, scratch.tile);
    return view;
  }
  view.key_stride = s.block_size;
  for (int g = 0; g < GROUPS; g++) {
    int nearest = min32(max32(g, low / GROUP), (high - 1) / GROUP);  // a group without visible keys is never read
    int position = start + nearest * GROUP, offset = position % s.block_size;
    const Element *tile = (const Element *)s.data + tile_offset(s, op.layer, table[position / s.block_size], head);
    view.keys[g] = tile + offset;
    view.values[g] = tile + key_elements(s) + int64_t(offset) * view.padded;
  }
  return view;
}

// Where the keys of the span at `start` lie, if the sequence's rows go on to it.
template <typename Format>
void locate_next(SpanView<Format> &view, const mv_op &op, const StepView &step, int seq, int head, int start,
                 int last) {
  typedef typename Format::Element Element;
  const mv_store &s = *step.store;
  const int32_t *table = step.in.block_tables + int64_t(seq) * step.in.table_width;
  for (int g = 0; g < GROUPS; g++) {
    int position = start + g * GROUP;
    view.next_keys[g] = view.keys[g];
    if (s.block_size % GROUP == 0 && position <= last)
      view.next_keys[g] = (const Element *)s.data +
                          tile_offset(s, op.layer, table[position / s.block_size], head) + position % s.block_size;
  }
}

// scores[r][16 g …] of MR rows and NG groups of keys.
template <typename Format, int MR, int NG>
MV_INLINE void score_tile(const SpanView<Format> &view, const float *q, int g, float *scores) {
  F acc[MR][NG * GV];
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NG * GV; v++) acc[m][v] = zero();
  }
  const int64_t stride = view.key_stride;
  const int D = view.head_dim;
  for (int d = 0; d < D; d++) {
    MV_UNROLL for (int i = 0; i < NG; i++) __builtin_prefetch(view.values[g + i] + d * GROUP);
    F k[NG * GV];
    MV_UNROLL for (int v = 0; v < NG * GV; v++) k[v] = Format::widen(view.keys[g + v / GV] + d * stride + v % GV * W);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      F a = set1(q[m * D + d]);
      MV_UNROLL for (int v = 0; v < NG * GV; v++) acc[m][v] = fma(k[v], a, acc[m][v]);
    }
  }
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NG * GV; v++) store(scores + m * SPAN + g * GROUP + v * W, acc[m][v]);
  }
}

template <typename Format, int MR>
void score_group_rows(const SpanView<Format> &view, const float *q, float *scores) {
  int g = view.low / GROUP, end = (view.high + GROUP - 1) / GROUP;
  if constexpr (SCORE_GROUPS == 4)
    for (; g + 4 <= end; g += 4) score_tile<Format, MR, 4>(view, q, g, scores);
  for (; g < end; g++) score_tile<Format, MR, 1>(view, q, g, scores);
}

// acc[r] += sum over keys from <= j < to of p[r][j] V[j], for MR rows at once.
template <typename Format, int MR, int NV>
MV_INLINE void value_tile(const SpanView<Format> &view, const float *p, int from, int to, int column, float *acc) {
  const int64_t padded = view.padded;
  F sum[MR][NV];
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NV; v++) sum[m][v] = load(acc + m * padded + column + v * W);
  }
  const int dims = view.head_dim / GROUP;
  for (int j = from; j < to; j++) {
    if (MR <= 4 && column == 0)
      for (int d = j % GROUP * dims; d < (j % GROUP + 1) * dims; d++)
        __builtin_prefetch(view.next_keys[j / GROUP] + d * view.key_stride);
    const typename Format::Element *row = view.values[j / GROUP] + j % GROUP * padded + column;
    F value[NV];
    MV_UNROLL for (int v = 0; v < NV; v++) value[v] = Format::widen(row + v * W);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      F a = set1(p[m * SPAN + j]);
      MV_UNROLL for (int v = 0; v < NV; v++) sum[m][v] = fma(value[v], a, sum[m][v]);
    }
  }
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NV; v++) store(acc + m * padded + column + v * W, sum[m][v]);
  }
}

template <typename Format, int MR>
void value_group_rows(const SpanView<Format> &view, const float *p, int from, int to, float *acc) {
  if (from >= to) return;
  int column = 0;
  for (; column + VALUE_VECTORS * W <= view.padded; column += VALUE_VECTORS * W)
    value_tile<Format, MR, VALUE_VECTORS>(view, p, from, to, column, acc);
  for (; column < view.padded; column += W) value_tile<Format, MR, 1>(view, p, from, to, column, acc);
}

// Calls Function<MR>::run for a number of rows known only at run time.
template <template <typename, int> class Function, typename Format, int MR = MAX_GROUP_ROWS, typename... Args>
MV_INLINE void dispatch_rows(int rows, const Args &...args) {
  if (rows == MR) return Function<Format, MR>::run(args...);
  if constexpr (MR > 1) dispatch_rows<Function, Format, MR - 1>(rows, args...);
}
template <typename Format, int MR>
struct ScoreRows {
  static void run(const SpanView<Format> &view, const float *q, float *scores) {
    score_group_rows<Format, MR>(view, q, scores);
  }
};
template <typename Format, int MR>
struct ValueRows {
  static void run(const SpanView<Format> &view, const float *p, int from, int to, float *acc) {
    value_group_rows<Format, MR>(view, p, from, to, acc);
  }
};

template <typename Format>
void score_rows(const SpanView<Format> &view, const float *queries, int num_rows, float *scores) {
  for (int r = 0; r < num_rows; r += MAX_GROUP_ROWS) {
    const float *q = queries + r * view.head_dim;
    float *out = scores + r * SPAN;
    dispatch_rows<ScoreRows, Format>(min32(MAX_GROUP_ROWS, num_rows - r), view, q, out);
  }
}

struct RowRange {
  int from, to;  // visible keys of a row in the span
};

// Up to MAX_GROUP_ROWS rows: keys visible to all of them in one register tile, those before and after row by row, so that
// each row adds its own keys in their order and no others.
template <typename Format>
void add_values(const SpanView<Format> &view, const float *p, const RowRange *ranges, int count, float *acc) {
  int from = 0, to = SPAN;
  for (int i = 0; i < count; i++) {
    from = max32(from, ranges[i].from);
    to = min32(to, ranges[i].to);
  }
  if (from >= to) from = to = 0;
  if (to > 0)
    for (int i = 0; i < count; i++)
      value_group_rows<Format, 1>(view, p + i * SPAN, ranges[i].from, from, acc + i * view.padded);
  dispatch_rows<ValueRows, Format>(count, view, p, from, to, acc);
  for (int i = 0; i < count; i++)
    value_group_rows<Format, 1>(view, p + i * SPAN, to > 0 ? to : ranges[i].from, ranges[i].to, acc + i * view.padded);
}

}  // namespace
}  // namespace MV_ISA
}  // namespace mv
#endif
