"""The engine in a process of its own: `python -m mini_vllm.engine.worker FD`, started by `engine.process`.

It loads what the first message names, then runs an `EngineLoop` and reports each step. It ends when it is told to,
when its engine dies, and at once when the process at the other end of FD is gone. Signals that a terminal or a
supervisor sends to all processes are left to that process. Must not know text beyond the grammars that requests carry.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from mini_vllm.engine import wire
from mini_vllm.engine.assembly import Engine
from mini_vllm.engine.loop import Accepted, EngineLoop, Event, Refused
from mini_vllm.errors import EngineDeadError
from mini_vllm.types import TokenDelta

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_BEATS = 0.5
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal to get when the parent dies


def main(fd: int) -> int:
    """Serve one connection; the exit code: 0 when told to leave, 1 when the engine failed."""
    _leave_signals_to_parent()
    link: wire.Link[wire.Command] = wire.Link(socket.socket(fileno=fd), wire.Command)
    boot = link.receive()
    if not isinstance(boot, wire.Boot):
        return 0
    commands: SimpleQueue[wire.Command] = SimpleQueue()
    threading.Thread(target=_listen, args=(link, commands), name="mini-vllm-commands", daemon=True).start()
    try:
        engine = boot.recipe.load(boot.config)
    except Exception as error:
        logger.debug("the engine could not be loaded", exc_info=error)
        link.send(wire.Failed(wire.as_fault(error)))
        return 1
    worker = _Worker(engine, link)
    code = worker.run(commands)
    engine.close()
    return code


def _listen(link: "wire.Link[wire.Command]", commands: "SimpleQueue[wire.Command]") -> None:
    """Pass commands on. Without anybody to work for, leave at once, whatever the engine does."""
    while (command := link.receive()) is not None:
        commands.put(command)
    os._exit(0)


def _leave_signals_to_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # even while this process is stopped
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Worker:
    """An engine loop between a queue of commands and a link for reports."""

    def __init__(self, engine: Engine, link: "wire.Link[wire.Command]") -> None:
        self._engine = engine
        self._link = link
        self._death: EngineDeadError | None = None
        self._is_over = threading.Event()
        self._compilers = ThreadPoolExecutor(2, thread_name_prefix="grammars")
        self._compiling: dict[str, wire.Abort | None] = {}  # by id, the abort that came meanwhile
        self._lock = threading.Lock()  # of `_compiling`
        self._loop = EngineLoop(engine.core, deliver=self._deliver, on_death=self._die)
        self._beat = wire.Beat(0)

    def run(self, commands: "SimpleQueue[wire.Command]") -> int:
        """Obey until told to stop or until the engine dies."""
        self._link.send(_introduce(self._engine, self._loop))
        next_beat = time.monotonic()
        while not self._is_over.is_set():
            try:
                command = commands.get(timeout=SECONDS_BETWEEN_BEATS)
            except Empty:
                pass
            else:
                if isinstance(command, wire.Stop):
                    break
                self._obey(command)
            if time.monotonic() >= next_beat:
                self._tell_progress()
                next_beat = time.monotonic() + SECONDS_BETWEEN_BEATS
        self._compilers.shutdown(wait=False, cancel_futures=True)
        if self._death is not None:
            self._link.send(wire.Failed(wire.as_fault(self._death)))
            return 1
        self._loop.stop()
        return 0

    def _obey(self, command: wire.Command) -> None:
        match command:
            case wire.Submit(requests) if any(request.params.structured_outputs for request in requests):
                with self._lock:
                    self._compiling |= dict.fromkeys(request.request_id for request in requests)
                self._compilers.submit(self._compile, command)
            case wire.Submit(requests):
                self._submit(command)
            case wire.Abort(request_id, reason):
                with self._lock:
                    is_early = request_id in self._compiling
                    if is_early:
                        self._compiling[request_id] = command
                if not is_early:
                    self._loop.abort(request_id, reason=reason)
            case wire.AskTrace():
                self._compilers.submit(self._tell_trace)

    def _compile(self, command: wire.Submit) -> None:
        """Compile a submission's grammar here, so that no step waits for it, and queue it then."""
        try:
            self._engine.frontend.check_structure(command.requests[0].params)
        except Exception as error:
            ids = self._compiled(command)[0]
            self._report(refused=(wire.Refusal(ids, wire.as_fault(error)),))
            return
        self._submit(command)
        for abort in self._compiled(command)[1]:
            self._loop.abort(abort.request_id, reason=abort.reason)

    def _compiled(self, command: wire.Submit) -> tuple[tuple[str, ...], list[wire.Abort]]:
        ids = tuple(request.request_id for request in command.requests)
        with self._lock:
            aborts = [self._compiling.pop(request_id, None) for request_id in ids]
        return ids, [abort for abort in aborts if abort is not None]

    def _submit(self, command: wire.Submit) -> None:
        with suppress(EngineDeadError):  # `_die` ends this process, and whoever waits hears of that
            self._loop.submit(command.requests)

    def _deliver(self, events: list[Event]) -> None:
        """On the engine's thread: one message for all of a step."""
        self._report(
            deltas=tuple(event for event in events if isinstance(event, TokenDelta)),
            accepted=tuple(event.request_ids for event in events if isinstance(event, Accepted)),
            refused=tuple(
                wire.Refusal(event.request_ids, wire.as_fault(event.error))
                for event in events
                if isinstance(event, Refused)
            ),
        )

    def _report(self, **news: Any) -> None:
        with suppress(OSError):  # `_listen` sees the same and leaves
            self._link.send(wire.Step(stats=self._loop.stats(), **news))

    def _tell_progress(self) -> None:
        beat = wire.Beat(*self._loop.progress())
        if beat != self._beat:
            self._beat = beat
            self._link.send(beat)

    def _tell_trace(self) -> None:
        text = self._engine.read_trace()
        with suppress(OSError):
            self._link.send(wire.Traced(text))

    def _die(self, death: EngineDeadError) -> None:
        self._death = death
        self._is_over.set()


def _introduce(engine: Engine, loop: EngineLoop) -> wire.Ready:
    return wire.Ready(
        limits=engine.frontend.limits,
        stats=loop.stats(),
        info=engine.info,
        description=wire.plain(engine.description),
        sampling_defaults=dict(engine.sampling_defaults),
        counts_operations=loop.counts_operations,
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
