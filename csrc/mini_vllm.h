// The C interface of the native library. Self-contained: C99 or C++, no other header of ours.
//
//   T = tokens of a step, R = sequences, L = rows that need an output, N x K = a matrix of N rows, D = head size
#ifndef MINI_VLLM_H
#define MINI_VLLM_H

#include <stdint.h>

#if defined(__GNUC__)
#define MV_EXPORT __attribute__((visibility("default")))
#else
#define MV_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Changes whenever a struct, a signature or what they mean does; the Python binding refuses another number.
#define MV_ABI_VERSION 11

enum mv_format { MV_F32 = 0, MV_F16 = 1, MV_BF16 = 2, MV_Q8_0 = 3, MV_Q4_0 = 4, MV_Q4_1 = 5,
                 MV_Q5_0 = 6, MV_Q5_1 = 7, MV_Q2_K = 8, MV_Q3_K = 9, MV_Q4_K = 10, MV_Q5_K = 11, MV_Q6_K = 12,
                 MV_NUM_FORMATS };

// A matrix packed in panels of 16 rows (pack.cpp draws the layout). Used by products and by embedding look-ups.
typedef struct mv_matrix {
  int32_t format;  // enum mv_format
  int32_t rows;    // N
  int32_t cols;    // K
  int32_t unused;
  void *data;         // mv_matrix_bytes(), 64-byte aligned
  const float *bias;  // [N], or NULL
} mv_matrix;

// A format of stores alone: int8 with a float32 scale per token and head, one for K and one for V.
enum { MV_STORE_Q8 = 64 };

// K and V of every layer, in blocks of block_size tokens (kv_layout.h draws the layout).
typedef struct mv_store {
  int32_t format;  // MV_F32, MV_F16, MV_BF16 or MV_STORE_Q8
  int32_t num_layers, num_blocks, block_size, num_kv_heads, head_dim;
  void *data;  // mv_store_bytes(), 64-byte aligned
} mv_store;

// What an op reads (x, y, weight, vectors) and writes (out) is listed beside its name.
enum mv_op_kind {
  MV_EMBED = 0,            // token_ids, weight, scale -> out
  MV_EMBED_POSITIONS = 1,  // positions, weight -> out
  MV_ADD = 2,              // x, y -> out
  MV_RMS_NORM = 3,         // x, vector0 = weight, eps -> out
  MV_LAYER_NORM = 4,       // x, vector0 = weight, vector1 = bias, eps -> out
  MV_QK_NORM = 5,          // x = qkv, vector0 = q weight, vector1 = k weight, eps, heads -> out
  MV_LINEAR = 6,           // x, weight, softcap, y = what to add or NULL -> out
  MV_ROPE_STORE = 7,       // x = qkv, vector0 = cos, vector1 = sin, heads -> out = q, and the store
  MV_ATTEND = 8,           // x = q, heads, the store -> out
  MV_ATTEND_COMBINE = 9,   // the parts that a long MV_ATTEND left -> out
  MV_SILU_MUL = 10,        // x -> out
  MV_GELU_MUL = 11,        // x -> out
  MV_GELU = 12,            // x -> out
  MV_TAKE_ROWS = 13,       // x, logit_rows -> out
  MV_QUANTIZE = 14,        // x, weight = whose product comes next -> out: x as that product wants it; quantised
                           // weights: width / 10 groups of int8 (quantize.cpp), bfloat16: width pairs of bfloat16
  MV_LINEAR_SILU_MUL = 15, // x, weight [2 width, K] = gate's rows, then up's -> out = silu(x gate^T) * (x up^T)
  // Made by the library itself, for steps with a greedy_limit (kernels/screen.cpp). x is what the head takes, y the same
  // rounded to int8, weight the head; out holds estimates of logits, and logits where they matter
  MV_SCREEN_MAKE = 16,
  MV_SCREEN_LEAD = 17,
  MV_SCREEN_PICK = 18,
  MV_SCREEN_REST = 19,
  MV_NUM_OPS = 20
};

enum mv_rows { MV_ROWS_TOKENS = 0, MV_ROWS_OUTPUT = 1 };  // T rows, or as many as need an output

typedef struct mv_op {
  int32_t kind;      // enum mv_op_kind
  int32_t row_kind;  // enum mv_rows: how many rows `out` has
  int32_t width;     // columns of out
  int32_t layer, num_heads, num_kv_heads, head_dim, window;
  int32_t rope_dims;  // rotated dimensions of a head, even; 0 = none
  int32_t out_format;  // MV_F32, or the format of the weights that out is multiplied by, to hold what MV_QUANTIZE would make
                       // of it for them: MV_BF16 (MV_RMS_NORM, MV_ATTEND, MV_LINEAR_SILU_MUL; width is even), or a quantised
                       // one (MV_RMS_NORM, MV_ATTEND, MV_SILU_MUL; width, and attention's head_dim, are multiples of 32)
  float eps, scale, softcap;
  const float *x, *y;
  float *out;
  int64_t x_stride, y_stride, out_stride;  // in elements
  const mv_matrix *weight;
  const float *vector0, *vector1;
} mv_op;

// One step's ragged batch; see mini_vllm.kernels.inputs.StepInputs.
typedef struct mv_step {
  int32_t num_tokens, num_seqs, num_logit_rows;
  int32_t table_width;  // entries per row of block_tables
  const int32_t *token_ids, *positions, *slots, *query_starts, *seq_lens, *block_tables, *logit_rows;
  int32_t greedy_limit;  // > 0: of each row's logits with an index below it, only the largest is wanted, the first of equals;
                         // the others may be anything below it. 0: all are wanted
  int32_t unused;
} mv_step;

