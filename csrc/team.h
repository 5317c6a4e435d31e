// A team of threads that work through a list of ops together, without ever waiting for a particular thread.
//
// Each op has a number of units. They are dealt out as one contiguous range per thread, so that each streams its own part
// of the weights; a thread claims its range chunk by chunk from the front, and when it is through, it claims chunks from
// the back of the others'. So a thread that the system has taken away costs at most the chunk it holds, one that comes
// late finds its work done, and one that is on time reads its weights in one stream.
//
// The op is over when all units are done (not when all threads have arrived): whoever finishes the last unit sets up the
// next op and announces it as a new phase; ops too small to share it does by itself. A claim is one compare-and-swap on
// (phase, first chunk left, last), so a thread that still believes in an old phase cannot take anything.
//
// While a thread waits, it asks for the memory that its range of the next product reads first, so that the system's
// memory is not idle during small ops. Where that is comes with every phase; asking for the wrong place is harmless.
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
  struct alignas(64) Range {
    std::atomic<uint64_t> claim{0};    // phase << 32 | first chunk left << 16 | chunk after the last
    int64_t begin = 0, end = 0;        // units; valid while the phase lasts
    std::atomic<const char *> ahead{nullptr};  // what the thread reads first in the next product
    std::atomic<int64_t> ahead_bytes{0};
  };

  // How far a thread has come in asking for memory ahead of its use; its own.
  struct alignas(64) Ahead {
    const char *begin = nullptr;
    int64_t asked = 0;
  };

  void stop();
  void serve(int thread);
  void work(uint32_t phase, int thread);
  int64_t claim_and_run(uint32_t phase, Range &range, int thread, bool own);
  void run_units(int64_t begin, int64_t end, int64_t next, int thread);
  void advance(int thread);
  int64_t next_shared_op(int thread);
  void deal(uint32_t phase, int64_t units);
  int64_t attend_chunk(int64_t share) const;
  void look_ahead();
  bool ask_ahead(int thread);
  void announce(uint32_t phase);
  uint32_t wait_beyond(uint32_t phase, int spins, int thread);
  void record_time();

  std::vector<Range> ranges_;
  std::vector<Ahead> ahead_;
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<uint32_t> sleepers_{0};
  alignas(64) std::atomic<int64_t> units_left_{0};
  std::atomic<uint32_t> progress_{0};  // ops begun
  alignas(64) std::atomic<int64_t> chunk_{1};
  std::atomic<bool> active_{false}, stopping_{false};  // active_ only tells idle threads how long to spin
  std::atomic<uint32_t> last_phase_{0};                 // of the newest finished job
  Job job_{};
  int32_t op_ = -1;
  uint64_t num_jobs_ = 0;
  std::atomic<uint64_t> under_way_{0};  // the job that the caller has begun and not ended; 0: none
  std::atomic<bool> dropped_{false};    // it shall go no further
  const bool static_;           // every thread does its own range in one piece, for comparison
  int64_t *profile_ = nullptr;  // nanoseconds by kind of op, when someone asks
  int64_t op_began_ = 0;        // ns; touched by the one thread that advances
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
