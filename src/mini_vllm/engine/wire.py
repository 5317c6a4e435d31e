"""What a front end and an engine in another process say to each other: typed messages over a stream socket.

Each message is a length (4 bytes, little-endian) and that many bytes of MessagePack. Nothing is pickled: a message can
name classes of errors, but cannot run code. Must not know processes, threads or who is at the other end.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from mini_vllm import errors
from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Recipe
from mini_vllm.engine.frontend import ModelLimits
from mini_vllm.models import ModelInfo
from mini_vllm.types import EngineStats, FinishReason, Request, TokenDelta

_LENGTH = struct.Struct("<I")
M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; the class's name travels as the tag."""


class Boot(Message, frozen=True):
    """To the engine, first: what to load, and how."""

    config: EngineConfig
    recipe: Recipe


class Submit(Message, frozen=True):
    """To the engine: requests that are accepted or refused together."""

    requests: tuple[Request, ...]


class Abort(Message, frozen=True):
    """To the engine: end one request in the next step."""

    request_id: str
    reason: FinishReason


class AskTrace(Message, frozen=True):
    """To the engine: tell what the scheduler did in its last steps."""


class Stop(Message, frozen=True):
    """To the engine: leave after the step in flight."""


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error: its class in `errors`, what it says, and the fields of a `UserError`."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None


class Ready(Message, frozen=True):
    """From the engine, once: it is loaded; what a front end must know of it."""

    limits: ModelLimits
    stats: EngineStats
    info: ModelInfo | None = None
    description: dict[str, Any] = {}
    sampling_defaults: dict[str, Any] = {}
    counts_operations: bool = False


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Requests of one submission, none of which runs."""

    request_ids: tuple[str, ...]
    fault: Fault


class Step(Message, frozen=True):
    """From the engine, once a step and once for what was submitted before it: all that is new, vectors included."""

    stats: EngineStats
    deltas: tuple[TokenDelta, ...] = ()
    accepted: tuple[tuple[str, ...], ...] = ()
    refused: tuple[Refusal, ...] = ()


class Beat(Message, frozen=True):
    """From the engine, while it moves: steps begun and operations done."""

    num_begun: int
    progress: int | None = None


class Traced(Message, frozen=True):
    """From the engine, for each `AskTrace`: the trace as JSON lines."""

    text: str


class Failed(Message, frozen=True):
    """From the engine, last: it could not be loaded, or cannot go on."""

    fault: Fault


Command = Boot | Submit | Abort | AskTrace | Stop
Report = Ready | Step | Beat | Traced | Failed


class Link(Generic[M]):
    """One end of a connection: sends anything, receives messages of one union. Threads may share it to send."""

    def __init__(self, end: socket.socket, receives: Any) -> None:
        self._end = end
        self._file = end.makefile("rb", buffering=1 << 16)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Write one message; blocks while the other end does not read. `OSError` when it is gone."""
        with self._sending:
            payload = self._encoder.encode(message)
            self._end.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> M | None:
        """Wait for the next message; None when the other end is gone."""
        try:
            head = self._file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            payload = self._file.read(length)
        except OSError:
            return None
        if len(payload) < length:
            return None
        message: M = self._decoder.decode(payload)
        return message

    def shut(self) -> None:
        """Say and hear nothing more; whoever is sending or receiving returns."""
        with contextlib.suppress(OSError):  # the other end was first
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back."""
        self._file.close()
        self._end.close()


def as_fault(error: BaseException) -> Fault:
    """An error as it travels. One that is not of ours keeps its words, under the name of our base class."""
    if isinstance(error, errors.UserError):
        return Fault(type(error).__name__, str(error), error.param, error.code)
    if isinstance(error, errors.MiniVLLMError):
        return Fault(type(error).__name__, str(error))
    return Fault("MiniVLLMError", f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def as_error(fault: Fault) -> errors.MiniVLLMError:
    """The error that a fault stands for."""
    kind = getattr(errors, fault.kind, None)
    if isinstance(kind, type) and issubclass(kind, errors.UserError):
        return kind(fault.message, param=fault.param, code=fault.code)
    if isinstance(kind, type) and issubclass(kind, errors.MiniVLLMError):
        return kind(fault.message)
    return errors.MiniVLLMError(fault.message)


def plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A description as values that can travel."""
    return {str(name): plain(value) if isinstance(value, Mapping) else value for name, value in mapping.items()}
