// Products: out[t][n] = sum over k of x[t][k] * weight[n][k]  (+ bias[n])  (soft-capped)  (+ y[t][n]).
//
// A tile is MR rows of x by NP panels of 16 outputs, held in registers. Each k loads NP panels' numbers once (widened to
// float32 there) and multiplies them by MR broadcast numbers of x:
//
//     for k:  w[0 … NP) = panel columns k;   for m:  acc[m][p] = fma(w[p], x[m][k], acc[m][p])
//
// Whatever MR and NP, an output is one chain of fused multiply-adds in the order of k: its bits do not depend on the
// number of rows, on the tile, or on which thread computed it.
//
// A unit is a panel of a block of rows. Units run through the panels of one block of rows, then the next block, so that
// the block of x stays in the second-level cache while weights stream by; one token streams the whole matrix once.
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "kernels/numeric.h"
#include "kernels/panels.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int V = PANEL / W;  // vectors of a panel
constexpr int ROW_BLOCK = 48;

// The largest tiles that fit the registers: rows of a tile of 4, 2 and 1 panels.
#if defined(__AVX512F__)
constexpr int ROWS_4 = 6, ROWS_2 = 12, ROWS_1 = 12;
#elif defined(__AVX2__)
constexpr int ROWS_4 = 1, ROWS_2 = 3, ROWS_1 = 6;
#elif defined(__aarch64__)
constexpr int ROWS_4 = 1, ROWS_2 = 3, ROWS_1 = 6;
#else
constexpr int ROWS_4 = 0, ROWS_2 = 1, ROWS_1 = 3;
#endif

// Columns k … k + DEPTH of one panel, as float32 vectors.
template <typename Format>
struct Columns {
  static constexpr int DEPTH = 1;
  static MV_INLINE void widen(const char *panel, int k, int v, F (&w)[1]) {
    w[0] = Format::widen((const typename Format::Element *)panel + k * PANEL + v * W);
  }
};
template <>
struct Columns<BF16> {
  static constexpr int DEPTH = 2;
  static MV_INLINE void widen(const char *panel, int k, int v, F (&w)[2]) {
    U pair;
    memcpy(&pair, panel + (int64_t(k) / 2 * PANEL + v * W) * 4, sizeof pair);
    w[0] = (F)(pair << 16);
    w[1] = (F)(pair & 0xffff0000u);
  }
};

struct Tile {
  const mv_op *op;
  int64_t row, panel;
};

// Bias, soft cap, residual; then the columns that exist.
MV_INLINE void finish(const mv_op &op, int64_t row, int64_t column, F value) {
  int n = min32(W, int(op.width - column));
  if (n <= 0) return;
  bool whole = n == W;
  const float *bias = op.weight->bias;
  if (bias) value += whole ? load(bias + column) : load_n(bias + column, n);
  if (op.softcap != 0.0f) value = softcap(value, op.softcap);
  const float *y = op.y ? op.y + row * op.y_stride + column : nullptr;
  if (y) value += whole ? load(y) : load_n(y, n);
  float *out = op.out + row * op.out_stride + column;
  whole ? store(out, value) : store_n(out, value, n);
}

template <typename Format, int MR, int NP>
void multiply_tile(const Tile &tile) {
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

// multiply_tile for every number of rows 1 … LIMIT, in a table.
typedef void (*TileFunction)(const Tile &);
template <typename Format, int NP, int LIMIT>
struct TileTable {
  TileFunction by_rows[LIMIT + 1];
  template <int MR>
  void fill() {
    by_rows[MR] = multiply_tile<Format, MR, NP>;
    if constexpr (MR > 1) fill<MR - 1>();
  }
  TileTable() {
    by_rows[0] = nullptr;
    if constexpr (LIMIT > 0) fill<LIMIT>();
  }
};

// One panel count: as many whole tiles as fit in panels [panel, end), every one over all rows of the block.
template <typename Format, int NP, int LIMIT>
MV_INLINE int64_t sweep(const mv_op &op, int64_t row, int rows, int tile_rows, int64_t panel, int64_t end) {
  static const TileTable<Format, NP, LIMIT> table;
  for (; panel + NP <= end; panel += NP) {
    for (int r = 0; r < rows; r += tile_rows) {
      Tile tile = {&op, row + r, panel};
      table.by_rows[min32(tile_rows, rows - r)](tile);
    }
  }
  return panel;
}

template <typename Format>
void multiply_block(const mv_op &op, int64_t row, int rows, int64_t panel, int64_t end) {
  int tiles = (rows + ROWS_1 - 1) / ROWS_1;
  int tile_rows = (rows + tiles - 1) / tiles;  // even tiles rather than whole ones and a small rest
  if constexpr (ROWS_4 > 0)
    if (tile_rows <= ROWS_4) panel = sweep<Format, 4, ROWS_4>(op, row, rows, tile_rows, panel, end);
  if constexpr (ROWS_2 > 0)
    if (tile_rows <= ROWS_2) panel = sweep<Format, 2, ROWS_2>(op, row, rows, tile_rows, panel, end);
  sweep<Format, 1, ROWS_1>(op, row, rows, tile_rows, panel, end);
}

template <typename Format>
void multiply_units(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end) {
  int64_t panels = num_panels(op.width);
  while (begin < end) {
    int64_t block = begin / panels, first = begin % panels;
    int64_t last = min64(panels, first + (end - begin));
    int64_t row = block * ROW_BLOCK;
    multiply_block<Format>(op, row, int(min64(ROW_BLOCK, num_rows - row)), first, last);
    begin += last - first;
  }
}

int64_t units(const mv_op &op, const StepView &step) {
  int64_t rows = step.rows[op.row_kind];
  return num_panels(op.width) * ((rows + ROW_BLOCK - 1) / ROW_BLOCK);
}

void linear(const mv_op &op, const StepView &step, int64_t begin, int64_t end, char *) {
  int64_t rows = step.rows[op.row_kind];
  if (op.weight->format == MV_F32) multiply_units<F32>(op, rows, begin, end);
  if (op.weight->format == MV_F16) multiply_units<F16>(op, rows, begin, end);
  if (op.weight->format == MV_BF16) multiply_units<BF16>(op, rows, begin, end);
}

}  // namespace

const Kernel LINEAR = {units, linear, 4};

}  // namespace MV_ISA
}  // namespace mv
