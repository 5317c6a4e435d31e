// What every op must compute, written in the most straightforward way, in double precision.
//
// A run is checked op by op: each op's output against the reference of the inputs that the library itself gave it. So
// errors do not add up, and every bound is a few roundings of the numbers that went in.
#ifndef MINI_VLLM_TESTS_REFERENCE_H
#define MINI_VLLM_TESTS_REFERENCE_H

#include <vector>

#include "program.h"

namespace mvt {

// A number and how far from it the library may be.
struct Expected {
  double value, bound;
};

// The keys and values that the store must hold, as it rounds them, by layer, slot and head.
class Mirror {
 public:
  explicit Mirror(const mv_store &shape);
  double *key(int layer, int64_t slot, int head) { return at(keys_, layer, slot, head); }
  double *value(int layer, int64_t slot, int head) { return at(values_, layer, slot, head); }

 private:
  double *at(std::vector<double> &all, int layer, int64_t slot, int head) {
    int64_t slots = int64_t(shape_.num_blocks) * shape_.block_size;
    return all.data() + ((layer * slots + slot) * shape_.num_kv_heads + head) * shape_.head_dim;
  }
  mv_store shape_;
  std::vector<double> keys_, values_;
};

// Checks all ops of a program after a run of `step`. `mirror` goes along from step to step.
bool check_run(const Program &program, const Step &step, Mirror &mirror);

// The int8 rounding of inputs: round(x / scale) * scale with scale = max |x| / 127 for each group of 32.
std::vector<double> round_to_int8(const float *x, int width);

}  // namespace mvt
#endif
