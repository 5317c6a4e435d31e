"""What the machine can do: memory bandwidth by buffer size, and peak rates of the arithmetic that products use.

`benchmarks/limits.cpp` measures them; it is compiled here, for this machine, once. `measure` asks it for everything,
`Gauge` for the bandwidth of the moment. Must not know models.
"""

import hashlib
import json
import logging
import os
import select
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_vllm.bench.child import Child
from mini_vllm.bench.places import benchmarks_folder
from mini_vllm.errors import MissingDependencyError

logger = logging.getLogger(__name__)

MIB = 2**20
PEAKS = ("f32", "bf16", "int8")


@dataclass(frozen=True, slots=True)
class Limits:
    """`bandwidth`: (bytes of the buffer, bytes per second), ascending. `peaks`: operations per second by arithmetic."""

    bandwidth: tuple[tuple[float, float], ...]
    peaks: Mapping[str, float]

    def bandwidth_at(self, num_bytes: float) -> float:
        """Bytes per second when so many bytes are read over and over; linear between the measured sizes."""
        if num_bytes <= self.bandwidth[0][0]:
            return self.bandwidth[0][1]
        for (low, slow), (high, fast) in zip(self.bandwidth, self.bandwidth[1:]):
            if num_bytes <= high:
                return slow + (fast - slow) * (num_bytes - low) / (high - low)
        return self.bandwidth[-1][1]

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second of the largest buffer."""
        return self.bandwidth[-1][1]

    def best_of(self, other: "Limits") -> "Limits":
        """The higher of each figure: what disturbed one measurement need not have disturbed the other."""
        theirs = dict(other.bandwidth)
        return Limits(
            tuple((size, max(rate, theirs.get(size, 0.0))) for size, rate in self.bandwidth),
            {name: max(rate, other.peaks[name]) for name, rate in self.peaks.items()},
        )

    def with_bandwidth(self, rate: float) -> "Limits":
        """The same peaks, and one bandwidth at every size."""
        return replace(self, bandwidth=((0.0, rate),))

    def as_json(self) -> dict[str, Any]:
        """For the record: MiB, GB/s, G operations per second."""
        return {
            "read_GBps": {f"{size / MIB:.0f} MiB": round(rate / 1e9, 1) for size, rate in self.bandwidth},
            "peak_GOPs": {name: round(rate / 1e9) for name, rate in self.peaks.items()},
        }


def parse(lines: Iterable[str]) -> Limits:
    """From the program's JSON lines: {"what": "read", "bytes", "rate"} and {"what": "f32" …, "rate"}."""
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    bandwidth = sorted((float(row["bytes"]), float(row["rate"])) for row in rows if row["what"] == "read")
    peaks = {row["what"]: float(row["rate"]) for row in rows if row["what"] in PEAKS}
    if not bandwidth or set(peaks) != set(PEAKS):
        raise ValueError("the limits program printed no complete set of figures")
    return Limits(tuple(bandwidth), peaks)


def measure(threads: int, *, cache: Path, largest_mib: int = 1024, seconds: float = 120.0) -> Limits:
    """Run the program; `MissingDependencyError` without a C++ compiler. Takes some seconds and all `threads` cores."""
    command = [str(build(cache)), str(threads), str(largest_mib)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except subprocess.SubprocessError as error:
        raise MissingDependencyError(f"the limits program failed: {error}") from error
    return parse(done.stdout.splitlines())


class Gauge(Child[bytes]):
    """`gauge(num_bytes)`: how fast memory is right now, as in `Limits.bandwidth`; None once that fails.

    One process for a whole run, which sleeps until it is asked and keeps as much memory as it was ever asked to read,
    1 GiB at most. An answer takes 0.1 to 0.5 s and all `threads` cores; after `seconds` without one it gives up.
    """

    def __init__(self, threads: int, *, cache: Path, seconds: float = 30.0) -> None:
        self._seconds = seconds
        command = [str(build(cache)), str(threads), "ask"]
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def __call__(self, num_bytes: float) -> float | None:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None
        if questions.closed:
            return None
        with suppress(OSError, ValueError):  # it has ended
            questions.write(b"%d\n" % num_bytes)
            if select.select([answers], [], [], self._seconds)[0]:
                return float(json.loads(answers.readline())["rate"])
        logger.warning("limits: the bandwidth program ended, or gave no answer within %.1f s", self._seconds)
        self.close()
        return None


def build(cache: Path) -> Path:
    """Compile the program for this very machine, unless that was done before; its path."""
    source = benchmarks_folder() / "limits.cpp"
    compiler = find_compiler([os.environ.get("CXX", ""), "c++", "g++", "clang++"])
    digest = hashlib.sha256(source.read_bytes() + compiler.encode()).hexdigest()[:12]
    target = cache / f"limits-{digest}"
    if not target.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".new")
        command = [compiler, "-std=c++17", "-O3", "-march=native", "-pthread", str(source), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise MissingDependencyError(f"cannot compile {source.name}: {done.stderr.strip()[-300:]}")
        fresh.rename(target)
    return target


def find_compiler(names: Sequence[str]) -> str:
    """The first of these programs that exists."""
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise MissingDependencyError(
            "measuring the machine's limits needs a C++ compiler; install one (Debian: apt install g++)"
        )
    return found
