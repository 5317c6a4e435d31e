#!/usr/bin/env bash
# Make the virtual environment VENV and install mini-vLLM into it, editable.
# usage: tools/install.sh VENV run|test
# run: the engine and server; no torch where a C++ compiler exists, the torch extra where none does.
# test: also the references (torch, transformers) and the development tools, pinned by tests/constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
purpose=$2
torch_index=https://download.pytorch.org/whl/cpu

fail() {
  printf 'mini-vllm: %s\n' "$@" >&2
  exit 1
}

find_python() {
  local name
  for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3 python; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  return 1
}

has_compiler() {
  local name
  for name in "${CXX:-}" c++ g++ clang++; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && return 0
  done
  return 1
}

pip_install() {
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$@" || fail \
    "installing failed (see above)." \
    "If the network or the package index cannot be reached, connect, or set PIP_INDEX_URL to an index that can be, and run the command again."
}

# PyTorch's CPU builds are far smaller than the default ones: use their index where it answers.
cpu_torch_index() {
  if [ "$(uname -s)" = Linux ] && "$venv/bin/python" - "$torch_index/torch/" 2>/dev/null <<'PY'; then
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5).close()
PY
    echo "--extra-index-url $torch_index"
  fi
}

if [ ! -x "$venv/bin/python" ]; then
  python=$(find_python) || fail \
    "no Python 3.11 or newer found." \
    "Install one (Debian/Ubuntu: apt install python3 python3-venv; macOS: brew install python) or set PYTHON=/path/to/python3."
  echo "mini-vllm: making $venv with $("$python" --version)"
  "$python" -m venv "$venv" || { rm -rf "$venv"; fail \
    "could not make a virtual environment." "Debian/Ubuntu: apt install python3-venv; then run the command again."; }
fi

extras=""
if has_compiler; then
  echo "mini-vllm: compiling the native kernels and installing (a minute or two the first time)"
else
  printf 'mini-vllm: %s\n' "no C++ compiler found (looked for c++, g++, clang++)." \
    "Falling back to the torch op table, which is slower and larger to install." \
    "For the native kernels install one (Debian/Ubuntu: apt install g++; macOS: xcode-select --install) and run: make clean" >&2
  export MINI_VLLM_NO_NATIVE=1
  extras="torch"
fi

if [ "$purpose" = test ]; then
  # shellcheck disable=SC2046
  pip_install $(cpu_torch_index) -c tests/constraints.txt torch
  pip_install -c tests/constraints.txt -e ".[torch,test,check]"
elif [ -n "$extras" ]; then
  # shellcheck disable=SC2046
  pip_install $(cpu_torch_index) -c tests/constraints.txt torch
  pip_install -c tests/constraints.txt -e ".[$extras]"
else
  pip_install -e .
fi
