// Packing of GGUF's K formats, one row at a time.
#ifndef MINI_VLLM_PACK_K_H
#define MINI_VLLM_PACK_K_H

#include <cstdint>

namespace mv {

// Bytes of a row of `cols` columns (a multiple of 256) in a file.
int64_t k_row_bytes(int32_t format, int64_t cols);
// Puts one row of a file into lane `lane` of a zeroed panel.
void pack_k_row(int32_t format, int64_t cols, const uint8_t *row, char *panel, int64_t lane);

}  // namespace mv
#endif
