// Where the numbers of a packed matrix lie.
//
// 16 neighbouring rows (output features) form a panel, interleaved so that one vector load of consecutive numbers feeds
// 16 outputs and no sum across lanes is needed:
//
//   float32, float16   panel[k][16 rows]
//   bfloat16           panel[k / 2][16 rows][k % 2]: a 32-bit lane holds two neighbours in k, so that a shift and a mask
//                      widen them (and the BF16 dot product can take them as they are)
//   8-bit codes        panel[k / 4][16 rows][k % 4], unsigned (Q8_0 and Q5_0: signed code + 128); a 32-bit lane holds
//                      four neighbours in k, as the byte dot products want them
//   4-bit codes        panel[k / 8][16 rows][k % 4]: quads 2i in the low and 2i + 1 in the high four bits of a byte
//   6-bit codes        32 columns: their low four bits like 4-bit codes, then [k / 16][16 rows][k % 4], a byte's bits 2i and
//                      2i + 1 being the upper two bits of quad i (MV_SCREEN: the library's own, see screen.cpp)
//
// Quantised panels are a row of pairs, so that all of a pair begins on a cache line and a panel is one stream:
//
//   [ codes of 32 columns | codes of 32 more | float16 scales [2][16 rows] | Q4_1, Q5_1: float16 minima [2][16 rows] ]
//
//   Q8_0, Q5_0: w = scale (code - 128)      Q4_0: w = scale (code - 8)      Q4_1, Q5_1: w = scale code + minimum
//   MV_SCREEN: w = scale (code - 32)
//
// Codes of 5 bits are kept in 8. GGUF's K formats: k_panels.h.
//
// Rows beyond N, column K of an odd K in bfloat16 and the second half of an unfinished pair are zeros.
#ifndef MINI_VLLM_KERNELS_PANELS_H
#define MINI_VLLM_KERNELS_PANELS_H

#include <stdint.h>

#include "kernels/k_panels.h"
#include "mini_vllm.h"

namespace mv {

constexpr int PANEL = 16;
constexpr int GROUP_COLUMNS = 32;  // columns that share a scale
constexpr int32_t MV_SCREEN = 32;  // beyond enum mv_format
constexpr int SCREEN_UPPER = GROUP_COLUMNS * PANEL / 2;  // bytes of a group before its codes' upper bits

static inline bool is_quantized(int32_t format) { return format >= MV_Q8_0; }

static constexpr bool has_minimum(int32_t format) { return format == MV_Q4_1 || format == MV_Q5_1; }
// Bytes of the codes of one group, and of a pair of groups with its scales.
static constexpr int64_t group_bytes(int32_t format) {
  if (format == MV_SCREEN) return GROUP_COLUMNS * PANEL / 4 * 3;
  return GROUP_COLUMNS * PANEL / (format == MV_Q4_0 || format == MV_Q4_1 ? 2 : 1);
}
static constexpr int64_t pair_bytes(int32_t format) {
  return 2 * group_bytes(format) + 2 * PANEL * 2 * (has_minimum(format) ? 2 : 1);
}
// Where in a panel the codes, the scales and the minima of group g begin.
static inline int64_t codes_offset(int32_t format, int64_t g) {
  return g / 2 * pair_bytes(format) + g % 2 * group_bytes(format);
}
static inline int64_t scales_offset(int32_t format, int64_t g) {
  return g / 2 * pair_bytes(format) + 2 * group_bytes(format) + g % 2 * (PANEL * 2);
}
static inline int64_t minima_offset(int32_t format, int64_t g) { return scales_offset(format, g) + 2 * PANEL * 2; }
static inline int64_t panel_bytes(int32_t format, int32_t cols) {
  if (format == MV_F32) return int64_t(cols) * PANEL * 4;
  if (format == MV_BF16) return int64_t((cols + 1) / 2) * PANEL * 4;
  if (format == MV_F16) return int64_t(cols) * PANEL * 2;
  if (is_k_format(format)) return int64_t(cols) / SUPER_COLUMNS * k_layout(format).bytes();
  return (int64_t(cols) / GROUP_COLUMNS + 1) / 2 * pair_bytes(format);
}
static inline int64_t num_panels(int32_t rows) { return (rows + PANEL - 1) / PANEL; }

}  // namespace mv
#endif
