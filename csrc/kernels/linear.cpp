// Products: out[t][n] = sum over k of x[t][k] * weight[n][k]  (+ bias[n])  (soft-capped)  (+ y[t][n]).
//
// A tile is MR rows of x by NP panels of 16 outputs, held in registers. Each k loads NP panels' numbers once (widened to
// float32 there) and multiplies them by MR broadcast numbers of x:
//
//     for k:  w[0 … NP) = panel columns k;   for m:  acc[m][p] = fma(w[p], x[m][k], acc[m][p])
//
// So an output is one chain of fused multiply-adds in the order of k: its bits do not depend on the number of rows, on
// the tile, or on which thread computed it. Products with quantised weights are in quantized.cpp.
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/panels.h"
#include "kernels/tiles.h"

namespace mv {
namespace MV_ISA {
namespace {

// How many columns ahead of its use a weight is asked for: the processor's own prefetching stops at pages.
constexpr int PREFETCH = 64;

// Columns k … k + DEPTH of one panel, as float32 vectors.
template <typename Format>
struct Columns {
  typedef typename Format::Element Element;
  static constexpr int DEPTH = 1;
  static MV_INLINE int64_t offset(int k) { return int64_t(k) * PANEL * int64_t(sizeof(Element)); }
  static MV_INLINE void widen(const char *panel, int k, int v, F (&w)[1]) {
    w[0] = Format::widen((const Element *)(panel + offset(k)) + v * W);
  }
};
template <>
struct Columns<BF16> {
  static constexpr int DEPTH = 2;
  static MV_INLINE int64_t offset(int k) { return int64_t(k) * PANEL * 2; }
  static MV_INLINE void widen(const char *panel, int k, int v, F (&w)[2]) {
    U pair;
    memcpy(&pair, panel + offset(k) + v * W * 4, sizeof pair);
    w[0] = (F)(pair << 16);
    w[1] = (F)(pair & 0xffff0000u);
  }
};

template <typename Format>
struct Dense {
  static constexpr bool ONE_PANEL_AT_ONE_ROW = false;
#if defined(__AVX512F__)
  static constexpr int ROWS_4 = 6, ROWS_2 = 12, ROWS_1 = 12;
#elif defined(__AVX2__) || defined(__aarch64__)
  static constexpr int ROWS_4 = 1, ROWS_2 = 3, ROWS_1 = 6;
#else
  static constexpr int ROWS_4 = 0, ROWS_2 = 1, ROWS_1 = 3;
#endif

  template <int MR, int NP>
  static void tile(const Tile &tile) {
    typedef Columns<Format> C;
    const mv_op &op = *tile.op;
    const int K = op.weight->cols;
    const int64_t bytes = panel_bytes(op.weight->format, K), stride = op.x_stride;
    const char *panel = (const char *)op.weight->data + tile.panel * bytes;
    const float *x = op.x + tile.row * stride;
    F acc[MR][NP * V];
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) acc[m][v] = zero();
    }
    int k = 0;
    for (; k + C::DEPTH <= K; k += C::DEPTH) {
      F w[NP * V][C::DEPTH];
      // Ahead in this panel, and near its end in the one that this thread most likely reads next.
      const char *ahead = panel + C::offset(k + PREFETCH) + (k + PREFETCH < K ? 0 : (NP - 1) * bytes);
      MV_UNROLL for (int p = 0; p < NP; p++) __builtin_prefetch(ahead + p * bytes);
      MV_UNROLL for (int v = 0; v < NP * V; v++) C::widen(panel + v / V * bytes, k, v % V, w[v]);
      MV_UNROLL for (int d = 0; d < C::DEPTH; d++) {
        MV_UNROLL for (int m = 0; m < MR; m++) {
          F a = set1(x[m * stride + k + d]);
          MV_UNROLL for (int v = 0; v < NP * V; v++) acc[m][v] = fma(w[v][d], a, acc[m][v]);
        }
      }
    }
    if (k < K) {  // the last column of an odd K, DEPTH 2
      MV_UNROLL for (int v = 0; v < NP * V; v++) {
        F w[C::DEPTH];
        C::widen(panel + v / V * bytes, k, v % V, w);
        MV_UNROLL for (int m = 0; m < MR; m++) acc[m][v] = fma(w[0], set1(x[m * stride + k]), acc[m][v]);
      }
    }
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NP * V; v++) finish(op, tile.row + m, tile.panel * PANEL + v * W, acc[m][v]);
    }
  }
};

int64_t units(const mv_op &op, const StepView &step) {
  int64_t rows = step.rows[op.row_kind];
  return num_panels(op.width) * ((rows + ROW_BLOCK - 1) / ROW_BLOCK);
}

void linear(const mv_op &op, const StepView &step, int64_t begin, int64_t end, char *) {
  int64_t rows = step.rows[op.row_kind];
  switch (op.weight->format) {
    case MV_F32: return multiply_units<Dense<F32>>(op, rows, begin, end);
    case MV_F16: return multiply_units<Dense<F16>>(op, rows, begin, end);
    case MV_BF16: return multiply_units<Dense<BF16>>(op, rows, begin, end);
    default: return multiply_quantized(op, rows, begin, end);
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

const Kernel LINEAR = {units, linear, 2, stream};

}  // namespace MV_ISA
}  // namespace mv
