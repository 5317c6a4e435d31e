// Interleaves the rows of a matrix into panels of 16; kernels/panels.h draws the layout.
#include <cstring>

#include "kernels/panels.h"
#include "kv_layout.h"
#include "mini_vllm.h"
#include "pack_k.h"

namespace {

constexpr int GROUP = mv::GROUP_COLUMNS;

// The panel of a row, and the row's lane in it.
struct Lane {
  char *panel;
  int64_t lane;
  Lane(const mv_matrix &m, int64_t row)
      : panel(static_cast<char *>(m.data) + row / mv::PANEL * mv::panel_bytes(m.format, m.cols)),
        lane(row % mv::PANEL) {}
};

template <typename Element>
void pack_plain(const mv_matrix &m, const Lane &to, const Element *row) {
  Element *lane = reinterpret_cast<Element *>(to.panel) + to.lane;
  for (int32_t k = 0; k < m.cols; k++) lane[int64_t(k) * mv::PANEL] = row[k];
}

void pack_pairs(const mv_matrix &m, const Lane &to, const uint16_t *row) {
  uint16_t *lane = reinterpret_cast<uint16_t *>(to.panel) + 2 * to.lane;
  for (int32_t k = 0; k < m.cols; k++) lane[int64_t(k / 2) * (2 * mv::PANEL) + k % 2] = row[k];
}

// GGUF's blocks of 32: float16 scale, for Q4_1 and Q5_1 a float16 minimum, for Q5_0 and Q5_1 the fifth bits, the codes.
int64_t head_bytes(int32_t format) { return mv::has_minimum(format) ? 4 : 2; }
bool has_fifth_bits(int32_t format) { return format == MV_Q5_0 || format == MV_Q5_1; }
int64_t block_bytes(int32_t format) {
  return head_bytes(format) + (format == MV_Q8_0 ? 32 : has_fifth_bits(format) ? 20 : 16);
}

void pack_eight_bits(const uint8_t *codes, uint8_t *lane) {
  for (int k = 0; k < GROUP; k++) lane[k / 4 * 64 + k % 4] = uint8_t(codes[k] ^ 128);  // signed code + 128
}

// The block's byte i holds code i in its low and code i + 16 in its high four bits.
void pack_four_bits(const uint8_t *codes, uint8_t *lane) {
  for (int k = 0; k < GROUP; k++) {
    int code = k < 16 ? codes[k] & 15 : codes[k - 16] >> 4;
    uint8_t &byte = lane[k / 8 * 64 + k % 4];
    byte = uint8_t(k / 4 % 2 ? (byte & 15) | code << 4 : (byte & 240) | code);
  }
}

// Four bytes of fifth bits, column by column, before the nibbles. Q5_0: signed code + 128, as for Q8_0.
void pack_five_bits(const uint8_t *packed, int offset, uint8_t *lane) {
  const uint8_t *codes = packed + 4;
  for (int k = 0; k < GROUP; k++) {
    int four = k < 16 ? codes[k] & 15 : codes[k - 16] >> 4, fifth = packed[k / 8] >> (k % 8) & 1;
    lane[k / 4 * 64 + k % 4] = uint8_t((four | fifth << 4) + offset);
  }
}

void pack_blocks(const mv_matrix &m, const Lane &to, const uint8_t *row) {
  for (int64_t g = 0; g < m.cols / GROUP; g++) {
    const uint8_t *block = row + g * block_bytes(m.format);
    uint8_t *codes = reinterpret_cast<uint8_t *>(to.panel) + mv::codes_offset(m.format, g) + to.lane * 4;
    std::memcpy(to.panel + mv::scales_offset(m.format, g) + to.lane * 2, block, 2);
    if (mv::has_minimum(m.format)) std::memcpy(to.panel + mv::minima_offset(m.format, g) + to.lane * 2, block + 2, 2);
    const uint8_t *packed = block + head_bytes(m.format);
    if (m.format == MV_Q8_0) {
      pack_eight_bits(packed, codes);
    } else if (has_fifth_bits(m.format)) {
      pack_five_bits(packed, m.format == MV_Q5_0 ? 128 - 16 : 0, codes);
    } else {
      pack_four_bits(packed, codes);
    }
  }
}

}  // namespace

extern "C" int64_t mv_matrix_bytes(int32_t format, int32_t rows, int32_t cols) {
  return mv::num_panels(rows) * mv::panel_bytes(format, cols);
}

extern "C" void mv_pack_rows(const mv_matrix *matrix, int32_t first_row, int32_t num_rows, const void *rows) {
  const mv_matrix &m = *matrix;
  const int64_t cols = m.cols;
  for (int64_t r = 0; r < num_rows; r++) {
    const Lane to(m, first_row + r);
    if (mv::is_k_format(m.format)) {
      mv::pack_k_row(m.format, cols, static_cast<const uint8_t *>(rows) + r * mv::k_row_bytes(m.format, cols), to.panel,
                     to.lane);
      continue;
    }
    switch (m.format) {
      case MV_F32: pack_plain(m, to, static_cast<const float *>(rows) + r * cols); break;
      case MV_F16: pack_plain(m, to, static_cast<const uint16_t *>(rows) + r * cols); break;
      case MV_BF16: pack_pairs(m, to, static_cast<const uint16_t *>(rows) + r * cols); break;
      default: pack_blocks(m, to, static_cast<const uint8_t *>(rows) + r * (cols / GROUP) * block_bytes(m.format));
    }
  }
}

extern "C" int64_t mv_store_bytes(const mv_store *s) {
  return mv::front_bytes(*s, s->num_blocks);
}
