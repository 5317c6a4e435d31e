// The floating-point mode of kernels: denormal inputs and results are zero, on every thread alike. Restored at the end.
#ifndef MINI_VLLM_CONTROL_WORD_H
#define MINI_VLLM_CONTROL_WORD_H

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace mv {

class ControlWord {
 public:
#if defined(__SSE2__)
  ControlWord() : before_(_mm_getcsr()) { _mm_setcsr(0x9fc0u); }  // round to nearest, all masked, FTZ and DAZ
  ~ControlWord() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  ControlWord() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t(1) << 24));  // flush to zero, round to nearest
  }
  ~ControlWord() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_ = 0;
#else
  ControlWord() {}
  ~ControlWord() {}
#endif
};

}  // namespace mv
#endif
