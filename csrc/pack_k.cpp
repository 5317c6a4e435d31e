// Unpacks GGUF's super-blocks of 256 columns and interleaves them into panels; kernels/k_panels.h draws the layout.
//
// Bytes of the blocks in a file (ggml's block_q2_K … block_q6_K; "nibbles" and "crumbs" are 4 and 2 bits):
//   Q2_K   16 scale | min << 4,  64 crumbs,  d, dmin           Q3_K   32 third bits,  64 crumbs,  12 six-bit scales,  d
//   Q4_K   d, dmin,  12 six-bit scales and mins,  128 nibbles  Q5_K   the same with 32 fifth bits before the nibbles
//   Q6_K   128 nibbles,  64 crumbs (upper bits),  16 signed scales,  d
#include "pack_k.h"

#include <cstring>

#include "kernels/k_panels.h"

namespace mv {
namespace {

struct Super {
  uint8_t codes[SUPER_COLUMNS];
  int8_t scales[16];
  uint8_t minima[16];
  uint16_t d, dmin;
};

uint16_t half_at(const uint8_t *bytes) { return uint16_t(bytes[0] | bytes[1] << 8); }

// 64 bytes of crumbs: each half of 32 bytes gives its lowest pairs of bits first.
int crumb(const uint8_t *packed, int k) { return packed[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3; }
// 128 bytes of nibbles: every `run` bytes give their low nibbles, then their high ones.
int nibble(const uint8_t *packed, int k, int run) {
  return packed[k / (2 * run) * run + k % run] >> (k / run % 2 * 4) & 15;
}

void unpack_q2(const uint8_t *block, Super &s) {
  for (int g = 0; g < 16; g++) {
    s.scales[g] = int8_t(block[g] & 15);
    s.minima[g] = block[g] >> 4;
  }
  for (int k = 0; k < SUPER_COLUMNS; k++) s.codes[k] = uint8_t(crumb(block + 16, k));
  s.d = half_at(block + 80);
  s.dmin = half_at(block + 82);
}

void unpack_q3(const uint8_t *block, Super &s) {
  const uint8_t *scales = block + 96;
  for (int g = 0; g < 16; g++) {
    int low = scales[g % 8] >> (g / 8 * 4) & 15, high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    s.scales[g] = int8_t((low | high << 4) - 32);
  }
  for (int k = 0; k < SUPER_COLUMNS; k++)
    s.codes[k] = uint8_t(crumb(block + 32, k) | (block[k % 32] >> (k / 32) & 1) << 2);
  s.d = half_at(block + 108);
}

// Bytes 0-3 and 4-7 hold the first four scales and minima in their lower 6 bits; the last four have their lower 4 bits in
// the nibbles of bytes 8-11 and their upper 2 bits on top of bytes 0-7.
void unpack_six_bits(const uint8_t *packed, Super &s) {
  for (int g = 0; g < 4; g++) {
    s.scales[g] = int8_t(packed[g] & 63);
    s.minima[g] = packed[4 + g] & 63;
    s.scales[4 + g] = int8_t((packed[8 + g] & 15) | packed[g] >> 6 << 4);
    s.minima[4 + g] = uint8_t(packed[8 + g] >> 4 | packed[4 + g] >> 6 << 4);
  }
}

void unpack_q4(const uint8_t *block, Super &s) {
  s.d = half_at(block);
  s.dmin = half_at(block + 2);
  unpack_six_bits(block + 4, s);
  for (int k = 0; k < SUPER_COLUMNS; k++) s.codes[k] = uint8_t(nibble(block + 16, k, 32));
}

void unpack_q5(const uint8_t *block, Super &s) {
  s.d = half_at(block);
  s.dmin = half_at(block + 2);
  unpack_six_bits(block + 4, s);
  for (int k = 0; k < SUPER_COLUMNS; k++)
    s.codes[k] = uint8_t(nibble(block + 48, k, 32) | (block[16 + k % 32] >> (k / 32) & 1) << 4);
}

void unpack_q6(const uint8_t *block, Super &s) {
  for (int k = 0; k < SUPER_COLUMNS; k++)
    s.codes[k] = uint8_t(nibble(block, k, 64) | crumb(block + 128, k) << 4);
  std::memcpy(s.scales, block + 192, 16);
  s.d = half_at(block + 208);
}

void unpack(int32_t format, const uint8_t *block, Super &s) {
  switch (format) {
    case MV_Q2_K: return unpack_q2(block, s);
    case MV_Q3_K: return unpack_q3(block, s);
    case MV_Q4_K: return unpack_q4(block, s);
    case MV_Q5_K: return unpack_q5(block, s);
    default: return unpack_q6(block, s);
  }
}

int64_t file_bytes(int32_t format) {
  return format == MV_Q2_K ? 84 : format == MV_Q3_K ? 110 : format == MV_Q4_K ? 144 : format == MV_Q5_K ? 176 : 210;
}

void place_codes(const KLayout &layout, const Super &s, uint8_t *super, int64_t lane) {
  for (int k = 0; k < SUPER_COLUMNS; k++) {
    uint8_t *codes = super + k / 32 * layout.group_bytes() + 4 * lane + k % 4;
    if (layout.code_bits == 8) {
      codes[k % 32 / 4 * 64] = s.codes[k];
      continue;
    }
    uint8_t &byte = codes[k % 32 / 8 * 64];
    byte = uint8_t(k / 4 % 2 ? (byte & 15) | s.codes[k] << 4 : (byte & 240) | s.codes[k]);
  }
}

}  // namespace

int64_t k_row_bytes(int32_t format, int64_t cols) { return cols / SUPER_COLUMNS * file_bytes(format); }

void pack_k_row(int32_t format, int64_t cols, const uint8_t *row, char *panel, int64_t lane) {
  const KLayout layout = k_layout(format);
  for (int64_t b = 0; b < cols / SUPER_COLUMNS; b++) {
    Super s = {};
    unpack(format, row + b * file_bytes(format), s);
    uint8_t *super = reinterpret_cast<uint8_t *>(panel) + b * layout.bytes();
    place_codes(layout, s, super, lane);
    const uint16_t negative = uint16_t(s.dmin ^ 0x8000u);
    std::memcpy(super + layout.scale_at() + 2 * lane, &s.d, 2);
    std::memcpy(super + layout.minimum_at() + 2 * lane, &negative, 2);
    for (int g = 0; g < layout.num_groups(); g++) {
      super[layout.scales_at() + g * 16 + lane] = uint8_t(s.scales[g]);
      if (layout.has_minimum) super[layout.minima_at() + g * 16 + lane] = s.minima[g];
    }
  }
}

}  // namespace mv
