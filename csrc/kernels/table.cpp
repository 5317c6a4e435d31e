// The table of one instruction set: the only symbol of kernels/ that the executor sees.
#include "kernels/kernels.h"

#define MV_PASTE(a, b) a##b
#define MV_TABLE_NAME(isa) MV_PASTE(kernel_table_, isa)

namespace mv {
namespace MV_ISA {

static KernelTable make_table() {
  KernelTable table = {};
  table.kernels[MV_EMBED] = EMBED;
  table.kernels[MV_EMBED_POSITIONS] = EMBED_POSITIONS;
  table.kernels[MV_ADD] = ADD;
  table.kernels[MV_RMS_NORM] = RMS_NORM;
  table.kernels[MV_LAYER_NORM] = LAYER_NORM;
  table.kernels[MV_QK_NORM] = QK_NORM;
  table.kernels[MV_LINEAR] = LINEAR;
  table.kernels[MV_LINEAR_SILU_MUL] = LINEAR_SILU_MUL;
  table.kernels[MV_ROPE_STORE] = ROPE_STORE;
  table.kernels[MV_ATTEND] = ATTEND;
  table.kernels[MV_ATTEND_COMBINE] = COMBINE;
  table.kernels[MV_SILU_MUL] = SILU_MUL;
  table.kernels[MV_GELU_MUL] = GELU_MUL;
  table.kernels[MV_GELU] = GELU;
  table.kernels[MV_TAKE_ROWS] = TAKE_ROWS;
  table.kernels[MV_QUANTIZE] = QUANTIZE;
  table.kernels[MV_SCREEN_MAKE] = SCREEN_MAKE;
  table.kernels[MV_SCREEN_LEAD] = SCREEN_LEAD;
  table.kernels[MV_SCREEN_PICK] = SCREEN_PICK;
  table.kernels[MV_SCREEN_REST] = SCREEN_REST;
  table.attend_scratch_bytes = attend_scratch_bytes;
  table.attend_partial_len = attend_partial_len;
  return table;
}

}  // namespace MV_ISA

const KernelTable &MV_TABLE_NAME(MV_ISA)() {
  static const KernelTable table = MV_ISA::make_table();
  return table;
}

}  // namespace mv
