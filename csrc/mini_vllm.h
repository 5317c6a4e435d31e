// The C interface of the native library. Self-contained: C99 or C++, no other header of ours.
#ifndef MINI_VLLM_H
#define MINI_VLLM_H

#include <stdint.h>

#if defined(__GNUC__)
#define MV_EXPORT __attribute__((visibility("default")))
#else
#define MV_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Changes whenever a struct or a signature below does; the Python binding refuses another number.
#define MV_ABI_VERSION 1

MV_EXPORT int32_t mv_version(void);

#ifdef __cplusplus
}
#endif
#endif
