// Measures what products can hope for on this machine, and prints JSON lines: bytes per second when a buffer is read
// over and over, by its size, and operations per second of multiply-accumulate chains that never leave the registers.
//
//   c++ -std=c++17 -O3 -march=native -pthread limits.cpp -o limits && ./limits THREADS [LARGEST_MIB]
//   ./limits THREADS ask    one "read" line for every number of bytes that comes on standard input
//
// Every figure is the best of several tries: a limit is what was reached once, undisturbed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int TRIES = 7;
constexpr size_t MIB = size_t(1) << 20;
constexpr size_t SIZES[] = {8, 16, 32, 48, 67, 96, 135, 269, 538, 1024};  // MiB
constexpr size_t LARGEST = 1024;

// Twelve independent accumulators, enough to hide the latency of two units: named, so that they stay in registers.
constexpr int CHAINS = 12;
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pin_to_core(int index) {
#if defined(__linux__)
  cpu_set_t allowed, own;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && seen++ == index) {
      CPU_ZERO(&own);
      CPU_SET(cpu, &own);
      sched_setaffinity(0, sizeof own, &own);
      return;
    }
#else
  (void)index;
#endif
}

// Seconds from the first thread's start to the last one's end; all begin together, after `warm`.
double timed(int threads, const std::function<void(int)> &warm, const std::function<void(int)> &work) {
  std::atomic<int> ready{0};
  std::vector<double> starts(size_t(threads), 0), ends(size_t(threads), 0);
  std::vector<std::thread> team;
  for (int index = 0; index < threads; ++index)
    team.emplace_back([&, index] {
      pin_to_core(index);
      warm(index);
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      starts[size_t(index)] = now();
      work(index);
      ends[size_t(index)] = now();
    });
  for (std::thread &thread : team) thread.join();
  return *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
}

volatile uint64_t sink;

// Eight lines of 64 bytes at a time, folded so that nothing can be left out.
uint64_t read_all(const char *data, size_t bytes) {
#if defined(__AVX512F__)
  __m512i sum[8];
  for (__m512i &part : sum) part = _mm512_setzero_si512();
  for (size_t at = 0; at + 512 <= bytes; at += 512)
    for (int i = 0; i < 8; ++i)
      sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(data + at + 64 * size_t(i)));
  for (int i = 1; i < 8; ++i) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
  return uint64_t(_mm512_reduce_add_epi64(sum[0]));
#else
  const uint64_t *words = reinterpret_cast<const uint64_t *>(data);
  uint64_t sum[32] = {};
  for (size_t at = 0; at + 32 <= bytes / 8; at += 32)
    for (int i = 0; i < 32; ++i) sum[i] ^= words[at + size_t(i)];
  uint64_t all = 0;
  for (uint64_t part : sum) all ^= part;
  return all;
#endif
}

// Memory in pages that were written and differ: a host that merges equal ones would serve them from cache.
class Buffer {
 public:
  ~Buffer() { std::free(data_); }

  // At least so many bytes; nullptr when there are none to have.
  char *of(size_t bytes) {
    if (bytes <= size_) return data_;
    std::free(data_);
    size_ = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    data_ = static_cast<char *>(std::aligned_alloc(2 * MIB, size_));
    if (!data_) {
      size_ = 0;
      return nullptr;
    }
#if defined(__linux__)
    madvise(data_, size_, MADV_HUGEPAGE);
#endif
    uint64_t state = 88172645463325252u;
    for (size_t at = 0; at < size_; at += 8) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::memcpy(data_ + at, &state, 8);
    }
    return data_;
  }

 private:
  char *data_ = nullptr;
  size_t size_ = 0;
};

void measure_reads(int threads, char *buffer, size_t bytes) {
  size_t share = bytes / size_t(threads) / 4096 * 4096;
  int passes = int(std::max<size_t>(2, (size_t(768) * MIB) / bytes));
  double best = 1e30;
  for (int attempt = 0; attempt < TRIES; ++attempt) {
    auto pass = [&](int index) { sink = read_all(buffer + share * size_t(index), share); };
    double seconds = timed(threads, pass, [&](int index) {
      for (int i = 0; i < passes; ++i) pass(index);
    });
    best = std::min(best, seconds);
  }
  double moved = double(share) * threads * passes;
  std::printf("{\"what\": \"read\", \"bytes\": %zu, \"rate\": %.0f}\n", bytes, moved / best);
  std::fflush(stdout);
}

// Each returns the operations that one thread did: two per multiply-accumulate.
double chain_f32(long rounds) {
#if defined(__AVX512F__)
  __m512 x = _mm512_set1_ps(0.999999f), y = _mm512_set1_ps(1e-9f), all = _mm512_setzero_ps();
#define START(i) __m512 sum##i = _mm512_set1_ps(float(i));
#define ADVANCE(i) sum##i = _mm512_fmadd_ps(sum##i, x, y);
#define FINISH(i) all = _mm512_add_ps(all, sum##i);
  EACH(START)
  for (long k = 0; k < rounds; ++k) { EACH(ADVANCE) }
  EACH(FINISH)
#undef START
#undef ADVANCE
#undef FINISH
  sink = uint64_t(_mm512_reduce_add_ps(all));
  return 2.0 * 16 * CHAINS * double(rounds);
#elif defined(__AVX2__) && defined(__FMA__)
  __m256 x = _mm256_set1_ps(0.999999f), y = _mm256_set1_ps(1e-9f), all = _mm256_setzero_ps();
#define START(i) __m256 sum##i = _mm256_set1_ps(float(i));
#define ADVANCE(i) sum##i = _mm256_fmadd_ps(sum##i, x, y);
#define FINISH(i) all = _mm256_add_ps(all, sum##i);
  EACH(START)
  for (long k = 0; k < rounds; ++k) { EACH(ADVANCE) }
  EACH(FINISH)
#undef START
#undef ADVANCE
#undef FINISH
  sink = uint64_t(_mm256_cvtss_f32(all));
  return 2.0 * 8 * CHAINS * double(rounds);
#else
  float x = 0.999999f, sum[4 * CHAINS];
  for (int i = 0; i < 4 * CHAINS; ++i) sum[i] = float(i);
  for (long k = 0; k < rounds; ++k)
    for (int i = 0; i < 4 * CHAINS; ++i) sum[i] = sum[i] * x + 1e-9f;
  float all = 0;
  for (float part : sum) all += part;
  sink = uint64_t(all);
  return 2.0 * 4 * CHAINS * double(rounds);
#endif
}

