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

constexpr int CHUNKS = 32;             // of a thread's range, about
constexpr int64_t LEAST_BYTES = 32 << 10;  // of weights, times rows, for a chunk of a product
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
#if defined(__SANITIZE_THREAD__)  // which does not know fences
constexpr std::memory_order ANNOUNCE = std::memory_order_seq_cst;
inline void full_fence() {}
#else
constexpr std::memory_order ANNOUNCE = std::memory_order_release;
inline void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

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
  announce(announced_.phase.load() + 1, NOTHING);
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
  uint32_t phase = announced_.phase.load(std::memory_order_acquire);
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

// Own range first, then the others', from the next thread on, unless the op is over.
void Team::work(uint32_t phase, int thread) {
  const int reach = static_ ? 1 : threads();
  for (int i = 0; i < reach; i++) {
    const int64_t done = claim_and_run(phase, (thread + i) % threads(), thread);
    if (done > 0 && units_left_.fetch_sub(done, std::memory_order_acq_rel) == done) return advance(thread);
  }
}

// What the phase deals out. False if it is no longer the newest.
bool Team::is_dealt(uint32_t phase, Deal &deal) const {
  const int turn = int(phase % 2);
  deal.units = announced_.units[turn].load(std::memory_order_acquire);
  deal.chunk = announced_.chunk[turn].load(std::memory_order_acquire);
  deal.op = announced_.op[turn].load(std::memory_order_acquire);
  deal.alike = announced_.alike[turn].load(std::memory_order_acquire);
  return announced_.phase.load(std::memory_order_acquire) == phase;
}

// The owner claims from the front, half of what is left at a time, others from the back, chunk by chunk. Returns how many
// units were done.
int64_t Team::claim_and_run(uint32_t phase, int owner, int thread) {
  Range &range = ranges_[size_t(owner)];
  uint64_t seen = range.claim.load(std::memory_order_acquire);
  Deal deal = NOTHING;
  if (!is_dealt(phase, deal)) return 0;
  const bool own = owner == thread;
  const int64_t share = share_of(deal.units), from = std::min(deal.units, owner * share);
  const int64_t to = std::min(deal.units, from + share), chunks = (to - from + deal.chunk - 1) / deal.chunk;
  for (int64_t done = 0;;) {
    const bool whole = uint32_t(seen >> 32) != phase;  // or of a later phase, which the next line finds out
    if (whole && announced_.phase.load(std::memory_order_acquire) != phase) return done;
    const uint64_t first = whole ? 0 : seen >> 16 & 0xffffu, last = whole ? uint64_t(chunks) : seen & 0xffffu;
    if (first >= last) return done;
    const uint64_t count = own && deal.alike ? std::max<uint64_t>(1, (last - first) / 2) : 1;
    const uint64_t rest = uint64_t(phase) << 32 | (own ? first + count : first) << 16 | (own ? last : last - 1);
    if (!range.claim.compare_exchange_weak(seen, rest, std::memory_order_acq_rel)) continue;
    // Nothing of the op or the job can change before this chunk is reported done.
    if (done == 0) look_ahead(deal.op, thread);
    const int64_t begin = from + int64_t(own ? first : last - 1) * deal.chunk;
    const int64_t end = std::min(to, begin + int64_t(count) * deal.chunk);
    run_units(deal.op, begin, end, last - first == count ? NO_UNIT : own ? end : begin - deal.chunk, thread);
    done += end - begin;
    seen = range.claim.load(std::memory_order_acquire);
  }
}

// next: the unit that the thread most likely does after these, or NO_UNIT if that belongs to another op.
void Team::run_units(int32_t index, int64_t begin, int64_t end, int64_t next, int thread) {
  const mv_op &op = job_.ops[index];
  const Kernel &kernel = job_.table->kernels[op.kind];
  ThreadView view = {job_.scratch + thread * job_.scratch_stride, nullptr};
  if (kernel.stream) {
    int64_t bytes = 0;
    view.next = next == NO_UNIT ? ahead_[size_t(thread)].begin : kernel.stream(op, next, next + 1, &bytes);
  }
  kernel.run(op, *job_.step, begin, end, view);
}

