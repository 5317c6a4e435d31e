// The largest logit of a query x (one hidden state) without reading all of the head.
//
// A greedy step wants one of the logits w_r . x alone, the largest. The head's rows w_r are kept a second time, in codes of 6
// bits (MV_SCREEN_MAKE, once): v_r = w_r - e_r. By Cauchy and Schwarz, with x' for x rounded to int8 (MV_QUANTIZE),
//
//     w_r . x  <=  v_r . x' + |e_r| |x'| + |w_r| |x - x'|
//
// so a row whose right side lies below any logit that is known cannot be the largest. Rows lie in panels of 16, as in
// panels.h. Four ops a step:
//
//     MV_LINEAR        estimates v_r . x' of all rows, from 6.5 bits a weight instead of 8.5, 16 or 32
//     MV_SCREEN_LEAD   the largest estimate of every PIECE panels
//     MV_SCREEN_PICK   the logits of the panel with the largest of all; the best of them is what others must reach
//     MV_SCREEN_REST   the logits of every panel with a row that may reach it, in the place of its estimates
//
// After that each row holds its logit, to the bit what MV_LINEAR makes of it, or an estimate below the largest logit. So the
// largest, and the first of equals, is the one of all logits. Sums of K floats are off by K 2^-23 |w| |x| at most on either side; more
// than that is added to the bound. What is not a number compares as false, and is computed. How close the codes must be is a matter of
// speed alone: with 6 bits, and a scale for 32 columns, a dozen of 3,072 panels are left; with 4 bits, nearly all
// (docs/log/greedy-head.md).
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"
#include "kernels/quantize.h"
#include "kernels/tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int64_t PIECE = 64;           // panels that MV_SCREEN_LEAD looks through at once
constexpr float LARGEST_CODE = 31.0f;
constexpr float UP = 1.001f;            // more than norms lose by rounding
constexpr float TINY = 1e-15f;          // more than they lose where squares are too small for a float
constexpr float ROUNDING = 0x1p-20f;    // of |w| |x'| for a column: more than both sums lose
constexpr float INFINITE = __builtin_inff();

// ---- MV_SCREEN_MAKE: a unit is a panel ----

// Group g of a panel as float32, [32 columns][16 rows].
MV_INLINE void widen_group(int32_t format, const char *panel, int g, float *w) {
  const int64_t first = int64_t(g) * GROUP_COLUMNS;
  if (format == MV_F32) {
    memcpy(w, panel + first * PANEL * 4, GROUP_COLUMNS * PANEL * sizeof(float));
  } else if (format == MV_F16) {
    for (int i = 0; i < GROUP_COLUMNS * PANEL; i += W) store(w + i, F16::widen((const uint16_t *)panel + first * PANEL + i));
  } else if (format == MV_BF16) {
    for (int i = 0; i < GROUP_COLUMNS * PANEL / 2; i += W) {
      U pair;
      memcpy(&pair, panel + (first * PANEL / 2 + i) * 4, sizeof pair);
      float *even = w + i / PANEL * (2 * PANEL) + i % PANEL;
      store(even, (F)(pair << 16));
      store(even + PANEL, (F)(pair & 0xffff0000u));
    }
  } else {  // MV_Q8_0
    const char *codes = panel + codes_offset(format, g), *scales = panel + scales_offset(format, g);
    for (int i = 0; i < GROUP_COLUMNS / 4 * PANEL; i += W) {
      U quad;
      memcpy(&quad, codes + i * 4, sizeof quad);
      const F scale = F16::widen((const uint16_t *)scales + i % PANEL);
      for (int c = 0; c < 4; c++) {
        const F code = __builtin_convertvector((I)(quad >> (8 * c) & 255u), F) - 128.0f;
        store(w + (i / PANEL * 4 + c) * PANEL + i % PANEL, code * scale);
      }
    }
  }
}

// Sums of squares, for each row of a panel.
struct Squares {
  F error[V] = {}, weight[V] = {};
};

