"""Text deltas → the answer of `/v1/chat/completions`, whole or in chunks. Pure."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType

from mini_vllm.server.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatResponse,
    ChoiceLogprobs,
    Delta,
)
from mini_vllm.server.protocol.common import Usage
from mini_vllm.server.translate.answer import Choices, Head, Piece, PreparedPrompt, TokenTexts, joined
from mini_vllm.server.translate.deltas import DeltaWriter, message
from mini_vllm.server.translate.logprobs import chat_logprobs
from mini_vllm.text.router import OutputRouter
from mini_vllm.types import SamplingParams, TextDelta


class ChatAnswer:
    """One answer. `chunks` gives the events of a delta; `response` is everything added, joined."""

    def __init__(
        self,
        head: Head,
        prompt: PreparedPrompt,
        params: SamplingParams,
        *,
        texts: TokenTexts,
        make_router: Callable[[], OutputRouter | None] = lambda: None,
    ) -> None:
        """`make_router` sorts the text of one choice; None: all of it is content."""
        self.head = head
        self._writers = defaultdict[int, DeltaWriter](lambda: DeltaWriter(make_router()))
        self._params = params
        self._texts = texts
        self._choices = Choices([prompt], params, texts, keeps_end=False)
        self._pieces: defaultdict[int, list[Piece]] = defaultdict(list)

    def add(self, prompt_index: int, delta: TextDelta) -> None:
        """Keep a delta for `response`."""
        if (piece := self._choices.push(prompt_index, delta)) is not None:
            self._pieces[piece.index].append(piece)

    def chunks(self, prompt_index: int, delta: TextDelta, *, with_usage: bool = False) -> list[ChatChunk]:
        """The events for a delta: for the first of a choice its role, then one for each thing that is new."""
        piece = self._choices.push(prompt_index, delta)
        if piece is None:
            return []
        writer = self._writers[piece.index]
        deltas, finish_reason = writer.push(piece)
        choices = [ChatChunkChoice(index=piece.index, delta=writer.opening)] if piece.is_first else []
        choices += [ChatChunkChoice(index=piece.index, delta=delta) for delta in deltas[:-1]]
        if deltas or finish_reason or piece.entries:
            last = ChatChunkChoice(
                index=piece.index,
                delta=deltas[-1] if deltas else Delta(),
                logprobs=self._logprobs([piece]),
                finish_reason=finish_reason,
                stop_reason=UNSET if piece.stop_reason is None else piece.stop_reason,
            )
            choices.append(last)
        usage = self._choices.usage() if with_usage else UNSET
        return [self._chunk([choice], usage) for choice in choices]

    def usage(self) -> Usage:
        """Tokens so far."""
        return self._choices.usage()

    def usage_chunk(self) -> ChatChunk:
        """The last event of a stream that includes usage."""
        return self._chunk([], self._choices.usage())

    def response(self) -> ChatResponse:
        """The whole answer, choices in order."""
        head = self.head
        choices = [self._choice(index, pieces) for index, pieces in sorted(self._pieces.items())]
        return ChatResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=self._choices.usage(),
            mini_vllm=self._choices.report(),
        )

    def _choice(self, index: int, pieces: Sequence[Piece]) -> ChatChoice:
        deltas: list[Delta] = []
        finish_reason: str | None = None
        for piece in pieces:
            new, finish_reason = self._writers[index].push(piece)
            deltas += new
        return ChatChoice(
            index=index,
            message=message(deltas),
            logprobs=self._logprobs(pieces),
            finish_reason=finish_reason,
            stop_reason=pieces[-1].stop_reason,
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType) -> ChatChunk:
        head = self.head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage,
            mini_vllm=self._choices.report(),
        )

    def _logprobs(self, pieces: Sequence[Piece]) -> ChoiceLogprobs | None:
        if self._params.logprobs is None:
            return None
        entries = joined([piece for piece in pieces if piece.entries is not None], "entries")
        return chat_logprobs(entries, self._texts.token_bytes, count=self._params.logprobs)
