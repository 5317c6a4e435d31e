// Where the numbers of a packed matrix lie.
//
// 16 neighbouring rows (output features) form a panel, interleaved so that one vector load of consecutive numbers feeds
// 16 outputs and no sum across lanes is needed:
//
//   float32, float16   panel[k][16 rows]
//   bfloat16           panel[k / 2][16 rows][k % 2]: a 32-bit lane holds two neighbours in k, so that a shift and a mask
//                      widen them (and the BF16 dot product can take them as they are)
//
// Rows beyond N and, for bfloat16, column K of an odd K are zeros.
#ifndef MINI_VLLM_KERNELS_PANELS_H
#define MINI_VLLM_KERNELS_PANELS_H

#include <stdint.h>

#include "mini_vllm.h"

namespace mv {

constexpr int PANEL = 16;

static inline int64_t panel_bytes(int32_t format, int32_t cols) {
  if (format == MV_F32) return int64_t(cols) * PANEL * 4;
  if (format == MV_BF16) return int64_t((cols + 1) / 2) * PANEL * 4;
  return int64_t(cols) * PANEL * 2;
}
static inline int64_t num_panels(int32_t rows) { return (rows + PANEL - 1) / PANEL; }

}  // namespace mv
#endif
