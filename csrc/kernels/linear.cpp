// Products: out[t][n] = sum over k of x[t][k] * weight[n][k]  (+ bias[n])  (soft-capped)  (+ y[t][n]).
//
// A tile is MR rows of x by NP panels of 16 outputs, held in registers. Each step loads NP vectors of weights once and
// multiplies them by MR broadcast words of x:
//
//     for step:  w[0 … NP) = panel vectors;   for m:  acc[m][p] = w[p] * x[m][step] + acc[m][p]
//
// What a step multiplies depends on the weights' format; accumulators are float32 always:
//
//     float32    a column of float32 by float32, fused
//     float16    the same, widened in the register
//     bfloat16   two columns by two numbers of x that MV_QUANTIZE has rounded to bfloat16: AVX-512's dot product of pairs
//                (it flushes denormals), elsewhere two fused multiply-adds of the widened numbers. So every instruction
//                set multiplies the same inputs, and they differ by the roundings of sums alone. The residual that is
//                added at the end, and everything between products, stays float32.
//
// An output is one chain of such steps in the order of k: its bits do not depend on the number of rows, on the tile, or
// on which thread computed it. Products with quantised weights are in quantized.cpp.
//
// MV_LINEAR_SILU_MUL takes panels of gate and of up side by side in a tile, so that silu(gate) * up is made of sums that have
// not left the caches, and written once, in bfloat16 where the next product wants that.
//
// Many rows are worked through block by block of columns, so that NP panels of a block stay in the first-level cache
// while all tiles of rows pass; sums wait in memory, in full, between blocks. Meanwhile each tile asks for its share of
// the block that comes next, so that memory is read at an even rate while the arithmetic units are busy.
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"
#include "kernels/tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int MAX_ROWS = 96;           // rows that share the weights of a group of panels
constexpr int BLOCK_BYTES = 20 << 10;  // of one panel
constexpr int ALONE_AHEAD = 4096;      // bytes ahead that one tile alone asks for, of several panels abreast

// Vector v of a step of a panel, a word of x, and their product on top of a sum.
struct FloatStep {
  static constexpr int32_t FORMAT = MV_F32;
  static constexpr int BYTES = 4 * PANEL;  // of a panel
  static MV_INLINE F weights(const char *step, int v) { return load((const float *)step + v * W); }
  static MV_INLINE F input(const float *x) { return set1(*x); }
  static MV_INLINE F add(F sum, F w, F x) { return fma(w, x, sum); }
};
struct HalfStep : FloatStep {
  static constexpr int32_t FORMAT = MV_F16;
  static constexpr int BYTES = 2 * PANEL;
  static MV_INLINE F weights(const char *step, int v) { return F16::widen((const uint16_t *)step + v * W); }
};
struct PairStep {
  static constexpr int32_t FORMAT = MV_BF16;
  static constexpr int BYTES = 4 * PANEL;
  static MV_INLINE U weights(const char *step, int v) {
    U pair;
    memcpy(&pair, step + v * W * 4, sizeof pair);
    return pair;
  }
  static MV_INLINE U input(const float *x) {
    uint32_t pair;
    memcpy(&pair, x, 4);
    return U{} + pair;
  }
  static MV_INLINE F add(F sum, U w, U x) {
#if defined(__AVX512BF16__)
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
#else
    sum = fma((F)(w << 16), (F)(x << 16), sum);
    return fma((F)(w & 0xffff0000u), (F)(x & 0xffff0000u), sum);
#endif
  }
};

// Where the NP panels of a tile lie: pairs of panels, one `step` apart within a pair and one `pair_step` from pair to pair.
struct PanelSteps {
  int64_t step, pair_step;
  MV_INLINE int64_t to(int p) const { return p / 2 * pair_step + p % 2 * step; }
};

// Steps begin … end of one tile. `sums` holds MR rows of NP panels: results of the steps before, then of these too.
struct Span {
  const float *x;  // of the tile's first row
  int64_t x_stride;
  const char *panel;  // the first of NP
  PanelSteps panels;
  int begin, end;
  float *sums;
  const char *ahead;  // what to ask for meanwhile, in NP panels, and how far to move on every two steps
  int64_t ahead_step;
};

template <typename P>
struct Dense {
  // Panels abreast at one row, where memory is the limit: one stream is what the processor fetches ahead best, if its one
  // chain of sums keeps up.
#if defined(__AVX512F__)
  static constexpr int AT_ONE_ROW = 1;
#elif defined(__AVX2__)
  static constexpr int AT_ONE_ROW = P::FORMAT == MV_F32 ? 1 : 2;
#else
  static constexpr int AT_ONE_ROW = 4;
#endif

#if defined(__AVX512F__)
  static constexpr int ROWS_4 = 6, ROWS_2 = 8, ROWS_1 = 8;
#elif defined(__AVX2__) || defined(__aarch64__)
  static constexpr int ROWS_4 = 1, ROWS_2 = 3, ROWS_1 = 6;
#else
  static constexpr int ROWS_4 = 0, ROWS_2 = 1, ROWS_1 = 3;
#endif

