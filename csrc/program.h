// What other files of the library ask a program, beside the C interface.
#ifndef MINI_VLLM_PROGRAM_H
#define MINI_VLLM_PROGRAM_H

#include "mini_vllm.h"

namespace mv {

int32_t max_logit_rows(const mv_program &program);

}  // namespace mv
#endif