typedef struct mv_limits {
  int32_t max_tokens, max_seqs, max_logit_rows;
  int32_t vocab_size, max_positions;  // bounds of token ids and positions
  int32_t pass_tokens;  // tokens that go through the hidden ops at once, as many as activations have rows; 0: max_tokens.
                        // Less than max_tokens only where hidden states are written by the last op alone
} mv_limits;

// How a greedy decode step is followed by the next one of the same sequences, R of them.
typedef struct mv_follow {
  const float *logits;  // of the program, rows of vocab
  int32_t vocab, block_size;
  int32_t is_begun;   // the step has been begun
  int32_t may_begin;  // whether to begin the next one
  int32_t next_begun;  // out: the arrays have moved on, and the next step was begun if anything can be
  int32_t unused;
  const int32_t *max_lens;                        // [R] tokens at which a sequence ends
  const int32_t *end_ids, *end_starts;            // of r: end_ids[end_starts[r]] … end_ids[end_starts[r + 1] - 1] end it
  int32_t *token_ids, *positions, *slots, *seq_lens;  // [R] the step's own arrays
  int32_t *chosen;                                // [R] out: tokens; -1 where no logit is a number
} mv_follow;

enum mv_status {
  MV_OK = 0,
  MV_BAD_COUNTS,        // more rows than the program was made for, or negative
  MV_BAD_TOKEN,         // a token id outside the embedding
  MV_BAD_POSITION,      // positions of a sequence are not consecutive, or beyond the tables
  MV_BAD_SLOT,          // a slot outside the store
  MV_BAD_QUERY_STARTS,  // not ascending from 0 to T
  MV_BAD_SEQ_LEN,       // not last position + 1, or beyond the block table
  MV_BAD_BLOCK,         // a block id outside the store
  MV_BAD_LOGIT_ROW,     // not ascending rows of the step
  MV_NO_MEMORY
};

typedef struct mv_team mv_team;        // threads
typedef struct mv_program mv_program;  // two lists of ops over fixed buffers: the model, and its output head

MV_EXPORT int32_t mv_version(void);
MV_EXPORT int32_t mv_struct_bytes(int32_t which);     // 0 matrix, 1 store, 2 op, 3 step, 4 limits, 5 follow: checks the binding
MV_EXPORT const char *mv_isa_names(void);             // what this machine can run, best first: "avx512 avx2 portable"
MV_EXPORT int32_t mv_isa_supported(const char *isa);  // 1 or 0; "none", for measuring alone, computes nothing

// 64-byte aligned zeros, in large pages where the system has them; NULL on failure.
MV_EXPORT void *mv_alloc(int64_t bytes);
MV_EXPORT void mv_free(void *memory, int64_t bytes);

MV_EXPORT int64_t mv_matrix_bytes(int32_t format, int32_t rows, int32_t cols);
// Packs num_rows row-major rows of the matrix's own format (quantised ones as GGUF's blocks) into rows first_row …;
// padding must start as zeros.
MV_EXPORT void mv_pack_rows(const mv_matrix *matrix, int32_t first_row, int32_t num_rows, const void *rows);
MV_EXPORT int64_t mv_store_bytes(const mv_store *store);

MV_EXPORT mv_team *mv_team_create(int32_t threads);  // NULL when the system refuses memory or threads
MV_EXPORT void mv_team_destroy(mv_team *team);
// A number that changes with every op that the team begins. May be read from any thread at any time.
MV_EXPORT uint32_t mv_team_progress(const mv_team *team);
// From now on adds the wall time of every op, in nanoseconds, to ns[its enum mv_op_kind]; NULL: stops. Not during a run.
MV_EXPORT void mv_team_profile(mv_team *team, int64_t *ns);

// Ops and what they point to must outlive the program. NULL on failure, and errno says why: ENOMEM, no memory; ENOSYS, an isa
// that mv_isa_supported does not accept; EINVAL, no hidden op, or an op that kernels cannot run (heads larger than 1024, other
// heads than the store's …), which is refused in a program of its own, too.
MV_EXPORT mv_program *mv_program_create(mv_team *team, const char *isa, const mv_store *store, const mv_limits *limits,
                                        const mv_op *hidden_ops, int32_t num_hidden_ops, const mv_op *logit_ops,
                                        int32_t num_logit_ops);
MV_EXPORT void mv_program_destroy(mv_program *program);
// Runs the hidden ops (over pass_tokens at a time), then the logit ops if L <= max_logit_rows. Not reentrant.
MV_EXPORT int32_t mv_program_run(mv_program *program, const mv_step *step);
// Begins what mv_program_run does, on the team's other threads, and returns: the caller may do something else, then end
// it. Until then the step's arrays must stay as they are, and hidden states and logits are in the making. Nothing begins
// where the team has one thread or the step has more than pass_tokens tokens or max_logit_rows outputs.
MV_EXPORT int32_t mv_program_begin(mv_program *program, const mv_step *step);
// keep: joins in; 1 when the step that was begun is done, 0 if none is under way (any other run of the team ends it).
// Else drops it; K and V that it has stored by then stay.
MV_EXPORT int32_t mv_program_end(mv_program *program, int32_t keep);
// Ends a greedy decode step that was begun, or runs it; chooses each sequence's token; and where every sequence goes on within
// its block, moves the step's arrays on by one position and begins that step. Not for more than max_logit_rows sequences.
MV_EXPORT int32_t mv_program_follow(mv_program *program, const mv_step *step, mv_follow *follow);
// Runs the logit ops on rows first … first + count of the hidden rows of the last run.
MV_EXPORT int32_t mv_program_logits(mv_program *program, int32_t first, int32_t count);

#ifdef __cplusplus
}
#endif
#endif