// Called by the one thread that finished an op, or by run(): no claim is outstanding.
void Team::advance(int thread) {
  const int64_t units = next_shared_op(thread);
  const uint32_t phase = announced_.phase.load(std::memory_order_relaxed) + 1;
  if (units == 0) {
    active_.store(false, std::memory_order_relaxed);
    last_phase_.store(phase, std::memory_order_release);
    return announce(phase, NOTHING);
  }
  units_left_.store(units, std::memory_order_relaxed);
  announce(phase, deal(units));
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
    if (kernel.stream) look_ahead(op_, thread);
    if (units > 0) run_units(op_, 0, units, NO_UNIT, thread);
  }
}

// A share of the units of op_ for every thread, and what one claims of it at a time.
Team::Deal Team::deal(int64_t units) const {
  const mv_op &op = job_.ops[op_];
  const Kernel &kernel = job_.table->kernels[op.kind];
  const int64_t share = share_of(units);
  if (static_) return {units, share, op_, true};
  if (op.kind == MV_ATTEND && job_.step->uneven) {  // tasks one at a time, or about a quarter of one if parts are units
    const int64_t part = job_.step->split_units ? std::max(1, job_.step->num_splits / 4) : 1;
    return {units, std::max(part, (share + MAX_CHUNKS - 1) / MAX_CHUNKS), op_, false};
  }
  int64_t chunk = (share + CHUNKS - 1) / CHUNKS, bytes = 0;
  if (kernel.stream) {  // at a few rows, to begin anew costs a product as much as to read some KiB
    kernel.stream(op, 0, 1, &bytes);
    chunk = std::min(share, std::max(chunk, LEAST_BYTES / (bytes * job_.step->rows[op.row_kind]) + 1));
  }
  return {units, (chunk + kernel.grain - 1) / kernel.grain * kernel.grain, op_, true};
}

// Notes what the thread reads first in the next product after this op.
void Team::look_ahead(int32_t op, int thread) {
  for (int32_t i = op + 1; i < job_.num_ops; i++) {
    const Kernel &kernel = job_.table->kernels[job_.ops[i].kind];
    if (!kernel.stream) continue;
    const int64_t units = kernel.units(job_.ops[i], *job_.step), share = share_of(units);
    const int64_t from = std::min(units, thread * share), to = std::min(units, from + share);
    if (from == to) return;
    int64_t bytes = 0;
    const char *begin = kernel.stream(job_.ops[i], from, to, &bytes);
    Ahead &ahead = ahead_[size_t(thread)];
    if (begin != ahead.begin) ahead = {begin, std::min(bytes, AHEAD), 0};
    return;
  }
}

// Asks for a few more cache lines of what this thread reads first in the next product. False if all are under way.
bool Team::ask_ahead(int thread) {
  Ahead &ahead = ahead_[size_t(thread)];
  for (int i = 0; i < LINES_PER_SPIN && ahead.asked < ahead.bytes; i++, ahead.asked += 64)
    __builtin_prefetch(ahead.begin + ahead.asked, 0, 2);  // 2: into the second-level cache
  return ahead.asked < ahead.bytes;
}

// The time since the last call belongs to the op that has just ended.
void Team::record_time() {
  int64_t now = now_ns();
  if (op_ >= 0) profile_[job_.ops[op_].kind] += now - op_began_;
  op_began_ = now;
}

void Team::announce(uint32_t phase, const Deal &deal) {
  const int turn = int(phase % 2);
  announced_.units[turn].store(deal.units, std::memory_order_release);
  announced_.chunk[turn].store(deal.chunk, std::memory_order_release);
  announced_.op[turn].store(deal.op, std::memory_order_release);
  announced_.alike[turn].store(deal.alike, std::memory_order_release);
  announced_.phase.store(phase, ANNOUNCE);
  full_fence();
  if (announced_.sleepers.load(std::memory_order_seq_cst) == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

uint32_t Team::wait_beyond(uint32_t phase, int spins, int thread) {
  for (int i = 0; i < spins; i++) {
    uint32_t now = announced_.phase.load(std::memory_order_acquire);
    if (now != phase) return now;
    if (!ask_ahead(thread)) pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  announced_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  full_fence();
  wake_.wait(lock, [&] { return announced_.phase.load(std::memory_order_seq_cst) != phase; });
  announced_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  return announced_.phase.load(std::memory_order_acquire);
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
