// A team of threads that work through a list of ops together, without ever waiting for a particular thread.
//
// Each op has a number of units. They are dealt out as one contiguous range per thread, so that each streams its own part
// of the weights; a thread claims its range from the front, half of what is left at a time, and when it is through, it
// claims chunks from the back of the others'. So threads end together, one that the system has taken away costs at most
// what it has claimed, one that comes late finds its work done, and one that is on time reads its weights in one stream.
//
// The op is over when all units are done (not when all threads have arrived): whoever finishes the last unit sets up the
// next op and announces it as a new phase; ops too small to share it does by itself. A claim is one compare-and-swap on
// (phase, first chunk left, last); a range whose claim is of an earlier phase is whole. A thread that still believes in an
// old phase cannot take anything: each range that had chunks then was claimed to its end, in that phase or a later one.
//
// A line of cache that one thread wrote takes another 50 to 200 ns to read, and a model has hundreds of ops a step. So a new
// op moves two lines only: the count of units left, to its last finisher, and the announcement, to everybody who waits for
// it. A range's claim stays with its owner as long as nobody else comes for it.
//
// While a thread waits, it asks for the memory that its range of the next product reads first, so that the system's
// memory is not idle during small ops. It notes where that is when it claims its first chunk of an op.
//
// A job may be begun before its caller has time for it: the other threads work on it until the caller joins in, or drops
// it, which costs no more than the op that is under way.
//
// MINI_VLLM_SPLIT=static in the environment turns the claiming off: what a plain split would do, to compare with.
#ifndef MINI_VLLM_TEAM_H
#define MINI_VLLM_TEAM_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "kernel_table.h"

namespace mv {

// A list of ops to run on one step. scratch(thread) is memory for one thread.
struct Job {
  const KernelTable *table;
  const mv_op *ops;
  int32_t num_ops;
  const StepView *step;
  char *scratch;
  int64_t scratch_stride;
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  int threads() const { return int(ranges_.size()); }
  // Runs the job on the calling thread and the others; returns when all of it is done.
  void run(const Job &job) { end(begin(job)); }
  // Sets the other threads to work on the job, in place of one that is under way; its number. All that the job points to
  // must stay until end() or drop(). On one thread, all of it is done here.
  uint64_t begin(const Job &job);
  // Joins in; returns when all of the job is done. False if it was not under way.
  bool end(uint64_t job);
  // Ends the job after the op that it has come to, if it is under way.
  void drop(uint64_t job);
  uint32_t progress() const { return progress_.load(std::memory_order_relaxed); }
  bool busy() const { return active_.load(std::memory_order_relaxed); }  // a job is under way
  void profile(int64_t *ns) { profile_ = ns; }

 private:
  // A thread's range of the op at hand.
  struct alignas(64) Range {
    std::atomic<uint64_t> claim{0};  // phase << 32 | first chunk left << 16 | chunk after the last
  };

  // What an op deals out: a share of the units for each thread, to be claimed in chunks of so many.
  struct Deal {
    int64_t units, chunk;
    int32_t op;
    bool alike;  // all units take about as long
  };
  static constexpr Deal NOTHING = {0, 1, -1, true};

  // The newest phase and its deal, in one line. Deals take turns, so that the one of a phase that is still the newest after
  // it was read has been read undisturbed.
  struct alignas(64) Announcement {
    std::atomic<uint32_t> phase{0}, sleepers{0};
    std::atomic<int64_t> units[2] = {}, chunk[2] = {{1}, {1}};
    std::atomic<int32_t> op[2] = {};
    std::atomic<bool> alike[2] = {};
  };

  // What a thread reads first in the next product, and how far it has come in asking for it. Its own.
  struct alignas(64) Ahead {
    const char *begin = nullptr;
    int64_t bytes = 0, asked = 0;
  };

  void stop();
  void serve(int thread);
  void work(uint32_t phase, int thread);
  bool is_dealt(uint32_t phase, Deal &deal) const;
  int64_t claim_and_run(uint32_t phase, int owner, int thread);
  void run_units(int32_t op, int64_t begin, int64_t end, int64_t next, int thread);
  void advance(int thread);
  int64_t next_shared_op(int thread);
  Deal deal(int64_t units) const;
  int64_t share_of(int64_t units) const { return (units + threads() - 1) / threads(); }
  void look_ahead(int32_t op, int thread);
  bool ask_ahead(int thread);
  void announce(uint32_t phase, const Deal &deal);
  uint32_t wait_beyond(uint32_t phase, int spins, int thread);
  void record_time();

  std::vector<Range> ranges_;
  std::vector<Ahead> ahead_;
  Announcement announced_;
  // Of the thread that sets up the next op.
  alignas(64) std::atomic<int64_t> units_left_{0};
  std::atomic<uint32_t> progress_{0};  // ops begun
  int32_t op_ = -1;
  int64_t op_began_ = 0;  // ns
  // Of a job, and of the team: seldom written.
  alignas(64) Job job_{};
  uint64_t num_jobs_ = 0;
  std::atomic<uint64_t> under_way_{0};   // the job that the caller has begun and not ended; 0: none
  std::atomic<uint32_t> last_phase_{0};  // of the newest finished job
  std::atomic<bool> dropped_{false};     // the job shall go no further
  std::atomic<bool> active_{false}, stopping_{false};  // active_ only tells idle threads how long to spin
  const bool static_;           // every thread does its own range in one piece, for comparison
  int64_t *profile_ = nullptr;  // nanoseconds by kind of op, when someone asks
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace mv

struct mv_team {
  explicit mv_team(int threads) : team(threads) {}
  mv::Team team;
};

#endif
