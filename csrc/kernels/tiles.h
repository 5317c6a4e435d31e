// What all products share: how rows and panels are cut into register tiles, and what happens to a finished output.
//
// A product P names the largest tiles that fit the registers (rows of a tile of 4, 2 and 1 panels) and has
// `P::tile<MR, NP>(Tile)`, which multiplies MR rows by NP panels. Whatever MR and NP, P must give each output the same
// bits: one chain of operations in the order of k. Where P::ONE_PANEL_AT_ONE_ROW, one row takes panel after panel instead of
// NP abreast, and so reads its weights as one stream, in pieces of P::PIECE bytes.
//
// A unit of work is a panel of a block of rows. Units run through the panels of one block of rows, then the next block,
// so that the block of x stays in the second-level cache while weights stream by; one token streams the whole matrix once.
#ifndef MINI_VLLM_KERNELS_TILES_H
#define MINI_VLLM_KERNELS_TILES_H

#include "kernels/kernels.h"
#include "kernels/numeric.h"
#include "kernels/panels.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int V = PANEL / W;  // vectors of a panel
constexpr int ROW_BLOCK = 48;

constexpr int64_t STREAM_AHEAD = 16 << 10;  // bytes; a first-level cache holds two or three times as many

// Where to ask for memory at one row, when the weights at hand are one stream: STREAM_AHEAD bytes on, and at the end of the
// stream where the thread most likely reads next, piece by piece of so many bytes.
class Stream {
 public:
  // The stream begins at `from` and is `bytes` long, a multiple of `piece`.
  Stream(const char *from, int64_t bytes, const char *next, int64_t piece) : piece_(piece), next_(next ? next : from) {
    const int64_t distance = STREAM_AHEAD / piece * piece;
    at_ = distance < bytes ? from + distance : next_ + (distance - bytes);
    end_ = distance < bytes ? from + bytes : nullptr;
  }
  // For `bytes` of the piece from `offset` on.
  MV_INLINE void ask(int64_t offset, int64_t bytes) const {
    MV_UNROLL for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at_ + offset + i);
  }
  MV_INLINE void next_piece() {
    at_ += piece_;
    if (at_ == end_) at_ = next_, end_ = nullptr;
  }

 private:
  int64_t piece_;
  const char *at_, *end_, *next_;
};

struct Tile {
  const mv_op *op;
  int64_t row, panel;
  int index, count;  // which of the tiles over these panels, and how many they are
  Stream *stream;    // at one row that takes one panel after another, else NULL
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

// The same for a tile of MR rows by NV vectors from `column` on. Most need neither bias nor soft cap, and all columns exist.
template <int MR, int NV>
MV_INLINE void finish_tile(const mv_op &op, int64_t row, int64_t column, const F (&values)[MR][NV]) {
  float *out = op.out + row * op.out_stride + column;
  if (op.weight->bias || op.softcap != 0.0f || column + NV * W > op.width) {
    for (int m = 0; m < MR; m++) {
      for (int v = 0; v < NV; v++) finish(op, row + m, column + v * W, values[m][v]);
    }
  } else if (op.y) {
    const float *y = op.y + row * op.y_stride + column;
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NV; v++)
        store(out + m * op.out_stride + v * W, values[m][v] + load(y + m * op.y_stride + v * W));
    }
  } else {
    MV_UNROLL for (int m = 0; m < MR; m++) {
      MV_UNROLL for (int v = 0; v < NV; v++) store(out + m * op.out_stride + v * W, values[m][v]);
    }
  }
}

// Asks for the lines that finish_tile will touch, `panels` of each row.
template <int MR>
MV_INLINE void prefetch_output(const mv_op &op, int64_t row, int64_t column, int panels) {
  const float *out = op.out + row * op.out_stride + column, *y = op.y + row * op.y_stride + column;
  for (int m = 0; m < MR; m++) {
    for (int p = 0; p < panels; p++) {
      __builtin_prefetch(out + m * op.out_stride + p * PANEL, 1);
      if (op.y) __builtin_prefetch(y + m * op.y_stride + p * PANEL);
    }
  }
}

// P::tile for every number of rows 1 … LIMIT, in a table.
typedef void (*TileFunction)(const Tile &);
template <typename P, int NP, int LIMIT>
struct TileTable {
  TileFunction by_rows[LIMIT + 1];
  template <int MR>
  void fill() {
    by_rows[MR] = P::template tile<MR, NP>;
    if constexpr (MR > 1) fill<MR - 1>();
  }
  TileTable() {
    by_rows[0] = nullptr;
    fill<LIMIT>();
  }
};

// As many tiles of NP panels as fit in [panel, end), each over all rows of the block. Returns the first panel left.
template <typename P, int NP, int LIMIT>
MV_INLINE int64_t sweep(const mv_op &op, int64_t row, int rows, int tile_rows, int64_t panel, int64_t end,
                        Stream *stream = nullptr) {
  if constexpr (LIMIT > 0) {
    static const TileTable<P, NP, LIMIT> table;
    for (; tile_rows <= LIMIT && panel + NP <= end; panel += NP) {
      for (int i = 0, r = 0; r < rows; i++, r += tile_rows) {
        Tile tile = {&op, row + r, panel, i, (rows + tile_rows - 1) / tile_rows, stream};
        table.by_rows[min32(tile_rows, rows - r)](tile);
      }
    }
  }
  return panel;
}

template <typename P>
void multiply_block(const mv_op &op, int64_t row, int rows, int64_t panel, int64_t end, const char *next) {
  int tiles = (rows + P::ROWS_1 - 1) / P::ROWS_1;
  int tile_rows = (rows + tiles - 1) / tiles;  // even tiles rather than whole ones and a small rest
  if (rows == 1 && P::ONE_PANEL_AT_ONE_ROW) {
    const int64_t bytes = panel_bytes(op.weight->format, op.weight->cols);
    Stream stream((const char *)op.weight->data + panel * bytes, (end - panel) * bytes, next, P::PIECE);
    return void(sweep<P, 1, P::ROWS_1>(op, row, rows, 1, panel, end, &stream));
  }
  panel = sweep<P, 4, P::ROWS_4>(op, row, rows, tile_rows, panel, end);
  panel = sweep<P, 2, P::ROWS_2>(op, row, rows, tile_rows, panel, end);
  sweep<P, 1, P::ROWS_1>(op, row, rows, tile_rows, panel, end);
}

template <typename P>
void multiply_units(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end, const char *next) {
  int64_t panels = num_panels(op.width);
  while (begin < end) {
    int64_t block = begin / panels, first = begin % panels;
    int64_t last = min64(panels, first + (end - begin));
    int64_t row = block * ROW_BLOCK;
    multiply_block<P>(op, row, int(min64(ROW_BLOCK, num_rows - row)), first, last, next);
    begin += last - first;
  }
}

}  // namespace
}  // namespace MV_ISA
}  // namespace mv
#endif
