// Interleaves the rows of a matrix into panels of 16; kernels/panels.h draws the layout.
#include <algorithm>
#include <cstring>

#include "kernels/panels.h"
#include "kv_layout.h"
#include "mini_vllm.h"

namespace {

// Rows first … first + count of `rows` [count][cols], taken PANEL_COLUMNS columns at a time to stay in the cache.
template <typename Element>
void pack_plain(const mv_matrix &m, int32_t first, int32_t count, const Element *rows) {
  const int64_t bytes = mv::panel_bytes(m.format, m.cols);
  for (int32_t r = 0; r < count; r++) {
    int64_t row = int64_t(first) + r;
    Element *to = reinterpret_cast<Element *>(static_cast<char *>(m.data) + row / mv::PANEL * bytes) + row % mv::PANEL;
    const Element *from = rows + int64_t(r) * m.cols;
    for (int32_t k = 0; k < m.cols; k++) to[int64_t(k) * mv::PANEL] = from[k];
  }
}

void pack_pairs(const mv_matrix &m, int32_t first, int32_t count, const uint16_t *rows) {
  const int64_t bytes = mv::panel_bytes(m.format, m.cols);
  for (int32_t r = 0; r < count; r++) {
    int64_t row = int64_t(first) + r;
    uint16_t *to = reinterpret_cast<uint16_t *>(static_cast<char *>(m.data) + row / mv::PANEL * bytes);
    to += 2 * (row % mv::PANEL);
    const uint16_t *from = rows + int64_t(r) * m.cols;
    for (int32_t k = 0; k < m.cols; k++) to[int64_t(k / 2) * (2 * mv::PANEL) + k % 2] = from[k];
  }
}

}  // namespace

extern "C" int64_t mv_matrix_bytes(int32_t format, int32_t rows, int32_t cols) {
  return mv::num_panels(rows) * mv::panel_bytes(format, cols);
}

extern "C" void mv_pack_rows(const mv_matrix *matrix, int32_t first_row, int32_t num_rows, const void *rows) {
  if (matrix->format == MV_F32) pack_plain(*matrix, first_row, num_rows, static_cast<const float *>(rows));
  if (matrix->format == MV_F16) pack_plain(*matrix, first_row, num_rows, static_cast<const uint16_t *>(rows));
  if (matrix->format == MV_BF16) pack_pairs(*matrix, first_row, num_rows, static_cast<const uint16_t *>(rows));
}

extern "C" int64_t mv_store_bytes(const mv_store *s) {
  int64_t element = s->format == MV_F32 ? 4 : 2;
  return int64_t(s->num_layers) * s->num_blocks * s->num_kv_heads * mv::tile_elements(*s) * element;
}
