// What the executor knows of a kernel: how many independent units of work an op has, and a function that does a range
// of them. Any thread may do any unit; a unit's bits do not depend on the range it is done in.
#ifndef MINI_VLLM_KERNEL_TABLE_H
#define MINI_VLLM_KERNEL_TABLE_H

#include "mini_vllm.h"

namespace mv {

constexpr int TILE_POSITIONS = 16; // consecutive query rows of one sequence that attention handles together
constexpr int MAX_HEAD_DIM = 1024;  // kernels keep one head on the stack
constexpr int SPAN = 64;           // keys per round of the online softmax, at absolute positions
constexpr int SPLIT = 256;         // keys per part of a long history, at absolute positions; parts meet in one tree

// Up to TILE_POSITIONS consecutive rows of one sequence.
struct QueryTile {
  int32_t seq, first_row, num_rows, first_position;
};

// A head that greedy steps read in part: its rows in 6 bits, and what they miss. See kernels/screen.cpp.
// A query is an activation whose largest logit is wanted.
struct ScreenLead {  // the largest estimate among some panels
  float estimate;
  int32_t panel;
};
struct ScreenMark {  // of a query: a row may be the largest if estimate + error * rounded + length * apart >= reach
  float reach;       // a logit
  float rounded;     // length of the query in int8
  float apart;       // length of what that misses
};
struct ScreenView {
  const mv_matrix *codes;  // format MV_SCREEN
  float *errors;           // [16 * panels] of each row: length of what its codes miss, and what rounding adds
  float *lengths;          // [16 * panels] of each row, or NULL where the head takes activations in int8
  ScreenLead *leads;       // [queries][pieces]
  ScreenMark *marks;       // [queries]
  int32_t limit;           // of the step: rows below it compete
  int64_t *computed;       // panels, of all queries, whose logits MV_SCREEN_REST had to compute
};

// One step as kernels see it.
struct StepView {
  mv_step in;
  const mv_store *store;
  const QueryTile *tiles;
  int32_t num_tiles;
  int32_t num_splits;   // parts of the longest history
  bool split_units;     // every part is its own unit, and MV_ATTEND_COMBINE joins them
  bool uneven;          // some tiles have far more to do than others
  float *partials;      // [num_tiles * kv heads * num_splits] states, when split_units
  int64_t partial_len;  // floats per state
  int32_t rows[2];      // by enum mv_rows
  const ScreenView *screen;  // of a head that is screened, or NULL
};

// One thread as kernels see it.
struct ThreadView {
  char *scratch;     // memory of its own
  const char *next;  // the weights that it most likely reads after the ones at hand, or NULL
};

struct Kernel {
  int64_t (*units)(const mv_op &op, const StepView &step);
  void (*run)(const mv_op &op, const StepView &step, int64_t begin, int64_t end, const ThreadView &thread);
  int64_t grain;  // the fewest units worth claiming at once; an op of no more is not worth sharing
  // Products only, else NULL: the weights that units begin … end read first, and how many bytes of them in a row.
  const char *(*stream)(const mv_op &op, int64_t begin, int64_t end, int64_t *bytes) = nullptr;
};

struct KernelTable {
  Kernel kernels[MV_NUM_OPS];
  int64_t (*attend_scratch_bytes)(const mv_op &op, const mv_store &store);  // per thread
  int64_t (*attend_partial_len)(const mv_op &op);                           // floats of one state
};

}  // namespace mv
#endif
