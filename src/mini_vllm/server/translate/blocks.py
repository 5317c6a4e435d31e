"""The deltas of a chat answer as blocks that follow one another: thoughts, text, calls. Pure.

Other APIs than chat completions write an answer as a list of these, whole answers of the same ones as streams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mini_vllm.server.protocol.chat import ChatChunk, Delta, TokenLogprob


@dataclass(slots=True)
class Block:
    """One of them, as far as it has come."""

    index: int
    kind: Literal["thought", "text", "call"]
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it; of a call its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins."""

    block: Block


@dataclass(frozen=True, slots=True)
class Added:
    """It grows."""

    block: Block
    text: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing more will be added to it."""

    block: Block


BlockEvent: TypeAlias = Opened | Added | Closed


class Blocks:
    """Of one answer with one choice."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._is_open = False
        self._waiting: list[TokenLogprob] = []  # log-probabilities that came before any text

    def push(self, chunk: ChatChunk) -> list[BlockEvent]:
        """What a chunk adds."""
        events: list[BlockEvent] = []
        for choice in chunk.choices:
            if choice.logprobs is not None:
                self._waiting += choice.logprobs.content
            events += self._delta(choice.delta)
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.stop_reason:
                self.stop_reason = choice.stop_reason
        return events

    def finish(self, *, at_least_one: bool = False) -> list[BlockEvent]:
        """The end of the last block. `at_least_one`: an answer of nothing is an empty text."""
        events = list(self._open("text")) if at_least_one and not self.blocks else []
        if self._is_open and self._waiting and self.blocks[-1].kind == "text":
            events += self._add("")
        return [*events, *self._close()]

    def _delta(self, delta: Delta) -> Iterator[BlockEvent]:
        for kind, text in (("thought", delta.reasoning_content), ("text", delta.content)):
            if text and isinstance(text, str):
                if not self._is_open or self.blocks[-1].kind != kind:
                    yield from self._open(kind)  # type: ignore[arg-type]
                yield from self._add(text)
        for call in delta.tool_calls or ():
            if isinstance(call.id, str) and isinstance(call.function.name, str):
                yield from self._open("call", call.id, call.function.name)
            if call.function.arguments:
                yield from self._add(call.function.arguments)

    def _open(
        self, kind: Literal["thought", "text", "call"], call_id: str = "", name: str = ""
    ) -> Iterator[BlockEvent]:
        yield from self._close()
        self.blocks.append(Block(len(self.blocks), kind, call_id, name))
        self._is_open = True
        yield Opened(self.blocks[-1])

    def _add(self, text: str) -> Iterator[BlockEvent]:
        block, logprobs = self.blocks[-1], list[TokenLogprob]()
        if block.kind == "text":
            logprobs, self._waiting = self._waiting, []
        block.pieces.append(text)
        block.logprobs += logprobs
        yield Added(block, text, logprobs)

    def _close(self) -> Iterator[BlockEvent]:
        if self._is_open:
            self._is_open = False
            yield Closed(self.blocks[-1])
