// The kernels of one instruction set, gathered from the files beside this one.
#ifndef MINI_VLLM_KERNELS_KERNELS_H
#define MINI_VLLM_KERNELS_KERNELS_H

#include "kernel_table.h"
#include "kernels/simd.h"

namespace mv {
namespace MV_ISA {

// rows.cpp
extern const Kernel EMBED, EMBED_POSITIONS, ADD, RMS_NORM, LAYER_NORM, QK_NORM, SILU_MUL, GELU_MUL, GELU, TAKE_ROWS;
extern const Kernel LINEAR, LINEAR_SILU_MUL;  // linear.cpp
extern const Kernel QUANTIZE;         // quantize.cpp
extern const Kernel ROPE_STORE;       // rope.cpp
extern const Kernel ATTEND, COMBINE;  // attention.cpp
extern const Kernel SCREEN_MAKE, SCREEN_LEAD, SCREEN_PICK, SCREEN_REST;  // screen.cpp
int64_t attend_scratch_bytes(const mv_op &op, const mv_store &store);
int64_t attend_partial_len(const mv_op &op);
void round_to_bf16(const mv_op &op, int64_t begin, int64_t end);  // linear.cpp
// quantized.cpp, k_quantized.cpp; next: see ThreadView
void multiply_quantized(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end, const char *next);
void multiply_k_quantized(const mv_op &op, int64_t num_rows, int64_t begin, int64_t end, const char *next);

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int min32(int a, int b) { return a < b ? a : b; }
static inline int max32(int a, int b) { return a > b ? a : b; }

static inline int64_t units_rows(const mv_op &op, const StepView &step) { return step.rows[op.row_kind]; }

}  // namespace MV_ISA
}  // namespace mv
#endif