double chain_bf16(long rounds) {
#if defined(__AVX512BF16__)
  __m512i ones = _mm512_set1_epi16(0x3f80), tiny = _mm512_set1_epi16(0x0080);
  asm volatile("" : "+v"(ones), "+v"(tiny));
  __m512bh x = (__m512bh)ones, y = (__m512bh)tiny;
  __m512 all = _mm512_setzero_ps();
#define START(i) __m512 sum##i = _mm512_set1_ps(float(i));
#define ADVANCE(i) sum##i = _mm512_dpbf16_ps(sum##i, x, y);
#define FINISH(i) all = _mm512_add_ps(all, sum##i);
  EACH(START)
  for (long k = 0; k < rounds; ++k) { EACH(ADVANCE) }
  EACH(FINISH)
#undef START
#undef ADVANCE
#undef FINISH
  sink = uint64_t(_mm512_reduce_add_ps(all));
  return 2.0 * 32 * CHAINS * double(rounds);
#else
  return chain_f32(rounds);  // bfloat16 is widened and multiplied as float32
#endif
}

double chain_int8(long rounds) {
#if defined(__AVX512VNNI__)
  __m512i x = _mm512_set1_epi8(1), y = _mm512_set1_epi8(2), all = _mm512_setzero_si512();
  asm volatile("" : "+v"(x), "+v"(y));
#define START(i) __m512i sum##i = _mm512_set1_epi32(i);
#define ADVANCE(i) sum##i = _mm512_dpbusd_epi32(sum##i, x, y);
#define FINISH(i) all = _mm512_add_epi32(all, sum##i);
  EACH(START)
  for (long k = 0; k < rounds; ++k) {
    EACH(ADVANCE)
    asm volatile("" : "+v"(sum0));
  }
  EACH(FINISH)
#undef START
#undef ADVANCE
#undef FINISH
  sink = uint64_t(_mm512_reduce_add_epi32(all));
  return 2.0 * 64 * CHAINS * double(rounds);
#elif defined(__AVX2__)
  __m256i x = _mm256_set1_epi8(1), y = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1), all = _mm256_setzero_si256();
#define START(i) __m256i sum##i = _mm256_set1_epi32(i);
#define ADVANCE(i)              \
  asm volatile("" : "+x"(x)); \
  sum##i = _mm256_add_epi32(sum##i, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
#define FINISH(i) all = _mm256_add_epi32(all, sum##i);
  EACH(START)
  for (long k = 0; k < rounds; ++k) { EACH(ADVANCE) }
  EACH(FINISH)
#undef START
#undef ADVANCE
#undef FINISH
  sink = uint64_t(_mm256_extract_epi32(all, 0));
  return 2.0 * 32 * CHAINS * double(rounds);
#else
  return chain_f32(rounds);
#endif
}

void measure_peak(int threads, const char *name, double (*chain)(long)) {
  constexpr long ROUNDS = 2000000;
  double best = 0;
  for (int attempt = 0; attempt < TRIES; ++attempt) {
    std::vector<double> done(size_t(threads), 0);
    double seconds = timed(
        threads, [&](int) { chain(ROUNDS / 20); }, [&](int index) { done[size_t(index)] = chain(ROUNDS); });
    double all = 0;
    for (double operations : done) all += operations;
    best = std::max(best, all / seconds);
  }
  std::printf("{\"what\": \"%s\", \"rate\": %.0f}\n", name, best);
  std::fflush(stdout);
}

// One resident process answers for a whole run: it sleeps between the questions, and holds as much as was asked for.
int answer(int threads) {
  Buffer buffer;
  size_t bytes = 0;
  while (std::scanf("%zu", &bytes) == 1) {
    bytes = std::min(std::max(bytes, 8 * MIB), LARGEST * MIB);
    char *data = buffer.of(bytes);
    if (!data) return 1;
    measure_reads(threads, data, bytes);
  }
  return 0;
}

}  // namespace

int main(int count, char **arguments) {
  int threads = count > 1 ? std::max(1, std::atoi(arguments[1])) : 1;
  if (count > 2 && std::strcmp(arguments[2], "ask") == 0) return answer(threads);
  size_t largest = count > 2 ? size_t(std::max(8, std::atoi(arguments[2]))) : LARGEST;
  Buffer buffer;
  char *data = buffer.of(largest * MIB);
  if (!data) return 1;
  for (size_t size : SIZES)
    if (size <= largest) measure_reads(threads, data, size * MIB);
  measure_peak(threads, "f32", chain_f32);
  measure_peak(threads, "bf16", chain_bf16);
  measure_peak(threads, "int8", chain_int8);
  return 0;
}
