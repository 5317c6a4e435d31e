// What the library says about itself.
#include "mini_vllm.h"

extern "C" int32_t mv_version(void) { return MV_ABI_VERSION; }
