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
constexpr int64_t MAX_CHUNKS = 65535;  // that a claim can count
constexpr int SPINS_IN_JOB = 4000;     // pauses before sleeping, some 50 to 100 microseconds
constexpr int SPINS_BETWEEN = 20000;   // between steps, while the caller prepares the next one
constexpr int64_t NO_UNIT = -1;
constexpr int64_t AHEAD = 256 << 10;   // bytes of the next product that a waiting thread asks for; its cache holds more
constexpr int LINES_PER_SPIN = 4;      // of 64 bytes

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

Team::Team(int threads)
    : ranges_(size_t(std::max(1, threads))), ahead_(ranges_.size()), static_(asked_for_static_split()) {
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
  drop(under_way_);
  stopping_ = true;
  announce(phase_.load() + 1);
  for (std::thread &worker : workers_) worker.join();
}

uint64_t Team::begin(const Job &job) {
  drop(under_way_);
  ControlWord control;
  job_ = job;
  op_ = -1;
  active_ = true;
  under_way_ = ++num_jobs_;
  advance(0);
  return num_jobs_;
}

bool Team::end(uint64_t job) {
  if (job == 0 || job != under_way_) return false;
  ControlWord control;
  // Left only on seeing the last phase: then its announcement has happened, and no late one can fall into the next job.
  uint32_t phase = phase_.load(std::memory_order_acquire);
  while (phase != last_phase_.load(std::memory_order_acquire)) {
    work(phase, 0);
    phase = wait_beyond(phase, SPINS_IN_JOB, 0);
  }
  under_way_ = 0;
  return true;
}

void Team::drop(uint64_t job) {
  if (job == 0 || job != under_way_) return;
  dropped_ = true;
  end(job);
  dropped_ = false;
}

void Team::serve(int thread) {
  ControlWord control;
  uint32_t phase = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    work(phase, thread);
    phase = wait_beyond(phase, active_.load(std::memory_order_relaxed) ? SPINS_IN_JOB : SPINS_BETWEEN, thread);
  }
}

// Own range first, then the others', from the next thread on.
void Team::work(uint32_t phase, int thread) {
  int64_t done = 0;
  int reach = static_ ? 1 : threads();
  for (int i = 0; i < reach; i++) {
    done += claim_and_run(phase, ranges_[size_t((thread + i) % threads())], thread, i == 0);
  }
  if (done > 0 && units_left_.fetch_sub(done, std::memory_order_acq_rel) == done) advance(thread);
}

int64_t Team::claim_and_run(uint32_t phase, Range &range, int thread, bool own) {
  int64_t done = 0;
  uint64_t seen = range.claim.load(std::memory_order_acquire);
  for (;;) {
    int64_t first = int64_t(seen >> 16 & 0xffffu), last = int64_t(seen & 0xffffu);
    if (uint32_t(seen >> 32) != phase || first >= last) return done;
    uint64_t rest = own ? seen + (1u << 16) : seen - 1;
    if (!range.claim.compare_exchange_weak(seen, rest, std::memory_order_acq_rel)) continue;
    // Nothing of the op can change before this chunk is reported done.
    int64_t chunk = chunk_.load(std::memory_order_relaxed);
    int64_t begin = range.begin + (own ? first : last - 1) * chunk, end = std::min(range.end, begin + chunk);
    int64_t next = own ? end : begin - chunk;
    run_units(begin, end, last - first > 1 ? next : NO_UNIT, thread);
    done += end - begin;
    seen = range.claim.load(std::memory_order_acquire);
  }
}

// next: the unit that the thread most likely does after these, or NO_UNIT if that belongs to another op.
void Team::run_units(int64_t begin, int64_t end, int64_t next, int thread) {
  const mv_op &op = job_.ops[op_];
  const Kernel &kernel = job_.table->kernels[op.kind];
  ThreadView view = {job_.scratch + thread * job_.scratch_stride, nullptr};
  if (kernel.stream) {
    int64_t bytes = 0;
    view.next = next == NO_UNIT ? ranges_[size_t(thread)].ahead.load(std::memory_order_relaxed)
                                : kernel.stream(op, next, next + 1, &bytes);
  }
  kernel.run(op, *job_.step, begin, end, view);
}

