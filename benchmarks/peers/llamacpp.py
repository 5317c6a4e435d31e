"""llama.cpp by its own benchmark programs: no sampling, no HTTP, so the best case for it.

Each rate is that of a fresh process, which warms up by itself and loads outside the timed part.
"""

import json
import subprocess
from pathlib import Path

import harness


class LlamaCpp:
    def __init__(self, settings):
        self.bin = Path(settings["bin"])
        self.model, self.threads = settings["model"], str(settings["threads"])
        done = subprocess.run([self.bin / "llama-bench", "--help"], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"llama-bench does not run: {done.stderr[-200:]}")
        self.version = settings.get("version", "unknown")

    def measure(self, work):
        if work["kind"] == "prompt":
            return self._prefill(work["prompt_len"])
        found = self._batched(work)
        if work["kind"] == "decode":
            return found["speed_tg"]
        return work["batch"] * work["new_tokens"] / (found["t_pp"] + found["t_tg"])

    def _batched(self, work):
        batch, prompt, new = work["batch"], work["prompt_len"], work["new_tokens"]
        context = batch * (prompt + new) + 64
        shape = ["-c", context, "-npp", prompt, "-ntg", new, "-npl", batch]
        lines = self._run(
            "llama-batched-bench", "-t", self.threads, "-tb", self.threads, *shape, "--output-format", "jsonl"
        )
        return next(json.loads(line) for line in lines.splitlines() if line.startswith("{"))

    def _prefill(self, length):
        found = self._run("llama-bench", "-t", self.threads, "-p", length, "-n", 0, "-r", 1, "-o", "json")
        return json.loads(found)[0]["avg_ts"]

    def _run(self, program, *arguments):
        command = [str(self.bin / program), "-m", self.model, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        return done.stdout


harness.serve(LlamaCpp)
