#!/usr/bin/env bash
# Build and run the C++ test runner (csrc/tests) of the native library, without Python.
# usage: tools/test_native.sh [plain|asan|tsan|arm64|x86]...      default: all of them
#   plain  as installed, on every instruction set of this machine
#   asan   under AddressSanitizer and UBSan
#   tsan   under ThreadSanitizer
#   arm64  cross-compiled for arm64, under qemu's user-mode emulation
#   x86    the plain build on emulated processors: one without AVX-512, one without AVX
# What this machine lacks is installed where that is possible (root and apt), else that part is skipped in so many words.
# $JOBS limits the compilers at work; default: one a core.
set -euo pipefail
cd "$(dirname "$0")/.."
skipped=()

say() { printf 'test-native: %s\n' "$*"; }

skip() {
  skipped+=("$1")
  say "SKIPPED $1: $2"
}

# Debian packages, when we may install them.
install_packages() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
  say "installing $*"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
    >/dev/null 2>&1 || true
}

# need COMMAND PACKAGE...: is the command here, or can it be installed?
need() {
  local name=$1
  shift
  command -v "$name" >/dev/null 2>&1 || install_packages "$@"
  command -v "$name" >/dev/null 2>&1
}

PATH=$PATH:$PWD/.venv/bin
for tool in cmake "${CXX:-c++}"; do
  need "$tool" cmake g++ || {
    say "no $tool found; install it (Debian: apt install cmake g++) and run the command again"
    exit 1
  }
done

# build KIND [cmake options]: into build/native-KIND.
build() {
  local kind=$1 generator=()
  shift
  command -v ninja >/dev/null 2>&1 && generator=(-G Ninja)
  say "building $kind"
  cmake -S csrc -B "build/native-$kind" "${generator[@]}" -DMINI_VLLM_TESTS=ON "$@" >/dev/null
  cmake --build "build/native-$kind" --target mini_vllm_tests --parallel "${JOBS:-$(nproc)}" >"build/native-$kind/log" 2>&1 || {
    cat "build/native-$kind/log"
    return 1
  }
}

# run KIND [wrapper and its options] -- [options of the runner]
run() {
  local kind=$1 wrapper=()
  shift
  while [ "$1" != -- ]; do
    wrapper+=("$1")
    shift
  done
  shift
  say "running $kind"
  timeout 900 "${wrapper[@]}" "build/native-$kind/mini_vllm_tests" "$@"  # a hang is a failure, not a wait
}

# Can the compiler link with this sanitizer?
has_sanitizer() {
  echo 'int main() { return 0; }' | "${CXX:-c++}" -fsanitize="$1" -x c++ - -o "build/sanitizer-$1" 2>/dev/null
}

plain() {
  build plain
  run plain --
}

asan() {
  has_sanitizer address || { skip asan "the compiler has no AddressSanitizer"; return; }
  local flags="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
  build asan -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$flags"
  # Frames on the heap would be misaligned for AVX-512 vectors (GCC bug 110027).
  ASAN_OPTIONS=detect_stack_use_after_return=0:strict_init_order=1 UBSAN_OPTIONS=print_stacktrace=1 \
    run asan -- --rounds 10
}

tsan() {
  has_sanitizer thread || { skip tsan "the compiler has no ThreadSanitizer"; return; }
  build tsan -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=thread"
  # Some kernels lay memory out with more randomness than ThreadSanitizer knows.
  local wrapper=()
  setarch -R true 2>/dev/null && wrapper=(setarch -R)
  TSAN_OPTIONS=halt_on_error=1 run tsan "${wrapper[@]}" -- --threads 3 --rounds 3 --isa "${TSAN_ISA:-portable}"
}

arm64() {
  if ! need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu || ! need qemu-aarch64 qemu-user; then
    skip arm64 "needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: apt install g++-aarch64-linux-gnu qemu-user)"
    return
  fi
  build arm64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
  run arm64 qemu-aarch64 -L /usr/aarch64-linux-gnu -- --rounds 3
}

x86() {
  [ "$(uname -m)" = x86_64 ] || { skip x86 "this is not an x86-64 machine"; return; }
  need qemu-x86_64 qemu-user || { skip x86 "needs qemu-x86_64 (Debian: apt install qemu-user)"; return; }
  build plain
  # One without AVX-512, one without AVX. Not all tests on the first: qemu 7 flushes denormal halves, which no processor
  # does, and among the many float16 numbers of large heads there are some.
  run plain qemu-x86_64 -cpu max -- --rounds 3 --isa avx2 --only attention --skip head_sizes
  run plain qemu-x86_64 -cpu Nehalem -- --rounds 3
}

mkdir -p build
for part in "${@:-plain asan tsan arm64 x86}"; do
  for name in $part; do
    case $name in
      plain | asan | tsan | arm64 | x86) "$name" ;;
      *) say "unknown part $name; there are plain, asan, tsan, arm64 and x86" && exit 2 ;;
    esac
  done
done
if [ ${#skipped[@]} -gt 0 ]; then say "all that ran passed; SKIPPED: ${skipped[*]}"; else say "all passed"; fi
