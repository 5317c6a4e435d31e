"""The engines we compare ourselves with: where each is installed, which script drives it, which form it reads.

To add one: a `Peer` here, a script in benchmarks/peers, a function in tools/peers.sh, its contests in `plan`. Must not
know rows or measurements.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_vllm.bench.forms import gguf_form
from mini_vllm.bench.places import benchmarks_folder, models_folder, peers_base
from mini_vllm.bench.subject import Launch, SubjectError

MAX_MODEL_LEN = 2304


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine. `forms`: name of a form → what holds the model, under models/; "gguf" makes the file of that type."""

    name: str
    environment: str  # under venv/
    script: str
    forms: Mapping[str, str]
    start_seconds: float = 120.0


_GGUF = dict.fromkeys(("q4_1", "q4_0", "q8_0", "bf16", "f16", "f32"), "gguf")
_OPENVINO = {"int4": "ov-int4", "int8": "ov-int8", "bf16": "ov-f32", "f32": "ov-f32"}  # bfloat16 is its run-time choice

PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("llama.cpp", "llama-server", "llamacpp.py", _GGUF),
        Peer("openvino", "openvino", "ov_genai.py", _OPENVINO),
        Peer("onnxruntime", "onnxruntime", "ort_genai.py", {"int4": "ort-int4"}),
        Peer("ctranslate2", "ctranslate2", "ct2.py", {"int8": "ct2-f32", "f32": "ct2-f32"}),
        Peer("vllm", "vllm", "vllm_cpu.py", {"bf16": "smollm2-bf16", "f32": "smollm2-f32"}, 400.0),
        Peer("transformers", "transformers", "hf.py", {"bf16": "smollm2-bf16", "f32": "smollm2-f32"}),
    )
}  # fmt: skip


def ours(
    form: str,
    *,
    threads: int,
    model: Path | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    num_blocks: int | None = None,
) -> Launch:
    """Our own engine on a GGUF form of the model, or on another file."""
    path = model or gguf_form(form, models_folder())
    settings = _settings(path, form, threads) | {"max_model_len": max_model_len, "options": {"num_blocks": num_blocks}}
    return _launch(f"mini-vllm {form}", sys.executable, "ours.py", settings)


def peer_launch(name: str, form: str, *, threads: int, model: Path | None = None, prebuilt: bool = False) -> Launch:
    """How to start a peer; `SubjectError` if it is not installed or lacks its form of the model.

    prebuilt: llama.cpp as a package index has it, even where it was built for this machine.
    """
    peer = PEERS[name]
    label = f"{name} {form}"
    if name == "llama.cpp":
        return _llama(form, threads, model, None if prebuilt else llama_bin())
    python = _interpreter(peer)
    path = model or models_folder() / peer.forms[form]
    if not path.exists():
        raise SubjectError(f"{label}: {path} does not exist; run `make peers`")
    launch = _launch(label, python, peer.script, _settings(path, form, threads), peer.start_seconds)
    if name != "vllm":
        return launch
    preload = preloads(Path(python).parents[1])
    return with_variables(launch, {"LD_PRELOAD": ":".join(map(str, preload))} if preload else {})


def llama_bin() -> Path:
    """$LLAMA_BIN, else where `make peers` builds llama.cpp's programs."""
    return Path(os.environ.get("LLAMA_BIN") or peers_base() / "build" / "llama" / "bin")


def preloads(environment: Path) -> list[Path]:
    """Libraries that vLLM's CPU build is faster with: its OpenMP, and an allocator of the system's."""
    candidates = [path for path in (environment / "lib" / "libiomp5.so",) if path.is_file()]
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        candidates += sorted(Path(folder).glob("libtcmalloc_minimal.so.4"))[:1]
    return candidates


def _llama(form: str, threads: int, model: Path | None, folder: Path | None) -> Launch:
    """Its own benchmark programs where they were built, else the prebuilt server."""
    path = model or gguf_form(form, models_folder())
    settings = _settings(path, form, threads)
    if folder is not None and (folder / "llama-batched-bench").is_file():
        version = folder.parent / "version.txt"
        extra = {"bin": str(folder), "version": version.read_text().strip() if version.is_file() else "unknown"}
        return _launch(f"llama.cpp {form}", sys.executable, "llamacpp.py", settings | extra)
    python = _interpreter(PEERS["llama.cpp"])
    return _launch(f"llama.cpp {form} (server)", python, "llamaserver.py", settings)


def _interpreter(peer: Peer) -> str:
    own = peers_base() / "venv" / peer.environment / "bin" / "python"
    if own.is_file():
        return str(own)
    if peer.name == "transformers" and all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return sys.executable  # a smoke run without `make peers`
    raise SubjectError(f"{peer.name}: not installed (no {own}); run `make peers`")


def _settings(path: Path, form: str, threads: int) -> dict[str, Any]:
    return {"model": str(path), "form": form, "threads": threads, "max_model_len": MAX_MODEL_LEN}


def _launch(label: str, python: str, script: str, settings: Mapping[str, Any], start_seconds: float = 120.0) -> Launch:
    threads = str(settings["threads"])
    log = peers_base() / "log" / f"{script.removesuffix('.py')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    return Launch(
        label=label,
        command=[python, str(benchmarks_folder() / "peers" / script)],
        settings=settings,
        environment={
            "OMP_NUM_THREADS": threads,
            "OMP_PROC_BIND": "true",
            "OMP_PLACES": "cores",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        log=log,
        start_seconds=start_seconds,
    )


def with_variables(launch: Launch, variables: Mapping[str, str]) -> Launch:
    return replace(launch, environment={**launch.environment, **variables})
