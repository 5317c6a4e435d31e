// Which instruction sets this build has and this machine can run.
#ifndef MINI_VLLM_ISA_H
#define MINI_VLLM_ISA_H

#include "kernel_table.h"

namespace mv {

// The kernels of a set by name, or nullptr when it is unknown, not built, or not supported by this processor.
const KernelTable *find_table(const char *isa);

}  // namespace mv
#endif
