// Where K and V of one token lie.
//
// A tile holds one block of one head of one layer: K transposed, so that one vector load reads 16 neighbouring keys, then
// V as it is, rows padded to whole groups of 16 with zeros. In bfloat16 and int8, P = 2 numbers that are multiplied and
// summed together lie side by side, so that the dot product of pairs reads them in place: two dimensions of a key, the same
// dimension of two keys. Else P = 1.
//
//   tile(layer, block, head) = [ K^T: ceil(head_dim / P) x block_size x P | V: ceil(block_size / P) x padded_dim x P ]
//
// In int8, the float32 scales follow: block_size of K, then block_size of V. All parts are padded to whole cache lines. A
// block has the tiles of all its layers and heads together, [block][layer][head], so that the blocks in use fill whole pages
// of memory: with the layers apart, each would hold a large page of its own that is mostly empty.
#ifndef MINI_VLLM_KV_LAYOUT_H
#define MINI_VLLM_KV_LAYOUT_H

#include "mini_vllm.h"

namespace mv {

static inline int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }
static inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static inline int store_pack(int32_t format) { return format == MV_BF16 || format == MV_STORE_Q8 ? 2 : 1; }
static inline int store_element_bytes(int32_t format) {
  return format == MV_F32 ? 4 : format == MV_STORE_Q8 ? 1 : 2;
}

static inline int64_t key_bytes(const mv_store &s) {
  int pack = store_pack(s.format);
  return whole_lines(int64_t((s.head_dim + pack - 1) / pack) * s.block_size * pack * store_element_bytes(s.format));
}
static inline int64_t value_bytes(const mv_store &s) {
  int pack = store_pack(s.format);
  int64_t rows = (s.block_size + pack - 1) / pack * pack;
  return whole_lines(rows * padded_dim(s.head_dim) * store_element_bytes(s.format));
}
static inline int64_t scale_bytes(const mv_store &s) {
  return s.format == MV_STORE_Q8 ? whole_lines(8 * int64_t(s.block_size)) : 0;
}
static inline int64_t tile_bytes(const mv_store &s) { return key_bytes(s) + value_bytes(s) + scale_bytes(s); }
static inline int64_t block_bytes(const mv_store &s) { return s.num_layers * s.num_kv_heads * tile_bytes(s); }

// Where the tiles of one layer lie, worked out once: finding a tile then takes no division, where blocks are powers of two.
struct LayerTiles {
  char *first;  // tile(layer, 0, 0)
  int64_t block_stride, head_stride, keys, values;  // bytes: from block to block, head to head, of K and V of a tile
  int block_size, shift, head_dim;                  // shift: block_size is 2^shift, or shift < 0

  LayerTiles(const mv_store &s, int layer)
      : head_stride(tile_bytes(s)), keys(key_bytes(s)), values(value_bytes(s)), block_size(s.block_size), head_dim(s.head_dim) {
    first = (char *)s.data + int64_t(layer) * s.num_kv_heads * head_stride;
    block_stride = int64_t(s.num_layers) * s.num_kv_heads * head_stride;
    shift = (block_size & (block_size - 1)) == 0 ? __builtin_ctz(unsigned(block_size)) : -1;
  }
  char *tile(int64_t block, int head) const { return first + block * block_stride + head * head_stride; }
  const float *scales(const char *tile) const { return (const float *)(tile + keys + values); }  // in int8
  int block_of(int position) const { return shift >= 0 ? position >> shift : position / block_size; }
  int offset_of(int position) const { return shift >= 0 ? position & (block_size - 1) : position % block_size; }
};

// Of a tile whose blocks have block_size keys: dimension d of K at key offset, column of V at key offset.
template <int P>
static inline int64_t key_index(int d, int64_t offset, int64_t block_size) {
  return (d / P * block_size + offset) * P + d % P;
}
template <int P>
static inline int64_t value_index(int64_t offset, int column, int padded) {
  return (offset / P * padded + column) * P + offset % P;
}

}  // namespace mv
#endif
