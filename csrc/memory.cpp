// mv_alloc: zeroed memory in large pages, where the system has them.
//
// A page of 4 KB ends what the processor fetches ahead, and a model of many small matrices spans more of them than it can
// remember addresses of. So allocations share regions that begin on a large page, one behind the other; a region goes
// back to the system when all that lies in it has been freed. Memory is never handed out twice: it is zero because the
// system makes it so, and takes room only where it has been written.
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "mini_vllm.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mv {
namespace {

constexpr int64_t SHARED = int64_t(64) << 10;  // smaller ones come from the heap

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

#if defined(__linux__)

constexpr int64_t LARGE_PAGE = int64_t(2) << 20;
constexpr int64_t REGION = 16 * LARGE_PAGE;  // of several allocations; what does not fit half of one has its own

// `bytes` of zeros from the start of a large page on, or nullptr.
char *map_pages(int64_t bytes) {
  const int64_t whole = bytes + LARGE_PAGE;
  void *mapped = mmap(nullptr, size_t(whole), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char *start = static_cast<char *>(mapped);
  const int64_t before = round_up(int64_t(start), LARGE_PAGE) - int64_t(start), behind = whole - before - bytes;
  if (before > 0) munmap(start, size_t(before));
  if (behind > 0) munmap(start + before + bytes, size_t(behind));
  madvise(start + before, size_t(bytes), MADV_HUGEPAGE);
  return start + before;
}

struct Region {
  int64_t bytes, used;
  int allocations;
};

class Regions {
 public:
  char *take(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > REGION / 2) return open(bytes, bytes);
    auto open_one = regions_.find(current_);
    if (open_one == regions_.end() || open_one->second.used + bytes > open_one->second.bytes)
      return current_ = open(REGION, bytes);
    Region &region = open_one->second;
    char *memory = current_ + region.used;
    region.used += bytes;
    region.allocations++;
    return memory;
  }

  void give_back(char *memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = std::prev(regions_.upper_bound(memory));
    if (--it->second.allocations > 0) return;
    munmap(it->first, size_t(it->second.bytes));
    regions_.erase(it);
  }

 private:
  char *open(int64_t bytes, int64_t used) {
    const int64_t mapped = round_up(bytes, 4096);
    char *start = map_pages(mapped);
    if (start) regions_[start] = {mapped, used, 1};
    return start;
  }

  std::mutex mutex_;
  std::map<char *, Region> regions_;
  char *current_ = nullptr;
};

// Never destroyed: memory may be freed while the process ends.
Regions &regions() {
  static Regions *all = new Regions;
  return *all;
}

#endif

}  // namespace
}  // namespace mv

extern "C" void *mv_alloc(int64_t bytes) {
  const int64_t size = mv::round_up(bytes > 0 ? bytes : 1, 64);
#if defined(__linux__)
  if (bytes >= mv::SHARED) return mv::regions().take(size);
#endif
  void *memory = nullptr;
  if (posix_memalign(&memory, 64, size_t(size)) != 0) return nullptr;
  std::memset(memory, 0, size_t(size));
  return memory;
}

extern "C" void mv_free(void *memory, int64_t bytes) {
  if (!memory) return;
#if defined(__linux__)
  if (bytes >= mv::SHARED) return mv::regions().give_back(static_cast<char *>(memory));
#endif
  (void)bytes;
  std::free(memory);
}
