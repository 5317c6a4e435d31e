// Where the numbers of a packed matrix in GGUF's K formats lie.
//
// 256 columns of a row are a super-block: groups of 16 or 32 columns with a small integer scale each (and in some formats
// a small integer minimum), times one float16 scale d (and one float16 dmin) of the whole block:
//
//   Q4_K, Q5_K   groups of 32   w = d s q - dmin m        Q2_K   groups of 16   w = d s q - dmin m
//   Q3_K         groups of 16   w = d s (q - 4)           Q6_K   groups of 16   w = d s (q - 32)
//
// Codes q keep 4 bits (Q2_K, Q3_K, Q4_K) or 8 (Q5_K, Q6_K), interleaved over 16 rows as in panels.h. A panel is a row of
// super-blocks, each of them one stream that begins on a cache line:
//
//   [ codes of 8 x 32 columns | d [16 rows] | -dmin [16 rows] | scales [groups][16 rows] | minima [groups][16 rows] ]
//
// d and -dmin are float16, scales signed bytes, minima unsigned bytes (where the format has them).
#ifndef MINI_VLLM_KERNELS_K_PANELS_H
#define MINI_VLLM_KERNELS_K_PANELS_H

#include <stdint.h>

#include "mini_vllm.h"

namespace mv {

constexpr int SUPER_COLUMNS = 256;

static inline bool is_k_format(int32_t format) { return format >= MV_Q2_K && format < MV_NUM_FORMATS; }

struct KLayout {
  int code_bits;     // 4 or 8
  int group;         // columns that share a scale: 16 or 32
  bool has_minimum;  // else codes have an offset
  int offset;

  constexpr int num_groups() const { return SUPER_COLUMNS / group; }
  constexpr int64_t group_bytes() const { return 32 * 16 * code_bits / 8; }  // codes of 32 columns
  constexpr int64_t scale_at() const { return 8 * group_bytes(); }           // d
  constexpr int64_t minimum_at() const { return scale_at() + 32; }           // -dmin
  constexpr int64_t scales_at() const { return scale_at() + 64; }
  constexpr int64_t minima_at() const { return scales_at() + num_groups() * 16; }
  constexpr int64_t bytes() const { return minima_at() + (has_minimum ? num_groups() * 16 : 0); }
};

constexpr KLayout k_layout(int32_t format) {
  return format == MV_Q2_K   ? KLayout{4, 16, true, 0}
         : format == MV_Q3_K ? KLayout{4, 16, false, 4}
         : format == MV_Q4_K ? KLayout{4, 32, true, 0}
         : format == MV_Q5_K ? KLayout{8, 32, true, 0}
                             : KLayout{8, 16, false, 32};
}

}  // namespace mv
#endif