// Called by the one thread that finished an op, or by run(): no claim is outstanding.
void Team::advance(int thread) {
  int64_t units = next_shared_op(thread);
  uint32_t phase = phase_.load(std::memory_order_relaxed) + 1;
  if (units == 0) {
    active_.store(false, std::memory_order_relaxed);
    last_phase_.store(phase, std::memory_order_release);
  } else {
    deal(phase, units);
  }
  announce(phase);
}

// Runs the ops that come next and are not worth sharing; returns the units of the first that is, or 0 at the end.
int64_t Team::next_shared_op(int thread) {
  for (;;) {
    if (profile_) record_time();
    if (++op_ >= job_.num_ops || dropped_.load(std::memory_order_relaxed)) return 0;
    progress_.fetch_add(1, std::memory_order_relaxed);
    const Kernel &kernel = job_.table->kernels[job_.ops[op_].kind];
    int64_t units = kernel.units(job_.ops[op_], *job_.step);
    if (units > kernel.grain && threads() > 1) return units;
    if (kernel.stream) look_ahead();
    if (units > 0) run_units(0, units, NO_UNIT, thread);
  }
}

// Where tasks differ, they are claimed one at a time, or about a quarter of one if parts are units.
int64_t Team::attend_chunk(int64_t share) const {
  const int64_t chunk = job_.step->split_units ? std::max(1, job_.step->num_splits / 4) : 1;
  return std::max(chunk, (share + MAX_CHUNKS - 1) / MAX_CHUNKS);
}

// A range of the op's units for every thread.
void Team::deal(uint32_t phase, int64_t units) {
  look_ahead();
  int64_t grain = job_.table->kernels[job_.ops[op_].kind].grain, share = (units + threads() - 1) / threads();
  int64_t chunk = static_ ? share : (share + CHUNKS - 1) / CHUNKS;
  chunk = (chunk + grain - 1) / grain * grain;
  if (job_.ops[op_].kind == MV_ATTEND && job_.step->uneven && !static_) chunk = attend_chunk(share);
  chunk_.store(chunk, std::memory_order_relaxed);
  units_left_.store(units, std::memory_order_relaxed);
  int64_t begin = 0;
  for (Range &range : ranges_) {
    range.begin = begin;
    range.end = std::min(units, begin + share);
    uint64_t chunks = uint64_t(range.end - begin + chunk - 1) / uint64_t(chunk);
    range.claim.store(uint64_t(phase) << 32 | chunks, std::memory_order_release);
    begin = range.end;
  }
}

// Tells every thread what it reads first in the next product after this op.
void Team::look_ahead() {
  for (int32_t i = op_ + 1; i < job_.num_ops; i++) {
    const mv_op &op = job_.ops[i];
    const Kernel &kernel = job_.table->kernels[op.kind];
    if (!kernel.stream) continue;
    int64_t units = kernel.units(op, *job_.step), share = (units + threads() - 1) / threads(), begin = 0;
    for (Range &range : ranges_) {
      int64_t end = std::min(units, begin + share), bytes = 0;
      range.ahead.store(kernel.stream(op, begin, end, &bytes), std::memory_order_relaxed);
      range.ahead_bytes.store(std::min(bytes, AHEAD), std::memory_order_relaxed);
      begin = end;
    }
    return;
  }
}

// Asks for a few more cache lines of what this thread reads first in the next product. False if all are under way.
bool Team::ask_ahead(int thread) {
  const Range &range = ranges_[size_t(thread)];
  Ahead &ahead = ahead_[size_t(thread)];
  const char *begin = range.ahead.load(std::memory_order_relaxed);
  const int64_t bytes = range.ahead_bytes.load(std::memory_order_relaxed);
  if (begin != ahead.begin) ahead = {begin, 0};
  for (int i = 0; i < LINES_PER_SPIN && ahead.asked < bytes; i++, ahead.asked += 64)
    __builtin_prefetch(begin + ahead.asked, 0, 2);  // 2: into the second-level cache
  return ahead.asked < bytes;
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

uint32_t Team::wait_beyond(uint32_t phase, int spins, int thread) {
  for (int i = 0; i < spins; i++) {
    uint32_t now = phase_.load(std::memory_order_acquire);
    if (now != phase) return now;
    if (!ask_ahead(thread)) pause();
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
