// Rounding activations before products: to int8 for quantised weights (quantize.h); to bfloat16 for bfloat16 ones (linear.cpp).
#include "kernels/quantize.h"

namespace mv {
namespace MV_ISA {
namespace {

void quantize(const mv_op &op, const StepView &, int64_t begin, int64_t end, const ThreadView &) {
  if (op.weight->format == MV_BF16) return round_to_bf16(op, begin, end);
  for (int64_t t = begin; t < end; t++)
    quantize_row(op.x + t * op.x_stride, op.weight->cols, op.weight->format, op.out + t * op.out_stride);
}

}  // namespace

const Kernel QUANTIZE = {units_rows, quantize, 1};

}  // namespace MV_ISA
}  // namespace mv