// W rows of a group: codes and scales into the panel, lanes from `lane` on; what they miss into the sums.
MV_INLINE void encode(const float *w, int lane, char *codes, char *scales, Squares &squares) {
  F peak = zero();
  for (int k = 0; k < GROUP_COLUMNS; k++) peak = max(as_float(as_int(load(w + k * PANEL + lane)) & 0x7fffffff), peak);
  float step[W];
  uint16_t half[W];
  store(step, peak / LARGEST_CODE);
  for (int i = 0; i < W; i++) half[i] = F16::narrow(step[i]);
  memcpy(scales + lane * 2, half, sizeof half);
  const F scale = F16::widen(half), inverse = scale > 0.0f ? 1.0f / scale : zero();
  F error = zero(), weight = zero();
  U code[GROUP_COLUMNS];
  for (int k = 0; k < GROUP_COLUMNS; k++) {
    const F x = load(w + k * PANEL + lane);
    const F shifted = min(set1(LARGEST_CODE), max(set1(-LARGEST_CODE), x * inverse)) + MAGIC;
    const F missed = x - (shifted - MAGIC) * scale;
    code[k] = ((U)shifted + 32u) & 63u;
    error += missed * missed;
    weight += x * x;
  }
  squares.error[lane / W] += error;
  squares.weight[lane / W] += weight;
  for (int i = 0; i < GROUP_COLUMNS / 16; i++) {  // 16 columns: two lines of low nibbles, one of the two bits above
    U low[4], upper = U{};
    for (int j = 0; j < 4; j++) {
      low[j] = U{};
      for (int c = 0; c < 4; c++) {
        const U u = code[i * 16 + j * 4 + c];
        low[j] |= (u & 15u) << (8 * c);
        upper |= (u >> 4) << (8 * c + 2 * j);
      }
    }
    for (int line = 0; line < 2; line++) {
      const U nibbles = low[2 * line] | low[2 * line + 1] << 4;
      memcpy(codes + (i * 2 + line) * 64 + lane * 4, &nibbles, sizeof nibbles);
    }
    memcpy(codes + SCREEN_UPPER + i * 64 + lane * 4, &upper, sizeof upper);
  }
}

int64_t make_units(const mv_op &op, const StepView &) { return num_panels(op.weight->rows); }

void make(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  const mv_matrix &m = *op.weight;
  const ScreenView &screen = *step.screen;
  const int64_t from = panel_bytes(m.format, m.cols), to = panel_bytes(MV_SCREEN, m.cols);
  alignas(64) float w[GROUP_COLUMNS * PANEL];
  for (int64_t p = begin; p < end; p++) {
    char *panel = (char *)screen.codes->data + p * to;
    Squares squares;
    for (int g = 0; g < m.cols / GROUP_COLUMNS; g++) {
      widen_group(m.format, (const char *)m.data + p * from, g, w);
      for (int lane = 0; lane < PANEL; lane += W)
        encode(w, lane, panel + codes_offset(MV_SCREEN, g), panel + scales_offset(MV_SCREEN, g), squares);
    }
    for (int i = 0; i < PANEL; i++) {
      const float length = __builtin_sqrtf(squares.weight[i / W][i % W]) * UP + TINY;
      const float error = __builtin_sqrtf(squares.error[i / W][i % W]) * UP + TINY;
      screen.errors[p * PANEL + i] = error + length * float(m.cols) * ROUNDING;
      if (screen.lengths) screen.lengths[p * PANEL + i] = length;
    }
  }
}

// ---- The choice ----

// The logits of one panel for one query, in place.
MV_INLINE void multiply_panel(const mv_op &op, int64_t query, int64_t panel, const ThreadView &thread) {
  mv_op one = op;
  one.kind = MV_LINEAR;
  one.y = nullptr;
  one.x += query * op.x_stride;
  one.out += query * op.out_stride;
  StepView single = {};
  single.rows[op.row_kind] = 1;
  LINEAR.run(one, single, panel, panel + 1, {thread.scratch, nullptr});
}

// Panels all of whose rows lie below the limit; of one more that it may cut, all logits are computed in any case.
MV_INLINE int64_t whole_panels(const StepView &step) { return step.screen->limit / PANEL; }
MV_INLINE int64_t num_pieces(const StepView &step) { return (whole_panels(step) + PIECE - 1) / PIECE; }

// A unit is a piece of a query's estimates.
int64_t lead_units(const mv_op &op, const StepView &step) { return step.rows[op.row_kind] * num_pieces(step); }

