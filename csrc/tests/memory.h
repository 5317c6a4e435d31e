// Buffers that show every mistake: exactly as large as asked for (AddressSanitizer sees one element too many), full of
// bytes 0xff (a NaN in every number format) until something is written; and a system that has no memory left.
#ifndef MINI_VLLM_TESTS_MEMORY_H
#define MINI_VLLM_TESTS_MEMORY_H

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace mvt {

class Bytes {
 public:
  explicit Bytes(int64_t size) : size_(size) {
    void *memory = nullptr;
    if (posix_memalign(&memory, 64, size_t(size > 0 ? size : 1)) != 0) throw std::bad_alloc();
    data_ = static_cast<uint8_t *>(memory);
    poison();
  }
  ~Bytes() { std::free(data_); }
  Bytes(Bytes &&other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  Bytes(const Bytes &) = delete;
  Bytes &operator=(const Bytes &) = delete;

  uint8_t *data() const { return data_; }
  int64_t size() const { return size_; }
  void poison() { std::memset(data_, 0xff, size_t(size_)); }
  bool untouched() const { return untouched(0, size_); }
  bool untouched(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; i++)
      if (data_[i] != 0xff) return false;
    return true;
  }

 private:
  uint8_t *data_;
  int64_t size_;
};

// While it lives, the process gets no more than so many bytes of address space beside those that it has. Not for sanitized
// builds, whose own tables take far more.
class TightMemory {
 public:
  explicit TightMemory(int64_t spare) {
    std::FILE *file = std::fopen("/proc/self/statm", "r");
    long pages = 0;
    is_tight_ = file && std::fscanf(file, "%ld", &pages) == 1 && getrlimit(RLIMIT_AS, &before_) == 0;
    if (file) std::fclose(file);
    if (!is_tight_) return;
    rlimit tight = before_;
    tight.rlim_cur = rlim_t(pages) * rlim_t(sysconf(_SC_PAGESIZE)) + rlim_t(spare);
    is_tight_ = setrlimit(RLIMIT_AS, &tight) == 0;
  }
  ~TightMemory() {
    if (is_tight_) setrlimit(RLIMIT_AS, &before_);
  }
  TightMemory(const TightMemory &) = delete;
  TightMemory &operator=(const TightMemory &) = delete;

  bool is_tight() const { return is_tight_; }  // false: this system does not say how much there is, or sets no limit

 private:
  bool is_tight_ = false;
  rlimit before_ = {};
};

// A small generator with a state of one word (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int limit) { return int(bits() % uint64_t(limit)); }
  int between(int first, int last) { return first + below(last - first + 1); }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  // Near enough to normal: the sum of 12 uniform numbers.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += uniform();
    return sum;
  }

 private:
  uint64_t state_;
};

}  // namespace mvt
#endif