  // Where a tile stands in its rows of x, three rows to a pointer, and in its panels, two to a pointer.
  template <int MR, int NP>
  struct Cursor {
    const char *x[(MR + 2) / 3], *w[(NP + 1) / 2];
    int64_t x_stride, w_stride;
    MV_INLINE const char *row(int m) const { return x[m / 3] + m % 3 * x_stride; }
    MV_INLINE const char *panel(int p) const { return w[p / 2] + p % 2 * w_stride; }
    // Moves on by one step. Compilers would keep a pointer for every row, more than there are registers.
    MV_INLINE void next() {
      MV_UNROLL for (int i = 0; i < (MR + 2) / 3; i++) {
        x[i] += 4;
        asm("" : "+r"(x[i]));
      }
      MV_UNROLL for (int i = 0; i < (NP + 1) / 2; i++) {
        w[i] += P::BYTES;
        asm("" : "+r"(w[i]));
      }
    }
  };

  template <int MR, int NP>
  static MV_INLINE void step(Cursor<MR, NP> &at, F (&acc)[MR][NP * V]) {
    decltype(P::weights(at.w[0], 0)) w[NP * V];
    MV_UNROLL for (int v = 0; v < NP * V; v++) w[v] = P::weights(at.panel(v / V), v % V);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      auto x = P::input((const float *)at.row(m));
      MV_UNROLL for (int v = 0; v < NP * V; v++) acc[m][v] = P::add(acc[m][v], w[v], x);
    }
    at.next();
  }

  template <int MR, int NP, bool ALONE>
  static void tile(const Span &span) {
    const Span s = span;
    F acc[MR][NP * V];
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) {
        acc[m][v] = s.begin == 0 ? zero() : load(s.sums + (m * NP * V + v) * W);
      }
    }
    const char *ahead = s.ahead;
    Cursor<MR, NP> at;
    at.x_stride = s.x_stride * 4;
    at.w_stride = s.panels.step;
    MV_UNROLL for (int i = 0; i < (MR + 2) / 3; i++) at.x[i] = (const char *)(s.x + s.begin) + 3 * i * at.x_stride;
    MV_UNROLL for (int i = 0; i < (NP + 1) / 2; i++) at.w[i] = s.panel + int64_t(s.begin) * P::BYTES + s.panels.to(2 * i);
    int k = s.begin;
    for (; k + 2 <= s.end; k += 2) {
      MV_UNROLL for (int p = 0; p < NP; p++) {
        if constexpr (ALONE) {
          MV_UNROLL for (int i = 0; i < 2 * P::BYTES; i += 64) __builtin_prefetch(ahead + s.panels.to(p) + i);
        } else {
          __builtin_prefetch(ahead + s.panels.to(p));
        }
      }
      ahead += s.ahead_step;
      step<MR, NP>(at, acc);
      step<MR, NP>(at, acc);
    }
    if (k < s.end) step<MR, NP>(at, acc);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) store(s.sums + (m * NP * V + v) * W, acc[m][v]);
    }
  }
};

typedef void (*SpanFunction)(const Span &);

// Tiles of 1 … LIMIT rows.
template <typename P, int NP, int LIMIT, bool ALONE>
struct Tiles {
  SpanFunction by_rows[LIMIT + 1];
  template <int MR>
  void fill() {
    by_rows[MR] = Dense<P>::template tile<MR, NP, ALONE>;
    if constexpr (MR > 1) fill<MR - 1>();
  }
  Tiles() {
    by_rows[0] = nullptr;
    fill<LIMIT>();
  }
};

// Rows of x that are multiplied by the same panels, up to `end`; next: what the thread most likely reads then, or NULL.
struct Rows {
  const mv_op *op;
  int64_t first;
  int count, tile_rows;
  int64_t end;
  const char *next;

  // What is read after the panels before `panel`, which lie before `here`.
  const char *after(int64_t panel, const char *here) const { return panel < end || !next ? here : next; }
};

template <int NP, typename Row>
MV_INLINE void finish_gated(const Rows &rows, int64_t panel, const float *sums) {
  constexpr int UP = NP / 2 * V;  // vectors of gate, then as many of up
  for (int r = 0; r < rows.count; r++) {
    const Row out(rows.op->out + (rows.first + r) * rows.op->out_stride);
    const float *gate = sums + r * NP * PANEL;
    MV_UNROLL for (int v = 0; v < UP; v++)
      out.put(panel * PANEL + v * W, silu(load(gate + v * W)) * load(gate + (UP + v) * W));
  }
}

