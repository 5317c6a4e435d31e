// See team.h.
#include "team.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "control_word.h"

namespace mv {
namespace {

constexpr int CHUNKS = 8;              // a thread's range is claimed in about this many pieces
constexpr int SPINS_IN_JOB = 4000;     // pauses before sleeping, some 50 to 100 microseconds
constexpr int SPINS_BETWEEN = 20000;   // between steps, while the caller prepares the next one

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Orders a store before a later load of another variable. The sequentially consistent operations around it say the same,
// but emulators of arm64 (qemu-user on x86, seen) translate them one by one and lose it: a sleeper was never woken.
inline void full_fence() {
#if !defined(__SANITIZE_THREAD__)  // which does not know fences
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool asked_for_static_split() {
  const char *value = std::getenv("MINI_VLLM_SPLIT");
  return value && !std::strcmp(value, "static");
}

}  // namespace

Team::Team(int threads) : ranges_(size_t(std::max(1, threads))), static_(asked_for_static_split()) {
  try {
    workers_.reserve(ranges_.size());
    for (int t = 1; t < this->threads(); t++) workers_.emplace_back([this, t] { serve(t); });
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stopping_ = true;
  announce(phase_.load() + 1);
  for (std::thread &worker : workers_) worker.join();
}

void Team::run(const Job &job) {
  ControlWord control;
  job_ = job;
  op_ = -1;
  active_ = true;
  advance();
  // Left only on seeing the last phase: then its announcement has happened, and no late one can fall into the next job.
  uint32_t phase = phase_.load(std::memory_order_acquire);
  while (phase != last_phase_.load(std::memory_order_acquire)) {
    work(phase, 0);
    phase = wait_beyond(phase, SPINS_IN_JOB);
  }
}

void Team::serve(int thread) {
  ControlWord control;
  uint32_t phase = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    work(phase, thread);
    phase = wait_beyond(phase, active_.load(std::memory_order_relaxed) ? SPINS_IN_JOB : SPINS_BETWEEN);
  }
}

// Own range first, then the others', from the next thread on.
void Team::work(uint32_t phase, int thread) {
  int64_t done = 0;
  int reach = static_ ? 1 : threads();
  for (int i = 0; i < reach; i++) done += claim_and_run(phase, ranges_[size_t((thread + i) % threads())], thread);
  if (done > 0 && units_left_.fetch_sub(done, std::memory_order_acq_rel) == done) advance();
}

int64_t Team::claim_and_run(uint32_t phase, Range &range, int thread) {
  int64_t done = 0;
  uint64_t seen = range.claim.load(std::memory_order_acquire);
  for (;;) {
    int64_t left = int64_t(seen & 0xffffffffu);
    if (uint32_t(seen >> 32) != phase || left == 0) return done;
    int64_t count = std::min(left, chunk_.load(std::memory_order_relaxed));
    if (!range.claim.compare_exchange_weak(seen, seen - uint64_t(count), std::memory_order_acq_rel)) continue;
    const mv_op &op = job_.ops[op_];  // cannot change before this chunk is reported done
    int64_t begin = range.end - left;
    job_.table->kernels[op.kind].run(op, *job_.step, begin, begin + count, job_.scratch + thread * job_.scratch_stride);
    done += count;
    seen = range.claim.load(std::memory_order_acquire);
  }
}

// Called by the one thread that finished an op, or by run(): no claim is outstanding.
void Team::advance() {
  int64_t units = 0;
  if (profile_) record_time();
  while (units == 0 && ++op_ < job_.num_ops) {
    const mv_op &op = job_.ops[op_];
    units = job_.table->kernels[op.kind].units(op, *job_.step);
  }
  uint32_t phase = phase_.load(std::memory_order_relaxed) + 1;
  if (units == 0) {
    active_.store(false, std::memory_order_relaxed);
    last_phase_.store(phase, std::memory_order_release);
    announce(phase);
    return;
  }
  int64_t grain = job_.table->kernels[job_.ops[op_].kind].grain, share = (units + threads() - 1) / threads();
  int64_t chunk = static_ ? share : (share + CHUNKS - 1) / CHUNKS;
  chunk_.store((chunk + grain - 1) / grain * grain, std::memory_order_relaxed);
  units_left_.store(units, std::memory_order_relaxed);
  int64_t begin = 0;
  for (Range &range : ranges_) {
    int64_t end = std::min(units, begin + share);
    range.end = end;
    range.claim.store(uint64_t(phase) << 32 | uint64_t(end - begin), std::memory_order_release);
    begin = end;
  }
  announce(phase);
}

// The time since the last call belongs to the op that has just ended.
void Team::record_time() {
  int64_t now = now_ns();
  if (op_ >= 0) profile_[job_.ops[op_].kind] += now - op_began_;
  op_began_ = now;
}

void Team::announce(uint32_t phase) {
  phase_.store(phase, std::memory_order_seq_cst);
  full_fence();
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

uint32_t Team::wait_beyond(uint32_t phase, int spins) {
  for (int i = 0; i < spins; i++) {
    uint32_t now = phase_.load(std::memory_order_acquire);
    if (now != phase) return now;
    pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  full_fence();
  wake_.wait(lock, [&] { return phase_.load(std::memory_order_seq_cst) != phase; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return phase_.load(std::memory_order_acquire);
}

}  // namespace mv

extern "C" mv_team *mv_team_create(int32_t threads) {
  try {
    return new mv_team(threads);
  } catch (const std::exception &) {  // no memory, or the system refuses more threads
    return nullptr;
  }
}
extern "C" void mv_team_destroy(mv_team *team) { delete team; }
extern "C" uint32_t mv_team_progress(const mv_team *team) { return team->team.progress(); }
extern "C" void mv_team_profile(mv_team *team, int64_t *ns) { team->team.profile(ns); }
