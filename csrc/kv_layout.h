// Where K and V of one token lie.
//
// A tile holds one block of one head of one layer: K transposed, so that one vector load reads one dimension of 16
// neighbouring keys, then V as it is, rows padded to whole groups of 16 with zeros.
//
//   tile(layer, block, head) = [ K^T: head_dim x block_size | V: block_size x padded_dim ]
#ifndef MINI_VLLM_KV_LAYOUT_H
#define MINI_VLLM_KV_LAYOUT_H

#include "mini_vllm.h"

namespace mv {

static inline int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Elements of one tile; K^T is padded so that V starts on a cache line.
static inline int64_t key_elements(const mv_store &s) {
  return (int64_t(s.head_dim) * s.block_size + 31) / 32 * 32;
}
static inline int64_t tile_elements(const mv_store &s) {
  return key_elements(s) + (int64_t(s.block_size) * padded_dim(s.head_dim) + 31) / 32 * 32;
}
static inline int64_t tile_offset(const mv_store &s, int layer, int64_t block, int head) {
  return ((layer * int64_t(s.num_blocks) + block) * s.num_kv_heads + head) * tile_elements(s);
}

}  // namespace mv
#endif