template <int NP>
MV_INLINE void finish_group(const Rows &rows, int64_t panel, const float *sums) {
  const mv_op &op = *rows.op;
  if (op.kind == MV_LINEAR_SILU_MUL) {
    return op.out_format == MV_BF16 ? finish_gated<NP, RoundedRow>(rows, panel, sums)
                                    : finish_gated<NP, FloatRow>(rows, panel, sums);
  }
  const bool plain = !op.weight->bias && op.softcap == 0.0f && (panel + NP) * PANEL <= op.width;
  for (int r = 0; r < rows.count; r++) {
    const int64_t row = rows.first + r, column = panel * PANEL;
    float *out = op.out + row * op.out_stride + column;
    const float *y = op.y ? op.y + row * op.y_stride + column : nullptr;
    for (int v = 0; v < NP * V; v++) {
      F sum = load(sums + (r * NP * V + v) * W);
      if (plain) {
        store(out + v * W, y ? sum + load(y + v * W) : sum);
      } else {
        finish(op, row, column + v * W, sum);
      }
    }
  }
}

// One tile over all steps. It asks for memory `distance` bytes ahead in its panels, and near their end where this thread
// most likely reads next.
template <typename P>
void sum_alone(Span s, int64_t bytes, int64_t distance, const char *next, SpanFunction tile) {
  const int steps = int(bytes / P::BYTES), last = max32(0, steps - int(distance / P::BYTES)) & ~1;
  s.ahead_step = 2 * P::BYTES;
  for (s.begin = 0; s.begin < steps; s.begin = s.end) {
    s.end = s.begin < last ? last : steps;
    const int64_t at = int64_t(s.begin) * P::BYTES + distance;
    s.ahead = s.begin < last ? s.panel + at : next + (at - bytes);
    tile(s);
  }
}

