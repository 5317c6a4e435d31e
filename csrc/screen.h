// What a program keeps for greedy steps, which need not read all of the head: see kernels/screen.cpp.
//
// The head's rows in 6 bits are made when the first decode step asks for them, and take 6.5 bits a weight. Where the bound
// leaves too many rows, as it does for random weights, screening costs more than it saves: then it pauses, longer
// each time. Results are the same with and without.
#ifndef MINI_VLLM_SCREEN_H
#define MINI_VLLM_SCREEN_H

#include <memory>
#include <vector>

#include "kernel_table.h"
#include "team.h"

namespace mv {

class Screen {
 public:
  // head: the ops of a model's head. NULL for one that cannot be screened, or would not gain by it.
  static std::unique_ptr<Screen> of(const std::vector<mv_op> &head, const mv_limits &limits);
  ~Screen();
  Screen(const Screen &) = delete;
  Screen &operator=(const Screen &) = delete;

  // Whether this step's logits shall be screened, as the last step suggests. To be called once for every step, with nothing under
  // way on the team, as it makes the codes when they are first needed.
  bool takes(const mv_step &step, Team &team, const KernelTable &table);
  // The step was not finished, so that it tells nothing.
  void forget() { asked_ = 0; }
  // The head's ops for such a step, to run with view() in the step's view.
  const std::vector<mv_op> &ops() const { return ops_; }
  const ScreenView *view() const { return &view_; }

 private:
  Screen(const std::vector<mv_op> &head, const mv_op *before, int32_t most_rows);
  bool make(Team &team, const KernelTable &table);
  void judge();  // the last screened step: pauses if it was a loss

  mv_matrix exact_, codes_ = {};
  std::vector<mv_op> ops_;
  std::vector<float> rounded_, errors_, lengths_;  // lengths_: where the head does not take int8
  std::vector<ScreenLead> leads_;
  std::vector<ScreenMark> marks_;
  ScreenView view_ = {};
  int64_t bytes_ = 0;     // of the codes
  int64_t computed_ = 0;  // panels that the last screened step computed in full, of all its queries
  int64_t asked_ = 0;     // out of so many; 0: no step to judge
  int32_t most_rows_, pause_ = 0, next_pause_;
};

}  // namespace mv
#endif
