"""Keeps an engine in a process of its own: starts it, passes messages, and starts it again when it ends or hangs.

To a client it looks like an `EngineLoop`. A process can always be killed, so nothing that the engine does, not even a
fault of the native library, takes the front end with it. Must not know text, asyncio or HTTP.
"""

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from mini_vllm.config import EngineConfig
from mini_vllm.engine import wire
from mini_vllm.engine.assembly import EngineFront, Recipe
from mini_vllm.engine.client import Driver, LocalClient, Observer
from mini_vllm.engine.core import add_counters, end_as_errors
from mini_vllm.engine.loop import Accepted, Event, Refused
from mini_vllm.errors import EngineDeadError, MiniVLLMError
from mini_vllm.types import EngineStats, FinishReason, Request

logger = logging.getLogger(__name__)

TRACE_SECONDS = 10.0  # for the engine to tell its trace
SECONDS_TO_END = 1.0  # for a process whose connection is closed
STOP_SECONDS = 10.0  # for the step in flight when the engine is told to leave; then it is killed


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the engine is started again, in seconds."""

    first: float = 0.5
    factor: float = 2.0
    most: float = 30.0
    calm: float = 60.0  # one that lived this long begins again with `first`
    patience: float = 300.0  # for a successor to load; then the next one tries

    def delay(self, num_failures: int) -> float:
        """After this many failures in a row, 1 or more."""
        return min(self.first * self.factor ** min(num_failures - 1, 60), self.most)


class EngineProcess:
    """An engine process and its successors.

    `deliver` and `on_death` are called on one thread, as by `EngineLoop`: `on_death` each time that a process ends,
    after which nothing of its requests comes any more. Counters go on across processes.
    """

    def __init__(
        self,
        boot: wire.Boot,
        *,
        deliver: Callable[[list[Event]], None],
        on_death: Callable[[EngineDeadError], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._boot = boot
        self._deliver = deliver
        self._on_death = on_death
        self._backoff = backoff or Backoff()
        self._ready: Future[wire.Ready] = Future()
        self._serving: _Child | None = None  # the one that takes requests
        self._child: _Child | None = None  # the newest, loading or serving
        self._lock = threading.Lock()  # of `_child` and `_stopping`
        self._stopping = False
        self._wake = threading.Event()
        self._reason: EngineDeadError | None = None  # why the child is being killed
        self._open: set[str] = set()
        self._asked: deque[Future[str]] = deque()  # by those who wait for a trace
        self._past = EngineStats()
        self._stats = EngineStats()
        self._num_reports = 0
        self._counts_operations = False
        self._alarm = threading.Timer(0.0, lambda: None)  # ends a successor that hangs while it loads
        self._thread = threading.Thread(target=self._main, name="mini-vllm-process", daemon=True)
        self._thread.start()

    def wait_ready(self) -> wire.Ready:
        """Block until the first process has loaded its engine; raises why it could not."""
        return self._ready.result()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that are accepted or refused together. `EngineDeadError` when there is no engine."""
        child = self._serving
        if child is None or self._stopping:
            raise EngineDeadError(
                "the engine was shut down" if self._stopping else "the engine's process is being restarted; try again"
            )
        self._open.update(request.request_id for request in requests)
        child.send(wire.Submit(tuple(requests)))

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request in the next step; unknown ids and a dead engine are ignored."""
        if (child := self._serving) is not None:
            child.send(wire.Abort(request_id, reason))

    def stats(self) -> EngineStats:
        """As of the last report; while there is no engine, nothing runs or waits."""
        return self._stats

    def read_trace(self) -> str:
        """What the scheduler of the process that serves did in its last steps; "" if there is none. Blocks."""
        child, asked = self._serving, Future[str]()
        if child is None:
            return ""
        self._asked.append(asked)
        child.send(wire.AskTrace())
        try:
            return asked.result(TRACE_SECONDS)
        except TimeoutError:
            return ""

    @property
    def pid(self) -> int | None:
        """Of the process that takes requests, if there is one now."""
        child = self._serving
        return None if child is None else child.pid

    @property
    def is_alive(self) -> bool:
        """Whether a request submitted now would be answered."""
        return self._serving is not None and not self._stopping

    @property
    def counts_operations(self) -> bool:
        """Whether `marker` moves within a step too."""
        return self._counts_operations

    def marker(self) -> Hashable | None:
        """Changes with every report of the process that has work; None while it has none."""
        child = self._serving
        return None if child is None or not self._open else (child.serial, self._num_reports)

    def give_up(self, death: EngineDeadError) -> bool:
        """Kill a process that hangs. True: there will be another."""
        with self._lock:
            if self._child is not None:
                self._reason = death
                self._child.kill()
        return not self._stopping

    def stop(self, timeout: float | None = None) -> bool:
        """End the process after the step in flight, or by force when `timeout` is over. Always succeeds."""
        with self._lock:
            self._stopping = True
            self._wake.set()
            if self._child is not None and self._child is self._serving:
                self._child.send(wire.Stop())
            elif self._child is not None:
                self._child.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS if timeout is None else timeout)
            if self._thread.is_alive():
                with self._lock:
                    if self._child is not None:
                        self._child.kill()
                self._thread.join()
        return True

    def _main(self) -> None:
        """One process after another."""
        num_failures = 0
        for serial in itertools.count():
            begun = time.monotonic()
            try:
                fault = self._run_one(serial)
            except Exception as error:
                logger.exception("the engine's process could not be kept")
                fault = EngineDeadError(f"the engine's process could not be kept ({type(error).__name__}: {error})")
            if self._stopping:
                break
            if not self._ready.done():
                self._ready.set_exception(fault)
                return
            num_failures = 1 if time.monotonic() - begun >= self._backoff.calm else num_failures + 1
            self._wake.wait(self._backoff.delay(num_failures))
        if not self._ready.done():
            self._ready.set_exception(EngineDeadError("the engine was shut down"))

    def _run_one(self, serial: int) -> MiniVLLMError:
        """Start a process and attend to it until it has ended; why it has."""
        with self._lock:
            if self._stopping:
                return EngineDeadError("the engine was shut down")
            child = self._child = _Child(self._boot, serial)
        if serial:
            self._alarm = threading.Timer(self._backoff.patience, child.kill)
            self._alarm.daemon = True
            self._alarm.start()
        fault: MiniVLLMError | None = None
        try:
            fault = self._attend(child)
        finally:
            self._alarm.cancel()
            child.kill()  # if it has not ended, nobody would hear from it any more
            self._bury(child, fault)
        return fault or EngineDeadError(f"the engine's process {child.end} while loading")

    def _attend(self, child: "_Child") -> MiniVLLMError | None:
        """Read reports until the process ends; what it said of its end."""
        while (report := child.link.receive()) is not None:
            self._num_reports += 1
            match report:
                case wire.Step():
                    self._pass_on(report)
                case wire.Ready():
                    self._welcome(child, report)
                case wire.Traced(text):
                    if self._asked:
                        self._asked.popleft().set_result(text)
                case wire.Failed(fault):
                    child.wait()
                    return wire.as_error(fault)
        child.wait()
        return None

    def _welcome(self, child: "_Child", ready: wire.Ready) -> None:
        self._alarm.cancel()
        self._counts_operations = ready.counts_operations
        self._stats = add_counters(self._past, ready.stats)
        with self._lock:
            if not self._stopping:
                self._serving = child
        if child.serial:
            logger.warning("the engine's process %d has taken over", child.pid)
        if not self._ready.done():
            self._ready.set_result(ready)

    def _pass_on(self, step: wire.Step) -> None:
        self._stats = add_counters(self._past, step.stats)
        events: list[Event] = [Accepted(request_ids) for request_ids in step.accepted]
        for refusal in step.refused:
            self._open.difference_update(refusal.request_ids)
            events.append(Refused(refusal.request_ids, wire.as_error(refusal.fault)))
        for delta in step.deltas:
            if delta.finish_reason is not None:
                self._open.discard(delta.request_id)
        events += step.deltas
        self._deliver(events)

    def _bury(self, child: "_Child", fault: MiniVLLMError | None) -> None:
        """Take a process out of service and tell everybody who waits for it."""
        was_serving = self._serving is child
        self._serving = None
        child.finish()
        with self._lock:
            self._child, reason, self._reason = None, self._reason, None
        self._open.clear()
        while self._asked:
            self._asked.popleft().set_result("")
        self._past = end_as_errors(self._stats)
        self._stats = replace(self._past, running=0, waiting=0, blocks_used=0, last_step=None)
        if self._stopping:
            self._on_death(EngineDeadError("the engine was shut down before this request was finished"))
        elif was_serving:
            cause = str(reason or fault or f"the engine's process {child.end}")
            logger.error("%s; starting another one", cause)
            self._on_death(EngineDeadError(f"{cause}; another one is being started, send the request again"))
        elif self._ready.done():
            logger.error("another engine could not be started: %s", fault or f"its process {child.end}")


class ProcessClient(LocalClient):
    """An engine in a process of its own, for as long as this client lives."""

    def __init__(self, boot: wire.Boot, *, observers: Sequence[Observer] = (), backoff: Backoff | None = None) -> None:
        self._boot = boot
        self._backoff = backoff
        self.process: EngineProcess
        super().__init__(observers=observers)

    def _drive(self) -> Driver:
        self.process = EngineProcess(self._boot, deliver=self._deliver, on_death=self._die, backoff=self._backoff)
        return self.process


def start_process(
    config: EngineConfig, recipe: Recipe, observers: Sequence[Observer]
) -> tuple[EngineFront, ProcessClient]:
    """Load an engine in a process of its own, and meanwhile its front end here. Blocks; raises why either failed."""
    client = ProcessClient(wire.Boot(config, recipe), observers=observers)
    try:
        make_frontend = recipe.open_frontend(config)
        ready = client.process.wait_ready()
    except BaseException:
        client.shutdown(0)
        raise
    front = EngineFront(
        config=config,
        frontend=make_frontend(ready.limits),
        info=ready.info,
        sampling_defaults=ready.sampling_defaults,
        description=ready.description,
        read_trace=client.process.read_trace,
    )
    return front, client


class _Child:
    """One process, its connection, and the thread that writes to it: nobody who sends ever waits for a full pipe."""

    def __init__(self, boot: wire.Boot, serial: int) -> None:
        self.serial = serial
        ours, theirs = socket.socketpair()
        try:
            self._process = _start(theirs)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.link: wire.Link[wire.Report] = wire.Link(ours, wire.Report)
        self._outbox: SimpleQueue[wire.Command | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="mini-vllm-outbox", daemon=True)
        self._writer.start()
        self.send(boot)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def end(self) -> str:
        """How it ended, once it has, in words that follow a subject."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def send(self, command: wire.Command) -> None:
        """Queue a command. From any thread, even from a finaliser."""
        self._outbox.put(command)

    def kill(self) -> None:
        """End it at once. From any thread, more than once."""
        self._process.kill()

    def wait(self) -> None:
        """Give it a moment to end by itself, now that it has said all that it will say."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_END)

    def finish(self) -> None:
        """Let go of everything, once it has ended or was killed."""
        self._process.wait()
        self._outbox.put(None)
        self.link.shut()
        self._writer.join()
        self.link.close()

    def _write(self) -> None:
        try:
            while (command := self._outbox.get()) is not None:
                self.link.send(command)
        except OSError:
            pass  # its end is noticed where its reports are read


def _start(end: socket.socket) -> "subprocess.Popen[bytes]":
    """A process that holds this end of a connection."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "mini_vllm.engine.worker", str(end.fileno())],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        pass_fds=(end.fileno(),),
        start_new_session=True,  # Ctrl-C is this process's to answer
    )
