// Takes memory from the system before a step needs it.
//
// The system gives a large page when it is first written, and zeroes it then: 0.1 ms, or 2 to 9 where a virtual machine has
// to get it from its host. In a step of a long prompt that may be a tenth of the time. So while the team rests, a thread of
// its own keeps some memory ready behind what a store has in use; it does nothing while steps follow each other.
#ifndef MINI_VLLM_FIRST_TOUCH_H
#define MINI_VLLM_FIRST_TOUCH_H

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "team.h"

namespace mv {

class FirstTouch {
 public:
  // Of the `bytes` at `memory`, which are used from the front, keeps `ahead` ready.
  FirstTouch(const Team &team, void *memory, int64_t bytes, int64_t ahead);
  ~FirstTouch();
  FirstTouch(const FirstTouch &) = delete;
  FirstTouch &operator=(const FirstTouch &) = delete;

  // The first `bytes` are in use now.
  void used(int64_t bytes);

 private:
  void serve();
  bool rests(std::unique_lock<std::mutex> &lock);
  bool take(int64_t begin, int64_t end) const;

  const Team &team_;
  char *const begin_;
  const int64_t bytes_, ahead_;
  int64_t used_ = 0, ready_ = 0;  // ready_: what the system has given, from the front
  bool stopping_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace mv
#endif
