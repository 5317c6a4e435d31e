// Where K and V of one token lie.
//
// A tile is one block of one head of one layer: a piece of K, transposed, so that one vector load reads 16 neighbouring keys; a
// piece of V as it is, rows padded to whole groups of 16 with zeros; and in int8 float32 scales, block_size of K and as many of V.
// In bfloat16 and int8, P = 2 numbers that are multiplied and summed together lie side by side, so that the dot product of
// pairs reads them in place: in K two dimensions of one key, in V one dimension of two keys. Else P = 1.
//
//   K^T: ceil(head_dim / P) x block_size x P        V: ceil(block_size / P) x padded_dim x P
//
// The pieces of a tile do not follow each other. Attention reads a history in spans of 64 keys and divides it into splits of 256
// (SPAN, SPLIT). The neighbouring blocks of a split, 16 of 16 keys, are a set, in which every layer and head has one span after
// the other, each of 4 blocks (SmolLM2 in bfloat16: 16 KiB a span, 64 KiB a head, 192 KiB a layer of 3 heads, 5.6 MiB a set):
//
//   [set][layer][head][span] = [ K^T of each block | V of each block | scales of each block ]
//
// So if 16 blocks of a history are one set, all heads of a layer read them from one piece of memory; a table may still name any
// blocks in any order. Sets follow each other, so that the first blocks of the store, which are used first, fill whole pages of
// memory and the others take none. Blocks that do not make up a span or a split (their size does not divide it, is no multiple of
// 16, or is as large) lie alone there, and so do the last ones of a store if they fill no set: it takes no more memory than its
// blocks.
#ifndef MINI_VLLM_KV_LAYOUT_H
#define MINI_VLLM_KV_LAYOUT_H

#include "kernel_table.h"
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

// 2^shift blocks make up so many keys, of a span or a split.
static inline int blocks_shift(const mv_store &s, int keys) {
  const bool together = s.block_size % 16 == 0 && s.block_size < keys && keys % s.block_size == 0;
  return together ? __builtin_ctz(unsigned(keys / s.block_size)) : 0;
}
// Bytes from the front of a store that its first `blocks` blocks lie in: whole sets, or all of the store.
static inline int64_t front_bytes(const mv_store &s, int64_t blocks) {
  const int64_t set = int64_t(1) << blocks_shift(s, SPLIT), whole = (blocks + set - 1) / set * set;
  return (whole < s.num_blocks ? whole : s.num_blocks) * block_bytes(s);
}

namespace {  // each instruction set has its own, compiled for it

// One block of one head of one layer.
struct Tile {
  char *keys, *values, *scales;
};

// Where the tiles of one layer lie, worked out once: finding a tile then takes no division, where blocks are powers of two.
struct LayerTiles {
  char *first, *rest;  // of the layer, in the first set, and in the first block that is in none
  int64_t in_sets, block_stride;  // blocks in whole sets; bytes from block to block of the others
  int64_t set_stride, head_stride, keys, values, scales;  // bytes: from set to set, head to head, and of parts of a tile
  int block_size, shift, set_shift, span_shift, head_dim;  // shift: block_size is 2^shift, or shift < 0

  LayerTiles(const mv_store &s, int layer)
      : keys(key_bytes(s)), values(value_bytes(s)), scales(scale_bytes(s)), block_size(s.block_size),
        set_shift(blocks_shift(s, SPLIT)), span_shift(blocks_shift(s, SPAN)), head_dim(s.head_dim) {
    head_stride = tile_bytes(s) << set_shift;
    first = (char *)s.data + int64_t(layer) * s.num_kv_heads * head_stride;
    in_sets = s.num_blocks >> set_shift << set_shift;
    block_stride = block_bytes(s);
    rest = (char *)s.data + in_sets * block_stride + int64_t(layer) * s.num_kv_heads * tile_bytes(s);
    set_stride = int64_t(s.num_layers) * s.num_kv_heads * head_stride;
    shift = (block_size & (block_size - 1)) == 0 ? __builtin_ctz(unsigned(block_size)) : -1;
  }
  __attribute__((noinline, cold)) Tile lone_tile(int64_t index, int head) const {
    char *tile = rest + index * block_stride + head * (keys + values + scales);
    return {tile, tile + keys, tile + keys + values};
  }
  Tile tile(int64_t block, int head) const {
    if (__builtin_expect(block >= in_sets, 0)) return lone_tile(block - in_sets, head);
    const int64_t of_set = block & ((int64_t(1) << set_shift) - 1), index = block & ((int64_t(1) << span_shift) - 1);
    char *span = first + (block >> set_shift) * set_stride + head * head_stride +
                 (of_set - index) * (keys + values + scales);
    char *all_values = span + (keys << span_shift);
    return {span + index * keys, all_values + index * values, all_values + (values << span_shift) + index * scales};
  }
  // Whether these 2^span_shift blocks are a span of a set.
  bool are_span(const int32_t *blocks) const {
    const int32_t first = blocks[0], mask = (1 << span_shift) - 1;
    if ((first & mask) != 0 || first >= in_sets) return false;
    for (int i = 1; i <= mask; i++)
      if (blocks[i] != first + i) return false;
    return true;
  }
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

}  // namespace
}  // namespace mv
#endif
