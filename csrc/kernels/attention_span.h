// One span of 64 keys of one sequence and K/V head: where its keys and values lie.
//
// Blocks whose size is a multiple of 16 are read in place; other block sizes are first copied to the same shape.
#ifndef MINI_VLLM_KERNELS_ATTENTION_SPAN_H
#define MINI_VLLM_KERNELS_ATTENTION_SPAN_H

#include "kernels/attention_codes.h"
#include "kv_layout.h"

namespace mv {
namespace MV_ISA {
namespace {

// Keys start … of a sequence as one K/V head of a layer has them; of the span's keys, low … high - 1 are visible to some row.
struct SpanPlace {
  const LayerTiles *tiles;
  const int32_t *table;
  int head, start, low, high;

  Tile tile(int position) const { return tiles->tile(table[tiles->block_of(position)], head); }
};

inline int64_t span_copy_bytes(int head_dim) { return int64_t(SPAN) * (head_dim + 3 + padded_dim(head_dim)) * 4; }

template <typename Lanes>
Span<Lanes> empty_span(int head_dim) {
  Span<Lanes> span;
  span.padded = padded_dim(head_dim);
  span.steps = (head_dim + Lanes::P - 1) / Lanes::P;
  span.value_stride = span.padded * Lanes::P;
  span.key_run = span.value_run = nullptr;
  return span;
}

template <typename Lanes>
Span<Lanes> locate_span(const SpanPlace &place) {
  typedef typename Lanes::Element Element;
  const LayerTiles &s = *place.tiles;
  Span<Lanes> span = empty_span<Lanes>(s.head_dim);
  span.key_stride = int64_t(s.block_size) * Lanes::P;
  const int32_t *table = place.table + s.block_of(place.start);
  if (s.block_size == GROUP && place.low < GROUP && place.high > SPAN - GROUP && s.are_span(table)) {
    const Tile tile = s.tile(table[0], place.head);
    for (int g = 0; g < GROUPS; g++) {
      span.keys[g] = (const Element *)(tile.keys + g * s.keys);
      span.values[g] = (const Element *)(tile.values + g * s.values);
      if constexpr (Lanes::HAS_SCALES) {
        span.key_scales[g] = (const float *)(tile.scales + g * s.scales);
        span.value_scales[g] = span.key_scales[g] + GROUP;
      }
    }
    span.key_run = tile.keys;
    span.value_run = tile.values;
    return span;
  }
  for (int g = 0; g < GROUPS; g++) {
    int nearest = min32(max32(g, place.low / GROUP), (place.high - 1) / GROUP);  // others have no visible keys
    int position = place.start + nearest * GROUP, offset = s.offset_of(position);
    const Tile tile = place.tile(position);
    span.keys[g] = (const Element *)tile.keys + offset * Lanes::P;
    span.values[g] = (const Element *)tile.values + int64_t(offset) * span.padded;
    if constexpr (Lanes::HAS_SCALES) {
      span.key_scales[g] = (const float *)tile.scales + offset;
      span.value_scales[g] = span.key_scales[g] + s.block_size;
    }
  }
  // Pieces of larger blocks that begin and end where one piece would are taken for one: it matters for what is asked for alone.
  const int64_t values = int64_t(GROUP) * span.padded;
  if (span.values[GROUPS - 1] == span.values[0] + (GROUPS - 1) * values) span.value_run = (const char *)span.values[0];
  return span;
}

// Copies keys low … high - 1, one by one; the rest of the memory is never used but as dead lanes.
template <typename Lanes>
Span<Lanes> copy_span(const SpanPlace &place, char *memory) {
  typedef typename Lanes::Element Element;
  constexpr int P = Lanes::P;
  const LayerTiles &s = *place.tiles;
  Span<Lanes> span = empty_span<Lanes>(s.head_dim);
  float *scales = (float *)memory;  // SPAN of K, SPAN of V
  Element *keys = (Element *)(scales + 2 * SPAN), *values = keys + SPAN * span.steps * P;
  for (int j = place.low; j < place.high; j++) {
    int offset = s.offset_of(place.start + j);
    const Tile tile = place.tile(place.start + j);
    const Element *from_keys = (const Element *)tile.keys, *from_values = (const Element *)tile.values;
    Element *to = keys + j / GROUP * GROUP * span.steps * P;
    for (int d = 0; d < span.steps * P; d++)
      to[key_index<P>(d, j % GROUP, GROUP)] = from_keys[key_index<P>(d, offset, s.block_size)];
    for (int i = 0; i < span.padded; i++)
      values[value_index<P>(j, i, span.padded)] = from_values[value_index<P>(offset, i, span.padded)];
    if constexpr (Lanes::HAS_SCALES) {
      const float *from_scales = (const float *)tile.scales + offset;
      scales[j] = from_scales[0];
      scales[SPAN + j] = from_scales[s.block_size];
    }
  }
  span.key_stride = GROUP * P;
  for (int g = 0; g < GROUPS; g++) {
    span.keys[g] = keys + g * GROUP * span.steps * P;
    span.values[g] = values + g * GROUP * span.padded;
    span.key_scales[g] = scales + g * GROUP;
    span.value_scales[g] = scales + SPAN + g * GROUP;
  }
  return span;
}

}  // namespace
}  // namespace MV_ISA
}  // namespace mv
#endif