// All rows by one group of NP panels, or of NP / 2 panels of gate and those of up that belong to them.
template <typename P, int NP, int LIMIT>
void multiply_group(const Rows &rows, int64_t panel) {
  static const Tiles<P, NP, LIMIT, true> alone;
  static const Tiles<P, NP, LIMIT, false> together;
  alignas(64) float sums[MAX_ROWS * NP * PANEL];
  const mv_op &op = *rows.op;
  const int64_t bytes = panel_bytes(P::FORMAT, op.weight->cols);
  const int steps = int(bytes / P::BYTES), tiles = (rows.count + rows.tile_rows - 1) / rows.tile_rows;
  const float *x = op.x + rows.first * op.x_stride;
  const bool gated = op.kind == MV_LINEAR_SILU_MUL;
  const int64_t up = num_panels(op.width) * bytes, width = gated ? NP / 2 : NP;
  const PanelSteps panels = !gated ? PanelSteps{bytes, 2 * bytes} : NP == 2 ? PanelSteps{up, 0} : PanelSteps{bytes, up};
  Span s = {x, op.x_stride, (const char *)op.weight->data + panel * bytes, panels, 0, 0, sums, nullptr, 0};
  const char *next = rows.after(panel + width, s.panel + width * bytes);
  if (tiles == 1) {
    sum_alone<P>(s, bytes, NP == 1 ? STREAM_AHEAD : ALONE_AHEAD, next, alone.by_rows[rows.count]);
    return finish_group<NP>(rows, panel, sums);
  }
  const int blocks = (steps * P::BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES;
  const int length = ((steps + blocks - 1) / blocks + 1) & ~1;
  s.ahead_step = 2 * P::BYTES / tiles;
  for (s.begin = 0; s.begin < steps; s.begin = s.end) {
    s.end = min32(steps, s.begin + length);
    s.ahead = s.end < steps ? s.panel + int64_t(s.end) * P::BYTES : next;
    for (int r = 0; r < rows.count; r += rows.tile_rows) {
      s.x = x + r * op.x_stride;
      s.sums = sums + r * NP * PANEL;
      const int count = min32(rows.tile_rows, rows.count - r);
      together.by_rows[count](s);
      s.ahead += s.ahead_step * (length / 2);
    }
  }
  finish_group<NP>(rows, panel, sums);
}

// As many groups of NP panels as fit in [panel, end). Returns the first panel left.
template <typename P, int NP, int LIMIT>
MV_INLINE int64_t sweep_groups(const Rows &rows, int64_t panel, int64_t end) {
  if constexpr (LIMIT > 0) {
    const int width = rows.op->kind == MV_LINEAR_SILU_MUL ? NP / 2 : NP;
    for (; rows.tile_rows <= LIMIT && panel + width <= end; panel += width) multiply_group<P, NP, LIMIT>(rows, panel);
  }
  return panel;
}

// One row by panels of gate and of up, a few of these and then of those, each as one stream. Returns end.
template <typename P>
int64_t gate_one_row(const Rows &rows, int64_t panel, int64_t end) {
  constexpr int RUN = 8;  // panels
  alignas(64) float sums[RUN * 2 * PANEL];
  const mv_op &op = *rows.op;
  const int64_t bytes = panel_bytes(P::FORMAT, op.weight->cols), up = num_panels(op.width) * bytes;
  Span s = {op.x + rows.first * op.x_stride, op.x_stride, nullptr, {}, 0, 0, nullptr, nullptr, 0};
  const char *data = (const char *)op.weight->data;
  for (; panel < end; panel += RUN) {
    const int count = int(min64(RUN, end - panel));
    auto at = [&](int i) { return data + (panel + i % count) * bytes + i / count * up; };
    for (int i = 0; i < 2 * count; i++) {
      s.panel = at(i);
      s.sums = sums + (i % count * 2 + i / count) * PANEL;
      const char *next = i + 1 < 2 * count ? at(i + 1) : rows.after(panel + RUN, data + (panel + RUN) * bytes);
      sum_alone<P>(s, bytes, STREAM_AHEAD, next, Dense<P>::template tile<1, 1, true>);
    }
    for (int i = 0; i < count; i++) finish_group<2>(rows, panel + i, sums + i * 2 * PANEL);
  }
  return end;
}

// A unit is a panel of MAX_ROWS rows; units run through all panels for the first rows, then for the next.
template <typename P>
void multiply(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end, const char *next) {
  typedef Dense<P> D;
  const int64_t panels = num_panels(op.width);
  while (begin < end) {
    const int64_t row = begin / panels * MAX_ROWS, first = begin % panels, last = min64(panels, first + (end - begin));
    const int most = op.kind == MV_LINEAR_SILU_MUL ? D::ROWS_2 : D::ROWS_1;  // gate and up are two panels at least
    const int count = int(min64(MAX_ROWS, num_rows - row)), tiles = (count + most - 1) / most;
    const int tile_rows = (count + tiles - 1) / tiles;  // even tiles, not whole ones and a small rest
    const Rows rows = {&op, row, count, tile_rows, last, next};
    const bool gated = op.kind == MV_LINEAR_SILU_MUL;
    int64_t panel = gated && count == 1 && D::AT_ONE_ROW == 1 ? gate_one_row<P>(rows, first, last) : first;
    if (count > 1 || D::AT_ONE_ROW >= 4) panel = sweep_groups<P, 4, D::ROWS_4>(rows, panel, last);
    if (count > 1 || D::AT_ONE_ROW >= 2) panel = sweep_groups<P, 2, D::ROWS_2>(rows, panel, last);
    if (!gated) sweep_groups<P, 1, D::ROWS_1>(rows, panel, last);
    begin += last - first;
  }
}

int64_t units(const mv_op &op, const StepView &step) {
  int64_t rows = step.rows[op.row_kind], block = is_quantized(op.weight->format) ? ROW_BLOCK : MAX_ROWS;
  return num_panels(op.width) * ((rows + block - 1) / block);
}

void linear(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &thread) {
  int64_t rows = step.rows[op.row_kind];
  switch (op.weight->format) {
    case MV_F32: return multiply<FloatStep>(op, rows, begin, end, thread.next);
    case MV_F16: return multiply<HalfStep>(op, rows, begin, end, thread.next);
    case MV_BF16: return multiply<PairStep>(op, rows, begin, end, thread.next);
    default: return multiply_quantized(op, rows, begin, end, thread.next);
  }
}

// One stretch of panels, up to the last one of the matrix.
const char *stream(const mv_op &op, int64_t begin, int64_t end, int64_t *bytes) {
  const int64_t panels = num_panels(op.width), first = begin % panels;
  const int64_t each = panel_bytes(op.weight->format, op.weight->cols);
  *bytes = min64(end - begin, panels - first) * each;
  return (const char *)op.weight->data + first * each;
}

}  // namespace

// One row of x as bfloat16, two to a word; the second half of a last odd column is zero.
void round_to_bf16(const mv_op &op, int64_t begin, int64_t end) {
  const int columns = op.weight->cols;
  for (int64_t t = begin; t < end; t++) {
    const float *x = op.x + t * op.x_stride;
    uint16_t *out = (uint16_t *)(op.out + t * op.out_stride);
    int k = 0;
    for (; k + W <= columns; k += W) {
      H rounded = BF16::narrow(load(x + k));
      memcpy(out + k, &rounded, sizeof rounded);
    }
    for (; k < columns; k++) out[k] = BF16::narrow(x[k]);
    if (k % 2) out[k] = 0;
  }
}

const Kernel LINEAR = {units, linear, 2, stream};
const Kernel LINEAR_SILU_MUL = {units, linear, 2, stream};

}  // namespace MV_ISA
}  // namespace mv
