"""One engine in a process of its own, which computes only while it is asked: between requests it is stopped.

The process runs one of benchmarks/peers/*.py and answers JSON lines (`harness.py` there is the other end). After an
answer it may go on for a moment, as between the requests of a day: whatever an engine tidies up or prepares then would
otherwise fall into its next measurement. Must not know which engines exist.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.bench.child import Child
from mini_vllm.bench.machine import LoadMeter
from mini_vllm.bench.workloads import FIRST_ID, LAST_ID, Work, make_prompts
from mini_vllm.errors import MiniVLLMError

FIRST_TOKEN_TRIES = 3
REST_SECONDS = 0.3  # after an answer, before the process is stopped


class SubjectError(MiniVLLMError):
    """An engine that cannot be measured: not installed, not started, failed or too slow. One line says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: a rate in tokens per second, and the share of the machine that others used meanwhile.

    bandwidths: bytes per second that memory gave just before and just after, where that was measured.
    """

    rate: float
    foreign: float | None = None
    bandwidths: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start an engine: a command whose last argument is the settings as JSON."""

    label: str
    command: Sequence[str]
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None  # standard error
    start_seconds: float = 400.0
    request_seconds: float = 400.0
    first_id: int = FIRST_ID  # prompts hold token ids from here
    last_id: int = LAST_ID  # to here


class Subject(Child[bytes]):
    """A running engine. `with Subject(launch) as subject: subject.measure(work, seed=1)`."""

    def __init__(self, launch: Launch, *, meter: Callable[[], LoadMeter] = LoadMeter) -> None:
        self.label = launch.label
        self._launch = launch
        self._meter = meter
        log = open(launch.log, "ab") if launch.log else subprocess.DEVNULL  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [*launch.command, json.dumps(launch.settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **launch.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise SubjectError(f"{launch.label}: cannot start {launch.command[0]}: {error}") from error
        finally:
            if not isinstance(log, int):
                log.close()
        try:
            ready = self._answer(launch.start_seconds)
        except BaseException:
            self.close()
            raise
        self.version = str(ready["version"])
        self.load_seconds = float(ready["load_seconds"])
        self._measures = bool(ready.get("measures"))
        self._rest()

    def warm(self, work: Work, *, seed: int) -> None:
        """Let the engine meet a work's shape, with few new tokens, outside any measurement."""
        if not self._measures:
            self._generate(work, seed, new_tokens=min(work.new_tokens, 4))

    def measure(self, work: Work, *, seed: int) -> Sample:
        """One measurement (`SubjectError` when it fails)."""
        meter = self._meter()
        meter.begin()
        rate = self._rate(work, seed)
        return Sample(rate, meter.foreign())

    def seconds(self, work: Work, *, seed: int, new_tokens: int | None = None) -> float:
        """Time of one batch."""
        return self._generate(work, seed, new_tokens=work.new_tokens if new_tokens is None else new_tokens)

    def op_seconds(self) -> dict[str, float]:
        """Our own engine's wall time by kind of op since the last call; the first call begins to measure."""
        seconds: dict[str, float] = self._ask({"op_seconds": True})["op_seconds"]
        return seconds

    def _rate(self, work: Work, seed: int) -> float:
        if self._measures:
            return float(self._ask({"work": asdict(work)})["rate"])
        first = 0.0
        if work.kind == "decode":
            tries = [self._generate(work, seed * 10 + number, new_tokens=1) for number in range(FIRST_TOKEN_TRIES)]
            first = statistics.median(tries)
        return work.rate(self._generate(work, seed * 10 + 9, new_tokens=work.new_tokens), first)

    def _generate(self, work: Work, seed: int, *, new_tokens: int) -> float:
        ids = (self._launch.first_id, self._launch.last_id)
        prompts = make_prompts(work.batch, work.prompt_len, seed=seed, ids=ids)
        request = {
            "prompts": prompts,
            "new_tokens": new_tokens,
            "temperature": work.temperature,
            "top_p": work.top_p,
        }
        return float(self._ask(request)["seconds"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer(self._launch.request_seconds)
        except OSError as error:
            raise SubjectError(f"{self.label}: its process has ended ({error})") from error
        finally:
            self._rest()

    def _rest(self) -> None:
        """Let the process finish what it does of its own accord, then stop it."""
        if self._process.poll() is None:
            time.sleep(REST_SECONDS)
            self._signal(signal.SIGSTOP)

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line; a process that is too slow is killed."""
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._signal(signal.SIGKILL)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            raise SubjectError(f"{self.label}: no answer within {seconds:.0f} s")
        if not line:
            where = f"; see {self._launch.log}" if self._launch.log else ""
            raise SubjectError(f"{self.label}: its process ended{where}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SubjectError(f"{self.label}: {answer['error']}")
        return answer

    def _end(self) -> None:
        """Kill it and all below it."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
