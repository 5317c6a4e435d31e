// See first_touch.h.
#include "first_touch.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mv {
namespace {

constexpr int64_t PIECE = int64_t(2) << 20;          // taken at once: a large page
constexpr std::chrono::milliseconds REST{20};        // without an op: longer than what lies between two steps

#if defined(__linux__)
constexpr int POPULATE_WRITE = 23;  // MADV_POPULATE_WRITE of Linux 5.14: as if every page were written, contents kept
#endif

}  // namespace

FirstTouch::FirstTouch(const Team &team, void *memory, int64_t bytes, int64_t ahead)
    : team_(team), begin_(static_cast<char *>(memory)), bytes_(bytes), ahead_(ahead) {
#if defined(__linux__)
  if (bytes_ < 2 * PIECE) return;
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error &) {  // then steps take their memory themselves
  }
#endif
}

FirstTouch::~FirstTouch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FirstTouch::used(int64_t bytes) {
  if (!thread_.joinable()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes <= used_) return;
  used_ = bytes;
  ready_ = std::max(ready_, used_);
  if (ready_ < std::min(bytes_, used_ + ahead_)) wake_.notify_all();
}

// Pages that lie in begin … end as a whole. False where the system cannot do that, or has no more.
bool FirstTouch::take(int64_t begin, int64_t end) const {
#if defined(__linux__)
  const uintptr_t page = 4096, first = (uintptr_t(begin_) + uintptr_t(begin) + page - 1) / page * page;
  const uintptr_t last = (uintptr_t(begin_) + uintptr_t(end)) / page * page;
  return first >= last || madvise(reinterpret_cast<void *>(first), last - first, POPULATE_WRITE) == 0;
#else
  (void)begin, (void)end;
  return false;
#endif
}

// Waits for a while. Whether no op began meanwhile and none is under way.
bool FirstTouch::rests(std::unique_lock<std::mutex> &lock) {
  const uint32_t progress = team_.progress();
  wake_.wait_for(lock, REST, [this] { return stopping_; });
  return !stopping_ && !team_.busy() && team_.progress() == progress;
}

void FirstTouch::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto lacks = [this] { return ready_ < std::min(bytes_, used_ + ahead_); };
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || lacks(); });
    if (stopping_) return;
    if (!rests(lock)) continue;
    const uint32_t progress = team_.progress();
    while (!stopping_ && lacks() && !team_.busy() && team_.progress() == progress) {
      const int64_t begin = ready_, end = std::min(bytes_, begin + PIECE);
      lock.unlock();
      const bool given = take(begin, end);
      lock.lock();
      if (!given) return;
      ready_ = std::max(ready_, end);
    }
  }
}

}  // namespace mv
