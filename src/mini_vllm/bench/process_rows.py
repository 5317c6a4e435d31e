"""Rows about whole processes: how soon the first token comes, and how much memory a server takes at its peak.

Must not know the engine's insides: both programs are driven as a user would.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mini_vllm.bench.forms import gguf_form
from mini_vllm.bench.machine import LoadMeter
from mini_vllm.bench.peers import llama_bin
from mini_vllm.bench.places import models_folder
from mini_vllm.bench.roofline import SMOLLM2
from mini_vllm.bench.rows import Pair, Row, failed, row_of_pairs
from mini_vllm.bench.subject import Sample, SubjectError
from mini_vllm.bench.workloads import BATCH32, make_prompts

PROMPT = "The capital of France is"
MEMORY_ALLOWANCE = 200e6  # bytes beside the model file and the KV blocks in use
_KV_ELEMENT = 2  # bfloat16


def start_row(*, rounds: int, threads: int, last_round_at: float = float("inf")) -> Row:
    """Seconds from starting a program to its first token: ours and llama.cpp's on the same file, warm page cache."""
    row = Row(work="start", weights="q4_1", peer="llama.cpp", unit="s")
    model = gguf_form("q4_1", models_folder())
    mine = [_program("mini-vllm"), "generate", "--model", str(model), "--prompt", PROMPT, "--max-tokens", "1"]
    mine += ["--threads", str(threads), "--no-footer"]
    try:
        theirs = _llama_command(model, threads)
        for command in (mine, theirs):
            first_output(command)  # warms the page cache
        pairs: list[Pair] = []
        while len(pairs) < rounds and (not pairs or time.monotonic() < last_round_at):
            pairs.append(Pair(_timed_start(mine), _timed_start(theirs)))
    except SubjectError as error:
        with suppress(SubjectError):
            return failed(row, str(error), ours=[_timed_start(mine)])
        return failed(row, str(error))
    return row_of_pairs(replace(row, detail=Path(theirs[0]).name), pairs, lower_is_better=True)


def first_output(command: Sequence[str], *, seconds: float = 120.0) -> float:
    """Seconds until a program's first byte that is not white space."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), True)
        while byte := process.stdout.read(1):
            if byte.strip():
                return time.perf_counter() - start
            if time.perf_counter() - start > seconds:
                break
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    raise SubjectError(f"{Path(command[0]).name} ended without printing a token")


def memory_row(*, threads: int) -> Row:
    """Peak resident memory of `serve` over 32 streams, against model file + KV in use + 200 MB."""
    row = Row(work="memory", weights="q4_1", peer="self", unit="MB")
    model = gguf_form("q4_1", models_folder())
    meter = LoadMeter()
    meter.begin()
    try:
        peak = _serve_peak(model, threads)
    except (OSError, SubjectError, http.client.HTTPException) as error:
        return failed(row, f"{type(error).__name__}: {error}")
    tokens = BATCH32.batch * (BATCH32.prompt_len + BATCH32.new_tokens)
    allowed = model.stat().st_size + SMOLLM2.kv_bytes(tokens, _KV_ELEMENT) + MEMORY_ALLOWANCE
    pair = Pair(Sample(peak / 1e6, meter.foreign()), Sample(allowed / 1e6))
    return row_of_pairs(replace(row, detail="allowed: file + KV in use + 200 MB"), [pair], lower_is_better=True)


def peak_bytes(pid: int) -> int:
    """Most resident memory that a process had so far (Linux)."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", text)
    if found is None:
        raise SubjectError("this system does not say how much memory a process had")
    return int(found.group(1)) * 1024


def _serve_peak(model: Path, threads: int) -> int:
    port = _free_port()
    command = [_program("mini-vllm"), "serve", "--model", str(model), "--port", str(port), "--threads", str(threads)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_health(process, port)
        prompts = make_prompts(BATCH32.batch, BATCH32.prompt_len, seed=32)
        with ThreadPoolExecutor(BATCH32.batch) as pool:
            list(pool.map(lambda prompt: _complete(port, prompt), prompts))
        return peak_bytes(process.pid)
    finally:
        process.kill()
        process.wait()


def _complete(port: int, prompt: list[int]) -> None:
    body = {"prompt": prompt, "max_tokens": BATCH32.new_tokens, "temperature": 0, "ignore_eos": True}
    status, text = _request(port, "POST", "/v1/completions", json.dumps(body))
    if status != http.client.OK:
        raise SubjectError(f"the server answered {status}: {text[:200]!r}")


def _wait_for_health(process: "subprocess.Popen[bytes]", port: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            if _request(port, "GET", "/health")[0] == http.client.OK:
                return
        time.sleep(0.05)
    raise SubjectError("`mini-vllm serve` did not become healthy")


def _request(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _timed_start(command: Sequence[str]) -> Sample:
    meter = LoadMeter()
    meter.begin()
    return Sample(first_output(command), meter.foreign())


def _llama_command(model: Path, threads: int) -> list[str]:
    for name, extra in (("llama-completion", ["-no-cnv", "--no-display-prompt"]), ("llama-cli", ["--single-turn"])):
        program = llama_bin() / name
        if program.is_file():
            return [str(program), "-m", str(model), "-p", PROMPT, "-n", "1", "-t", str(threads), *extra]
    raise SubjectError(f"llama.cpp: no llama-completion or llama-cli in {llama_bin()}; run `make peers`")


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
