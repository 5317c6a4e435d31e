// Tests register themselves; a failed check is reported with the case it happened in, and the run goes on.
#ifndef MINI_VLLM_TESTS_CHECK_H
#define MINI_VLLM_TESTS_CHECK_H

#include <cstdint>

namespace mvt {

// What a test is run with: once per instruction set.
struct Context {
  const char *isa;
  int threads;    // of the team, where a test does not choose its own
  uint64_t seed;
  int rounds;     // how often randomised tests repeat; below 5, others are shorter too (for emulators)

  bool quick() const { return rounds < 5; }
};

typedef void (*TestFunction)(const Context &);

struct Registration {
  Registration(const char *name, TestFunction function);
};

// Says what is being tried, for the reports of failures.
void trying(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Reports a failure; returns false.
bool fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
// Prints a line that says what could not be tried here.
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace mvt

#define MV_TEST(name)                                    \
  static void name(const mvt::Context &context);         \
  static const mvt::Registration register_##name(#name, name); \
  static void name([[maybe_unused]] const mvt::Context &context)

#define MV_CHECK(condition) ((condition) ? true : mvt::fail(__FILE__, __LINE__, "%s", #condition))
#define MV_CHECK_EQUAL(got, expected)                                                                         \
  ((long long)(got) == (long long)(expected)                                                                  \
       ? true                                                                                                 \
       : mvt::fail(__FILE__, __LINE__, "%s is %lld, not %lld", #got, (long long)(got), (long long)(expected)))

#endif