void lead(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &) {
  const int64_t pieces = num_pieces(step);
  for (int64_t u = begin; u < end; u++) {
    const float *estimates = op.out + u / pieces * op.out_stride;
    const int first = int(u % pieces * PIECE), last = int(min64(first + PIECE, whole_panels(step)));
    F best = set1(-INFINITE);
    I panel = I{} + first;
    for (int p = first; p < last; p++) {
      MV_UNROLL for (int v = 0; v < V; v++) {
        const F x = load(estimates + p * PANEL + v * W);
        const auto larger = x > best;
        best = larger ? x : best;
        panel = larger ? I{} + p : panel;
      }
    }
    int at = 0;
    for (int i = 1; i < W; i++)
      if (best[i] > best[at]) at = i;
    step.screen->leads[u] = {best[at], panel[at]};
  }
}

// What a query adds to bounds, and the logit to reach. x: as the head takes it; rounded: x', codes and scales (quantize.h). The
// order of these sums does not matter.
MV_INLINE ScreenMark measure(const mv_op &op, const float *x, const float *rounded, float reach) {
  const int columns = op.weight->cols;
  const QuantizedRow row(rounded, columns);
  const bool alike = op.weight->format == MV_Q8_0;  // the head takes x' itself
  F squares = zero(), apart = zero();
  for (int k = 0; k < columns; k += W) {
    CodeVector codes;
    memcpy(&codes, row.codes + k, sizeof codes);
    const F near = __builtin_convertvector(codes, F) * row.scales[k / GROUP_COLUMNS];
    squares += near * near;
    if (alike) continue;
    const F given = op.weight->format == MV_BF16 ? BF16::widen((const uint16_t *)x + k) : load(x + k);
    apart += (given - near) * (given - near);
  }
  auto length = [](F sum) { return __builtin_sqrtf(sum_lanes(sum)) * UP + TINY; };
  return {reach, length(squares), alike ? 0.0f : 1.01f * length(apart)};  // a hundredth for what the sums of |w| |x - x'| lose
}

// A unit is a query.
int64_t pick_units(const mv_op &op, const StepView &step) { return step.rows[op.row_kind]; }

void pick(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &thread) {
  const ScreenView &screen = *step.screen;
  const int64_t pieces = num_pieces(step);
  for (int64_t query = begin; query < end; query++) {
    const ScreenLead *leads = screen.leads + query * pieces, *lead = leads;
    for (const ScreenLead *other = leads + 1; other < leads + pieces; other++)
      if (other->estimate > lead->estimate) lead = other;
    const int64_t panel = lead->panel;
    multiply_panel(op, query, panel, thread);
    const float *logits = op.out + query * op.out_stride + panel * PANEL;
    float best = -INFINITE;
    for (int i = 0; i < PANEL; i++)
      if (logits[i] > best) best = logits[i];
    screen.marks[query] = measure(op, op.x + query * op.x_stride, op.y + query * op.y_stride, best);
  }
}

// A unit is a panel of a query. The one that was picked is computed again, as its logits reach the mark.
MV_INLINE int64_t query_panels(const StepView &step) { return (step.screen->limit + PANEL - 1) / PANEL; }
int64_t rest_units(const mv_op &op, const StepView &step) { return step.rows[op.row_kind] * query_panels(step); }

// Whether no row of a panel can reach the mark.
MV_INLINE bool is_below(const float *estimates, const ScreenView &screen, int64_t panel, const ScreenMark &mark) {
  bool below = true;
  MV_UNROLL for (int v = 0; v < V; v++) {
    const int64_t at = panel * PANEL + v * W;
    F most = load(estimates + at) + load(screen.errors + at) * mark.rounded;
    if (screen.lengths) most += load(screen.lengths + at) * mark.apart;
    below &= all_lanes(most < mark.reach);
  }
  return below;
}

void rest(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &thread) {
  const ScreenView &screen = *step.screen;
  const int64_t panels = query_panels(step), whole = whole_panels(step);
  int64_t computed = 0;
  for (int64_t u = begin; u < end; u++) {
    const int64_t query = u / panels, panel = u % panels;
    const ScreenMark mark = screen.marks[query];
    if (panel < whole && is_below(op.out + query * op.out_stride, screen, panel, mark)) continue;
    multiply_panel(op, query, panel, thread);
    computed++;
  }
  __atomic_fetch_add(screen.computed, computed, __ATOMIC_RELAXED);
}

}  // namespace

const Kernel SCREEN_MAKE = {make_units, make, 1};
const Kernel SCREEN_LEAD = {lead_units, lead, 4};
const Kernel SCREEN_PICK = {pick_units, pick, 1};
const Kernel SCREEN_REST = {rest_units, rest, 256};

}  // namespace MV_ISA
}  // namespace mv
