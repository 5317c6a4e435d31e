// The test runner of the native library: no Python, nothing but the C interface and a compiler.
//
// usage: mini_vllm_tests [--isa NAME] [--threads N] [--seed N] [--rounds N] [--only PART_OF_A_NAME] [--skip PART] [--list]
// Runs every test on every instruction set of this machine (or on one). Exit status 1 when a check fails.
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "mini_vllm.h"

namespace mvt {
namespace {

constexpr int SHOWN_FAILURES = 20;
constexpr unsigned SECONDS_PER_TEST = 600;  // a hang ends the run

struct Test {
  const char *name;
  TestFunction function;
};

std::vector<Test> &tests() {
  static std::vector<Test> all;
  return all;
}

int failures = 0;
char current_case[400] = "";
const char *current_test = "", *current_isa = "";

std::vector<std::string> words(const char *text) {
  std::vector<std::string> list;
  std::string word;
  for (const char *c = text;; c++) {
    if (*c && *c != ' ') {
      word += *c;
      continue;
    }
    if (!word.empty()) list.push_back(word);
    word.clear();
    if (!*c) return list;
  }
}

void run_test(const Test &test, const Context &context) {
  current_test = test.name;
  current_isa = context.isa;
  current_case[0] = 0;
  int before = failures;
  auto start = std::chrono::steady_clock::now();
  alarm(SECONDS_PER_TEST);
  test.function(context);
  alarm(0);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%-8s %-50s %-6s %6.2f s\n", context.isa, test.name, failures == before ? "ok" : "FAILED", seconds);
  std::fflush(stdout);
}

struct Options {
  Context context = {nullptr, 2, 1, 20};
  const char *only = "", *skip = "";  // parts of names
  bool list = false;
};

Options parse(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    std::string name = argv[i];
    if (name == "--list") {
      options.list = true;
      continue;
    }
    const char *value = i + 1 < argc ? argv[++i] : "";
    if (name == "--isa") {
      options.context.isa = value;
    } else if (name == "--threads") {
      options.context.threads = std::atoi(value);
    } else if (name == "--seed") {
      options.context.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--rounds") {
      options.context.rounds = std::atoi(value);
    } else if (name == "--only") {
      options.only = value;
    } else if (name == "--skip") {
      options.skip = value;
    } else {
      std::fprintf(stderr, "unknown option %s; there are --isa --threads --seed --rounds --only --skip --list\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

Registration::Registration(const char *name, TestFunction function) { tests().push_back({name, function}); }

void trying(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(current_case, sizeof current_case, format, arguments);
  va_end(arguments);
}

bool fail(const char *file, int line, const char *format, ...) {
  if (++failures > SHOWN_FAILURES) return false;
  char text[1000];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char *slash = std::strrchr(file, '/');
  std::printf("%s %s [%s] %s:%d: %s\n", current_isa, current_test, current_case, slash ? slash + 1 : file, line, text);
  return false;
}

void skip(const char *format, ...) {
  std::printf("%s %s: skipped: ", current_isa, current_test);
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

}  // namespace mvt

int main(int argc, char **argv) {
  using namespace mvt;
  Options options = parse(argc, argv);
  std::vector<std::string> isas = words(options.context.isa ? options.context.isa : mv_isa_names());
  int count = 0;
  for (const std::string &isa : isas) {
    if (!mv_isa_supported(isa.c_str())) {
      std::fprintf(stderr, "%s cannot run here; this machine has: %s\n", isa.c_str(), mv_isa_names());
      return 2;
    }
    Context context = options.context;
    context.isa = isa.c_str();
    for (const Test &test : tests()) {
      if (!std::strstr(test.name, options.only)) continue;
      if (*options.skip && std::strstr(test.name, options.skip)) continue;
      count++;
      options.list ? void(std::puts(test.name)) : run_test(test, context);
    }
  }
  if (options.list) return 0;
  if (count == 0) {
    std::fprintf(stderr, "no test is called %s\n", options.only);
    return 2;
  }
  std::printf("%d tests on %zu instruction sets, %d failed checks\n", count, isas.size(), failures);
  return failures != 0;
}
