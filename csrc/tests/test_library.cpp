// What the library says about itself, and what it takes from the system.
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "check.h"
#include "memory.h"
#include "mini_vllm.h"
#include "sampler.h"

namespace mvt {

MV_TEST(the_library_describes_itself) {
  MV_CHECK_EQUAL(mv_version(), MV_ABI_VERSION);
  const size_t sizes[] = {sizeof(mv_matrix), sizeof(mv_store), sizeof(mv_op), sizeof(mv_step), sizeof(mv_limits),
                          sizeof(mv_follow)};
  for (int i = 0; i < 6; i++) MV_CHECK_EQUAL(mv_struct_bytes(i), sizes[i]);
  MV_CHECK_EQUAL(mv_struct_bytes(-1), -1);
  MV_CHECK_EQUAL(mv_struct_bytes(6), -1);
  MV_CHECK_EQUAL(mv_sampler_row_bytes(), sizeof(mv_sampler_row));
  MV_CHECK(std::strstr(mv_isa_names(), "portable") != nullptr);
  MV_CHECK_EQUAL(mv_isa_supported("portable"), 1);
  MV_CHECK_EQUAL(mv_isa_supported("z80"), 0);
  MV_CHECK_EQUAL(mv_isa_supported("none"), 1);
  MV_CHECK(std::strstr(mv_isa_names(), "none") == nullptr);
  MV_CHECK_EQUAL(mv_isa_supported(""), 0);
}

MV_TEST(memory_is_zero_and_on_cache_lines) {
  const int64_t large = int64_t(2) << 20;
  for (int64_t bytes : {int64_t(0), int64_t(1), int64_t(63), int64_t(4097), large - 1, large, large + 1}) {
    trying("%lld bytes", (long long)bytes);
    uint8_t *memory = static_cast<uint8_t *>(mv_alloc(bytes));
    if (!MV_CHECK(memory != nullptr)) return;
    MV_CHECK_EQUAL(reinterpret_cast<uintptr_t>(memory) % 64, 0);
    int64_t used = 0;
    for (int64_t i = 0; i < bytes; i++) used += memory[i] != 0;
    MV_CHECK_EQUAL(used, 0);
    std::memset(memory, 1, size_t(bytes));
    mv_free(memory, bytes);
  }
  for (int64_t bytes : {int64_t(0), int64_t(64) << 10, int64_t(1) << 30}) mv_free(nullptr, bytes);
}

// Many pieces, freed in another order than they were made: zero when they come, and nobody else's while they last.
MV_TEST(pieces_of_memory_do_not_touch) {
  Random random(context.seed);
  std::vector<std::pair<uint8_t *, int64_t>> held;
  auto free_one = [&](size_t i) {
    for (int64_t j = 0; j < held[i].second; j += 61) MV_CHECK_EQUAL(held[i].first[j], uint8_t(held[i].second));
    mv_free(held[i].first, held[i].second);
    held.erase(held.begin() + int64_t(i));
  };
  for (int round = 0; round < 60; round++) {
    const int64_t sizes[] = {100, int64_t(64) << 10, 1000001, 7000003, int64_t(17) << 20};
    const int64_t bytes = sizes[round % 5] + random.below(1000);
    uint8_t *memory = static_cast<uint8_t *>(mv_alloc(bytes));
    if (!MV_CHECK(memory != nullptr)) return;
    int64_t used = 0;
    for (int64_t i = 0; i < bytes; i += 61) used += memory[i] != 0;
    MV_CHECK_EQUAL(used, 0);
    std::memset(memory, int(uint8_t(bytes)), size_t(bytes));
    held.push_back({memory, bytes});
    if (held.size() > 12) free_one(size_t(random.below(int(held.size()))));
  }
  while (!held.empty()) free_one(size_t(random.below(int(held.size()))));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Where the system refuses threads, there is no team, and the threads that were made have ended.
MV_TEST(a_team_that_the_system_refuses) {
  mv_team *team = nullptr;
  {
    const TightMemory tight(int64_t(40) << 20);  // room for a few stacks
    if (!tight.is_tight()) return skip("the address space cannot be limited here");
    team = mv_team_create(200);
  }
  if (team) skip("this system did not refuse");
  mv_team_destroy(team);
}
#endif

}  // namespace mvt
